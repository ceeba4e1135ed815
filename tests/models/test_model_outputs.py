"""Models accept batches of tokenizers, and outputs are read like HuggingFace's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bertjax
from bertjax import BertModel, Tokenizer
from bertjax.engine import reference
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from tests.factories import SENTENCES, add_tokenizer, make_config
from tests.tiny_models import CLASSES, random_model

CONFIG = make_config()
IDS = [[2, 9, 10, 3], [2, 11, 3, 0]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_pretrained(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def embedder():
    return random_model(CLASSES["BertForSentenceEmbedding"], CONFIG)


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"BertForSentenceEmbedding"}))
def test_output_indices_and_names_match_huggingface(tmp_path, name):
    import torch
    import transformers

    model = random_model(CLASSES[name], CONFIG)
    model.save_pretrained(tmp_path)
    ids = [[text] for text in IDS] if name == "BertForMultipleChoice" else IDS
    reference = getattr(transformers, name).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = reference(torch.tensor(ids), output_hidden_states=True, output_attentions=True)
    theirs = {key: value for key, value in theirs.items() if len(value)}  # without BertModel's empty cross_attentions
    ours = model(ids)
    assert len(ours.to_tuple()) == len(theirs)
    for number, key in enumerate(theirs):
        expected = theirs[key] if torch.is_tensor(theirs[key]) else torch.stack(theirs[key])
        assert np.allclose(ours[number], expected, atol=1e-4), key
        assert np.array_equal(ours[key], ours[number])
        assert np.array_equal(ours[number - len(theirs)], ours[number])


def test_an_output_is_read_by_name_and_stays_a_tree(embedder):
    output = embedder(IDS)
    names = ("last_hidden_state", "sentence_embedding", "hidden_states", "attentions")
    assert output.keys() == tuple(output) == names
    assert [value.shape for value in dict(output).values()] == [value.shape for _, value in output.items()]
    assert len(output) == 4
    assert "attentions" in output
    assert "logits" not in output
    assert output[:2][1] is output.sentence_embedding
    rebuilt = jax.tree.map(lambda leaf: leaf + 1, output)
    assert type(rebuilt) is type(output)
    fused = random_model(BertModel, CONFIG, attention="fused")(IDS)
    assert fused.keys() == ("last_hidden_state", "pooler_output", "hidden_states")


def test_an_indexed_readout_reads_only_its_field():
    model = random_model(CLASSES["BertForSequenceClassification"], CONFIG)
    by_number = readouts.inspect_readout(model, lambda output: output[0], 4)
    assert by_number == readouts.inspect_readout(model, readouts.logits, 4)
    assert by_number.first_only


def test_texts_are_tokenized_by_the_tokenizer_argument(embedder, tokenizer):
    texts = tokenizer.encode(SENTENCES)
    batch = tokenizer(SENTENCES)
    assert all(np.array_equal(batch[name], value) for name, value in bertjax.collate(texts).items())
    expected = embedder(batch)
    assert np.array_equal(embedder(list(SENTENCES), tokenizer=tokenizer)[0], expected[0])
    heads = ab.single_heads(CONFIG, "zero")[:2]
    chosen = {"tokenizer": tokenizer, "progress": False}
    plain_texts = bertjax.sweep(embedder, SENTENCES, heads, readouts.sentence_embedding, **chosen)
    tokenised = bertjax.sweep(embedder, texts, heads, readouts.sentence_embedding, progress=False)
    assert np.array_equal(plain_texts.outputs, tokenised.outputs)
    stacked = ov.stack([ab.to_overrides(CONFIG, one) for one in heads])
    runs = reference.run(embedder, batch, stacked, readouts.sentence_embedding)
    assert np.allclose(runs, tokenised.outputs, atol=1e-5)


def test_ids_are_decoded(tokenizer):
    batch = tokenizer(SENTENCES[1], SENTENCES[3])
    assert tokenizer.decode(batch["input_ids"][0]) == "[CLS] a dog ran [SEP] red doors are old [SEP]"
    assert tokenizer.decode(batch["input_ids"][0].tolist(), skip_special_tokens=True) == "a dog ran red doors are old"
    special = ("pad", "unk", "cls", "sep", "mask")
    ids = [getattr(tokenizer, f"{name}_token_id") for name in special]
    assert [tokenizer.decode(number) for number in ids] == [f"[{name.upper()}]" for name in special]


def test_a_matrix_of_gates_sets_the_gate_of_each_head(embedder):
    gates = np.arange(6.0).reshape(2, 3) / 5
    for heads in (ov.every_head(CONFIG), ["1.2", "0.1"]):
        for gated in (ov.factor(CONFIG, heads, gates).output_gate, ov.uniform(CONFIG, heads, gates).weights_gate):
            for head in ov.every_head(CONFIG):
                named = head in [ov.parse_head(one, CONFIG) for one in heads]
                assert np.isclose(gated[head], gates[head] if named else 1)
    assert np.array_equal(
        ov.factor(CONFIG, gates).output_gate, ov.factor(CONFIG, ov.every_head(CONFIG), gates).output_gate
    )
    means = np.ones((2, 3, 4))
    assert np.isclose(ov.mean(CONFIG, ["1.2"], means, gates).output_gate[1, 2], 1.0)
    assert np.isclose(ov.patched_outputs(CONFIG, ["0.1"], embedder(IDS), gates).output_gate[0, 1], 0.2)


def test_a_matrix_of_gates_is_differentiable(embedder):
    inputs = embedder.inputs(IDS, MASK)

    def first(gates):
        return embedder.forward(inputs, ov.factor(CONFIG, gates)).sentence_embedding[0, 0]

    gates = jnp.full((2, 3), 0.7)
    gradient = jax.jit(jax.grad(first))(gates)
    step = jnp.zeros((2, 3)).at[1, 2].set(0.01)
    slope = (first(gates + step) - first(gates - step)) / 0.02
    assert abs(float(gradient[1, 2] - slope)) < 0.02 * abs(float(slope))
    assert not np.isclose(gradient, 0).any()


def test_a_run_of_a_stack_keeps_attentions(embedder):
    stacked = ov.stack([ov.uniform(CONFIG, ["0.1"]), ov.identity(CONFIG)])
    batch = {"input_ids": IDS, "attention_mask": MASK}
    kept = reference.run(embedder, batch, stacked, lambda output: output.attentions)
    assert kept.shape == (2, *embedder(IDS, MASK).attentions.shape)


def test_models_and_outputs_print_sizes_in_a_few_lines():
    model = random_model(CLASSES["BertForSequenceClassification"], CONFIG)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert str(model) == repr(model)
    assert repr(model).splitlines() == [
        "BertForSequenceClassification(",
        "  2 layers, 3 heads, hidden size 12",
        f"  vocabulary {CONFIG.vocab_size}, at most 40 tokens",
        f"  {count:,} parameters, float32, explicit attention",
        "  labels: LABEL_0, LABEL_1",
        ")",
    ]
    lines = repr(model(IDS, MASK)).splitlines()
    assert {"  logits=float32[2, 2]", "    weights=float32[2, 2, 3, 4, 4]"} <= {*lines}
    assert len(lines) == 17
    assert "start_logits" not in repr(lines)
