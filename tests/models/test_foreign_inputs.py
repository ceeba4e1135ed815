"""Inputs of other libraries give the same bits as NumPy's."""

import subprocess
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import bertjax
from bertjax import BertForMultipleChoice, BertModel, ablations, overrides, patching, readouts
from bertjax.errors import InputError, OverrideError
from tests.tiny_models import arguments, random_model, tree_equal

LENGTHS = (7, 3, 5)
TEXTS = ["a a a a a", "a", "a a a"]  # with [CLS] and [SEP] as long as these


@pytest.fixture
def model(small):
    return random_model(BertModel, small)


@pytest.fixture
def batch(small, rng):
    inputs = arguments(small, rng, batch=3, tokens=7)
    return inputs | {"attention_mask": (np.arange(7) < np.array(LENGTHS)[:, None]).astype(np.int64)}


def test_nested_lists_and_arrays_of_jax(model, batch):
    expected = model(**batch)
    assert tree_equal(model({name: jnp.asarray(array, jnp.int32) for name, array in batch.items()}), expected)
    lists = {name: array.tolist() for name, array in batch.items()}
    assert tree_equal(model(lists), expected)
    assert tree_equal(model(**lists), expected)
    assert tree_equal(model({name: [*map(tuple, rows)] for name, rows in lists.items()}), expected)
    assert tree_equal(model({name: list(array) for name, array in batch.items()}), expected)  # of NumPy's rows
    assert tree_equal(model({name: list(map(jnp.asarray, array)) for name, array in batch.items()}), expected)


@pytest.mark.parametrize("dtype", [*"bBhHiIlLqQ", ">i4", "<i8", ">u2"])
def test_integers_of_numpy(model, batch, dtype):
    inputs = {name: array.astype(dtype) for name, array in batch.items()}
    expected = model(**batch)
    assert tree_equal(model(inputs), expected)
    assert tree_equal(model(*inputs.values()), expected)
    assert tree_equal(model(inputs | {"attention_mask": inputs["attention_mask"].astype(bool)}), expected)


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
def test_tensors_of_pytorch(model, batch, dtype):
    import torch

    expected = model(**batch)
    tensors = {name: torch.tensor(array).to(getattr(torch, dtype)) for name, array in batch.items()}
    assert tree_equal(model(tensors), expected)
    assert tree_equal(model(*tensors.values()), expected)
    assert tree_equal(model({name: list(tensor) for name, tensor in tensors.items()}), expected)
    for mask in ("bool", "float16", "bfloat16", "float64"):
        kept = tensors["attention_mask"].to(getattr(torch, mask))
        assert tree_equal(model(tensors | {"attention_mask": kept}), expected), mask


@pytest.mark.needs_torch
def test_views_of_pytorch(model, batch):
    """Transposed and strided tensors are not contiguous in memory."""
    import torch

    wide = torch.tensor(batch["input_ids"]).T.contiguous().T
    every_other = torch.tensor(np.repeat(batch["attention_mask"], 2, axis=1))[:, ::2]
    views = batch | {"input_ids": wide, "attention_mask": every_other}
    assert not wide.is_contiguous()
    assert not every_other.is_contiguous()
    assert tree_equal(model(views), model(**batch))


@pytest.fixture
def tokenizer():
    """A tokenizer of transformers with the words a and b."""
    import tokenizers
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)


def swept(model, examples, **options):
    heads = ablations.single_heads(model.config, "zero")
    return bertjax.sweep(model, examples, heads, readouts.hidden_state, at=[[0, 2]] * 3, progress=False, **options)


def same(first, second) -> bool:
    return np.array_equal(first.base, second.base) and np.array_equal(first.outputs, second.outputs)


@pytest.mark.needs_torch
@pytest.mark.parametrize("kind", [None, "np", "pt"])
def test_a_tokenizers_batch(model, tokenizer, kind):
    encoded = tokenizer(TEXTS, ["b b", "b", "b b b"], padding=True, return_tensors=kind)
    arrays = {name: np.asarray(rows).astype(np.int32) for name, rows in encoded.items()}
    assert set(arrays) == {"input_ids", "token_type_ids", "attention_mask"}
    assert arrays["token_type_ids"].any()
    assert not arrays["attention_mask"].all()
    expected = model(arrays)
    assert tree_equal(model(encoded), expected)
    assert tree_equal(model(**encoded), expected)
    assert same(swept(model, encoded), swept(model, arrays))
    means = bertjax.mean_head_outputs(model, arrays)
    assert np.array_equal(bertjax.mean_head_outputs(model, encoded), means)
    stack = overrides.stack([overrides.identity(model.config)])
    expected = bertjax.reference.run(model, arrays, stack, readouts.hidden_state)
    assert tree_equal(bertjax.reference.run(model, encoded, stack, readouts.hidden_state), expected)


@pytest.mark.needs_torch
def test_a_sweep_takes_a_batch_without_padding_too(model, tokenizer):
    """A sweep packs rows of different lengths; a call of the model refuses them with advice."""
    ragged = tokenizer(TEXTS)
    assert [len(row) for row in ragged["input_ids"]] == [*LENGTHS]
    assert same(swept(model, ragged), swept(model, tokenizer(TEXTS, padding=True, return_tensors="np")))
    with pytest.raises(InputError, match=r"^input_ids has rows of different lengths: pad them .*padding=True"):
        model(ragged)
    with pytest.raises(InputError, match=r"one text is a batch of one: tokenizer\(\[text\]\)"):
        model(tokenizer(TEXTS[0]))
    with pytest.raises(InputError, match="a batch holds offset_mapping: the model takes input_ids"):
        model(tokenizer(TEXTS, padding=True, return_offsets_mapping=True))


def test_a_sweep_takes_rows_of_token_ids(model, batch):
    ids = batch["input_ids"]
    expected = swept(model, {"input_ids": ids})
    rows = [row.tolist() for row in ids]
    for token_ids in (rows, [*map(tuple, rows)], ids, list(ids), ids.astype(">u2"), jnp.asarray(ids, jnp.int32)):
        assert same(swept(model, token_ids), expected)
    cut = [row[:length] for row, length in zip(rows, LENGTHS, strict=True)]
    padded = {"input_ids": ids, "attention_mask": batch["attention_mask"]}
    assert same(swept(model, cut), swept(model, padded))


@pytest.mark.needs_torch
def test_a_sweep_takes_tensors(model, batch, unchecked):
    import torch

    tensors = {name: torch.tensor(array) for name, array in batch.items()}
    assert same(swept(model, tensors), swept(model, batch))
    bare = swept(model, batch["input_ids"])
    assert same(swept(model, tensors["input_ids"]), bare)
    assert same(swept(model, list(tensors["input_ids"])), bare)
    heads, rng = ablations.single_heads(model.config, "mean"), np.random.default_rng(0)
    means = rng.normal(size=(2, 3, 4)).astype(np.float32)
    results = [
        bertjax.sweep(model, batch, heads, readouts.hidden_state, at=at, means=values, progress=False)
        for at, values in (([[0], [1], [2]], means), (torch.tensor([[0], [1], [2]]), torch.tensor(means)))
    ]
    assert same(*results)


def test_examples_of_several_texts_as_token_ids(model, batch):
    """Two texts for each example, as lists, as rows of an array, and as separate batches."""
    ids = batch["input_ids"]
    together = np.stack([ids, ids[::-1]], axis=1)
    heads = ablations.single_heads(model.config, "zero")

    def both(examples):
        return bertjax.sweep(model, examples, heads, readouts.pooled, combine=np.subtract, progress=False)

    expected = both(together.tolist())
    assert expected.outputs.shape == (6, 3, 12)
    assert expected.outputs.any()
    assert same(both(together), expected)
    assert same(both(list(jnp.asarray(together, jnp.int32))), expected)


def test_choices_of_other_libraries(small, batch):
    model = random_model(BertForMultipleChoice, small)
    choices = {name: np.stack([array, array[::-1]], axis=1) for name, array in batch.items()}
    expected = model(choices)
    assert expected.logits.shape == (3, 2)
    assert tree_equal(model({name: array.tolist() for name, array in choices.items()}), expected)
    assert tree_equal(model({name: jnp.asarray(array, jnp.int32) for name, array in choices.items()}), expected)


def kinds_of(array):
    """The same values as lists, in another byte order, as an array of JAX and as a tensor of PyTorch."""
    import torch

    yield array.tolist()
    yield array.astype(array.dtype.newbyteorder(">"))
    yield jnp.asarray(array)
    yield torch.tensor(array)


@pytest.mark.needs_torch
def test_overrides_accept_arrays_of_all_libraries(model, batch, rng, unchecked):
    config, source = model.config, model(batch)
    gates = rng.uniform(size=(2, 3)).astype(np.float32)
    weights = rng.uniform(size=(7, 7)).astype(np.float32)
    means = rng.normal(size=(2, 3, 4)).astype(np.float32)
    mask = rng.integers(0, 2, (3, 7)).astype(np.float32)
    places = np.array([[1], [0], [2]])
    makers = [
        (lambda x: overrides.factor(config, x), gates),
        (lambda x: overrides.factor(config, ["0.1", "1.2"], x), gates[0, :2]),
        (lambda x: overrides.uniform(config, [(1, 0)], x), gates[0, 0]),
        (lambda x: overrides.fixed(config, {"1.2": x}), weights),
        (lambda x: overrides.mean(config, ["0.2"], x), means),
        (lambda x: patching.replaced(config, "queries", {"0.2": x}), means[0, 0]),
        (lambda x: patching.patched(config, "values", ["1.1"], source, tokens=x), places),
        (lambda x: patching.at_tokens(overrides.zero(config, ["0.0"]), x), mask),
    ]
    for make, array in makers:
        expected = make(array)
        for tokens in kinds_of(array):
            assert tree_equal(make(tokens), expected)
    whole = patching.patched(config, "values", ["1.1"], source, tokens=mask)
    for tokens in [*kinds_of(mask)][1:]:  # lists are positions
        assert tree_equal(patching.patched(config, "values", ["1.1"], source, tokens=tokens), whole)


@pytest.mark.needs_torch
def test_half_precision_of_pytorch_is_that_of_jax(small, rng):
    import torch

    gates = torch.tensor(rng.uniform(size=(2, 3)))
    for name in ("bfloat16", "float16"):
        half = gates.to(getattr(torch, name))
        by_torch = overrides.factor(small, half)
        assert tree_equal(by_torch, overrides.factor(small, half.double().numpy()))
        weights = overrides.fixed(small, {"0.0": half[:, :2]}).weights
        kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.float16
        assert weights.values.dtype == kind
        assert np.array_equal(weights.values[0, 0], half[:, :2].float().numpy().astype(kind))


REFUSED = {
    "floats": (lambda t, ids: t.tensor(ids).float(), "input_ids must be integers, found float32"),
    "no values": (lambda t, ids: t.tensor(ids, device="meta"), "cannot be read from this tensor of PyTorch .*no data"),
    "sparse": (lambda t, ids: t.tensor(ids).to_sparse(), "cannot be read from this tensor of PyTorch .*dense"),
    "one text": (lambda t, ids: t.tensor(ids[0]), r"found \(7,\) \(one text is a batch of one"),
    "gradients": (
        lambda t, ids: t.tensor(ids).double().requires_grad_(),
        r"tensor of PyTorch .*requires grad. Use tensor.detach\(\)",
    ),
    "rows with gradients": (lambda t, ids: [*t.tensor(ids).double().requires_grad_()], r"Use tensor.detach\(\)"),
    "uneven rows": (lambda t, ids: [t.tensor([1, 2]), t.tensor([3])], "rows of different lengths: pad them"),
    "too large": (lambda t, ids: t.tensor(ids) + 2**40, "outside 0 to 40"),
}


@pytest.mark.needs_torch
@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_tensors_are_refused(model, batch, case):
    import torch

    make, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        model(make(torch, batch["input_ids"]), batch["attention_mask"])
    assert "\n" not in str(caught.value)


@pytest.mark.needs_torch
def test_gates_that_record_gradients_are_refused(small):
    """Their gradients would be lost silently."""
    import torch

    with pytest.raises(OverrideError, match=r"factor cannot be read .* requires grad"):
        overrides.factor(small, torch.ones(2, 3, requires_grad=True))


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ([[1, 2], [3, 4.5]], "item 1 .from 0. is a list that begins with 3"),
        ([[1, 2], []], "tokens"),
        (np.ones((2, 3)), "rows of examples must be token ids, found an array of shape .3,. and dtype float64"),
        (np.ones((2, 3, 4, 5), int), "item 0 .from 0. is an array of shape .3, 4, 5."),
        ([[1, 2], [99]], "99"),
        ([[1, 2], [2**63 - 1]], "9223372036854775807 in examples is not a token id"),
        ({"input_ids": np.array([[1, -5]])}, "-5 in input_ids is not a token id: these are 0 to 2147483647"),
        (jnp.ones((2,), int), "item 0 .from 0. is an array of shape .. "),
        ([True, False], "item 0 .from 0. is True"),
    ],
)
def test_rows_that_are_not_token_ids_are_refused(model, examples, words):
    heads = ablations.single_heads(model.config, "zero")
    with pytest.raises(InputError, match=words) as caught:
        bertjax.sweep(model, examples, heads, readouts.pooled, progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.integration
def test_array_inputs_do_not_import_pytorch():
    program = (
        "import sys, jax, bertjax, numpy as np\n"
        "from bertjax import BertConfig, BertModel, overrides\n"
        "config = BertConfig(vocab_size=9, hidden_size=6, num_hidden_layers=1, num_attention_heads=2,"
        " intermediate_size=5, max_position_embeddings=8)\n"
        "model = BertModel(config, jax.random.key(0))\n"
        "model({'input_ids': [[1, 2]]}, overrides=overrides.factor(config, [[1, 0]]))\n"
        "model(np.array([[1, 2]], '>u2'))\n"
        "print('torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"]
