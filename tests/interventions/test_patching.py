"""Patches of all sites and tokens, in the model, in the engine and in contrasts."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModel

import bertjax
from bertjax import BertConfig, BertModel, collate, patching
from bertjax.analyses import patch_paths
from bertjax.analyses.patching.paths import RECEIVING
from bertjax.checkpoints import locate
from bertjax.data import Tokenizer
from bertjax.engine import reference
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import SWEPT, Ablation, Change, overrides, readouts, stack, to_overrides
from bertjax.models import SITES, pretrained
from tests.family_models import arguments as family_arguments
from tests.family_models import config_of
from tests.tiny_models import SIZES, arguments, encodings, largest_difference, random_model

CLOSE = 2e-6
SMALL = Path(__file__).parents[2] / "experiments/data/small_mlm"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def where_of(site):
    return ["1.2"] if SITES[site].of_heads else [1]


def at(record, site, layer=1, head=2):
    """The recorded activations of a site; the tokens of weights are queries."""
    values = np.asarray(getattr(record, site)[layer])
    if site == "weights":
        return values[:, head]
    return values[:, :, head] if SITES[site].of_heads else values


@pytest.mark.parametrize("site", list(SITES))
def test_a_patch_copies_the_source_and_changes_nothing_before(small, rng, site):
    model, call = random_model(BertModel, small), arguments(small, rng)
    source = model(**dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape)))
    base, tokens = model(**call), [[0, 2], [1], [2], []]
    patch = patching.patched(small, site, where_of(site), source, tokens=tokens)
    after = model(**call, overrides=patch)
    mask = np.asarray(patching.token_mask(tokens, 4, 9)).astype(bool)
    found, of_base, of_source = (at(output.record, site) for output in (after, base, source))
    assert np.array_equal(found[mask], of_source[mask])
    assert largest_difference(found[~mask], of_base[~mask]) < CLOSE
    untouched = 1 if site == "hidden_states" else 2
    assert largest_difference(after.hidden_states[:untouched], base.hidden_states[:untouched]) < CLOSE
    assert largest_difference(after.last_hidden_state[:3], base.last_hidden_state[:3]) > 1e-4
    assert largest_difference(after.last_hidden_state[3], base.last_hidden_state[3]) < CLOSE  # where nothing is patched


def test_the_stream_of_a_source_is_all_of_its_run(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    source = model(**dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape)))
    for layer in range(3):
        after = model(**call, overrides=patching.patched(small, "hidden_states", [layer], source))
        assert largest_difference(after.last_hidden_state, source.last_hidden_state) < CLOSE


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_share_blends(small, rng, share):
    model, call = random_model(BertModel, small), arguments(small, rng)
    source = model(**dict(call, token_type_ids=1 - call["token_type_ids"]))
    base = model(**call)
    after = model(**call, overrides=patching.patched(small, "values", ["0.1"], source, share=share))
    of_base, of_source, found = (np.asarray(output.record.values[0][:, :, 1]) for output in (base, source, after))
    assert largest_difference(found, (1 - share) * of_base + share * of_source) < CLOSE


def test_values_replace_sites(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    vector = rng.normal(size=12).astype(np.float32)
    mask = patching.token_mask([3], 4, 9)
    override = patching.replaced(small, "feed_forward_outputs", {1: vector}, tokens=mask)
    found = model(**call, overrides=override).record.feed_forward_outputs[1]
    assert np.allclose(found[:, 3], vector, atol=1e-7)
    assert not np.allclose(found[:, 2], vector, atol=1e-2)
    whole = rng.normal(size=(4, 9, 4)).astype(np.float32)
    found = model(**call, overrides=patching.replaced(small, "queries", {"1.0": whole})).record.queries[1][:, :, 0]
    assert largest_difference(found, whole) < CLOSE


@pytest.mark.parametrize("mode", ["zero", "uniform", "mean"])
def test_overrides_of_heads_act_at_some_queries_alone(small, rng, mode):
    model, call = random_model(BertModel, small), arguments(small, rng)
    means = jnp.asarray(rng.normal(size=(2, 3, 4)).astype(np.float32))
    of_mode = {
        "zero": overrides.zero(small, ["1.2"]),
        "uniform": overrides.uniform(small, ["1.2"]),
        "mean": overrides.mean(small, ["1.2"], means),
    }[mode]
    mask = patching.token_mask([[0], [1, 2], [], [5]], 4, 9)
    base, everywhere = model(**call), model(**call, overrides=of_mode)
    after = model(**call, overrides=patching.at_tokens(of_mode, mask))
    chosen = np.asarray(mask).astype(bool)
    found, of_base, whole = (at(output.record, "head_outputs") for output in (after, base, everywhere))
    assert largest_difference(found[chosen], whole[chosen]) < CLOSE
    assert largest_difference(found[~chosen], of_base[~chosen]) < CLOSE


def test_patches_of_several_sites_are_joined_and_stacked(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    source = model(**dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape)))
    parts = [patching.patched(small, site, where_of(site), source, tokens=[1]) for site in ("keys", "hidden_states")]
    parts.append(overrides.zero(small, ["0.0"]))
    joined = overrides.combine(*parts)
    after = model(**call, overrides=joined)
    assert np.array_equal(after.record.keys[1][:, 1, 2], source.record.keys[1][:, 1, 2])
    assert np.array_equal(after.hidden_states[1][:, 1], source.hidden_states[1][:, 1])
    assert not np.asarray(after.record.head_outputs[0][:, :, 0]).any()
    together = stack([*parts, joined, patching.at_tokens(parts[-1], jnp.ones((1, 9)))])
    runs = reference.run(model, model.inputs(**call), together, readouts.hidden_state)
    for number, one in enumerate([*parts, joined, parts[-1]]):
        assert largest_difference(runs[number], model(**call, overrides=one).last_hidden_state) < CLOSE


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            lambda c, d: patching.patched(c, "logits", [0], d),
            "'logits' is not a site: there are hidden_states",
        ),
        (lambda c, d: patching.patched(c, "keys", ["0"], d), "names no head"),
        (lambda c, d: patching.patched(c, "attention_outputs", [2], d), "there is no layer 2 .* 0 to 1"),
        (lambda c, d: patching.patched(c, "hidden_states", [3], d), "0 to 2"),
        (lambda c, d: patching.patched(c, "hidden_states", [1, 1], d), "a layer is named twice"),
        (lambda c, d: patching.patched(c, "hidden_states", [1], d, tokens=[9]), "position 9, but there are 9"),
        (lambda c, d: patching.patched(c, "hidden_states", [1], d, tokens=[[1]]), "tokens for 1 examples"),
        (lambda c, d: patching.replaced(c, "weights", {"0.0": [1.0]}), "overrides.fixed"),
        (lambda c, d: patching.replaced(c, "queries", {"0.0": np.ones(5)}), r"expected \[batch, token, 4\]"),
        (
            lambda c, d: overrides.combine(*[patching.patched(c, "keys", ["0.1"], d, tokens=[1])] * 2),
            "two overrides replace the keys of head 0.1 at the same tokens",
        ),
        (
            lambda c, d: patching.at_tokens(patching.patched(c, "keys", ["0.1"], d), np.ones((1, 9))),
            "have their own tokens",
        ),
        (lambda c, d: Change(0, 1, "patched", site="hidden_states"), "to a whole layer: give head 0"),
        (lambda c, d: Change(0, 0, "mean", site="queries"), "set to zero or patched"),
        (lambda c, d: Change(0, 0, "patched", at=(-1,)), "a span id"),
        (lambda c, d: to_overrides(c, Ablation("x", (Change(0, 0, "zero", at=(1,)),))), "give spans="),
    ],
)
def test_patches_that_cannot_be_are_refused(small, rng, refused, message):
    model, call = random_model(BertModel, small), arguments(small, rng)
    with pytest.raises((OverrideError, InputError), match=message):
        refused(small, model(**call))


@pytest.mark.parametrize("kind", ["states", "vectors", "tokens"])
def test_the_reference_sweep_refuses_overrides_at_tokens(small, rng, kind):
    model, call = random_model(BertModel, small), arguments(small, rng)
    override = {
        "states": patching.replaced(small, "hidden_states", {0: np.ones(12)}),
        "vectors": patching.replaced(small, "keys", {"0.1": np.ones(4)}),
        "tokens": patching.at_tokens(overrides.zero(small, ["0.1"]), np.ones((1, 1))),
    }[kind]
    with pytest.raises(OverrideError, match="tokens or sites cannot be swept"):
        reference.sweep(model, [(range(4), call)], [override], readouts.hidden_state)


def test_a_patch_for_another_batch_is_refused(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    patch = patching.patched(small, "hidden_states", [1], model(**call))
    shorter = {name: array[:, :7] for name, array in call.items()}
    with pytest.raises(OverrideError, match="same number of tokens"):
        model(**shorter, overrides=patch)


@pytest.mark.parametrize("family", ["albert", "deberta-v2", "modernbert", "mpnet", "distilbert"])
def test_every_site_of_every_family_in_the_engine(family, rng):
    config = config_of(family)
    model = BertModel(config, jax.random.key(3))
    lengths = [5, 9, 3, 7]
    texts, sources = encodings(config, rng, lengths), encodings(config, rng, lengths)
    spans = [rng.integers(-1, 2, length) for length in lengths]
    spans[0][:2] = [0, 1]
    layers = config.num_hidden_layers
    ablations = [
        Ablation(f"{site} {layer}", (Change(layer, 0, "patched", site=site, at=(layer % 2,)),))
        for site in SWEPT
        for layer in range(layers)
    ]
    found = bertjax.sweep(
        model,
        texts,
        ablations,
        readouts.pooled if model.pooler else first,
        sources=sources,
        spans=spans,
        progress=False,
    )
    longest = max(lengths)
    padded = np.array([[*span, *[-1] * (longest - len(span))] for span in spans])
    source = model(**collate(sources))
    overrides = stack([to_overrides(config, one, source=source, spans=padded) for one in ablations])
    expected = reference.run(
        model, model.inputs(**collate(texts)), overrides, readouts.pooled if model.pooler else first
    )
    assert largest_difference(found.outputs, expected) < 2e-5
    assert largest_difference(found.outputs, np.broadcast_to(found.base, found.outputs.shape)) > 1e-4


def first(output):
    return output.last_hidden_state[:, 0]


def test_families_record_what_they_compute(rng):
    for family in ("modernbert", "albert"):
        config = config_of(family)
        model = BertModel(config, jax.random.key(1))
        record = model(**family_arguments(config, rng)).record
        before = config.architecture.layers[0].norms == "before"
        for number in range(config.num_hidden_layers - 1):  # the last hidden states are normalised once more
            stream = record.hidden_states[number] + record.attention_outputs[number]
            if before:
                after = stream + record.feed_forward_outputs[number]
                assert largest_difference(after, record.hidden_states[number + 1]) < 1e-5


@pytest.fixture(scope="module")
def minilm():
    return bertjax.load(MINILM), Tokenizer.from_pretrained(MINILM)


def torch_patches(texts, sources, cells):
    """Patches by hooks in PyTorch: the mean vector of each text for each cell, by (site, layer, head, position)."""
    model = AutoModel.from_pretrained(locate(MINILM), attn_implementation="eager").eval()
    layers = model.encoder.layer
    modules = {
        "queries": lambda layer: layers[layer].attention.self.query,
        "keys": lambda layer: layers[layer].attention.self.key,
        "values": lambda layer: layers[layer].attention.self.value,
        "head_outputs": lambda layer: layers[layer].attention.output.dense,
        "attention_outputs": lambda layer: layers[layer].attention.output.dense,
        "feed_forward_outputs": lambda layer: layers[layer].output.dense,
        "hidden_states": lambda layer: layers[layer],
    }
    takes_input = ("head_outputs", "hidden_states")
    found = []
    with torch.no_grad():
        for text, source in zip(texts, sources, strict=True):
            embeddings = []
            for site, layer, head, position in cells:
                part = slice(None) if head is None else slice(32 * head, 32 * head + 32)
                kept = {}
                module = modules[site](layer)

                def keep(_, inputs, output=None, *, site=site, kept=kept):
                    kept["value"] = (inputs[0] if site in takes_input else output).clone()

                def put(_, inputs, output=None, *, site=site, kept=kept, part=part, position=position):
                    value = (inputs[0] if site in takes_input else output).clone()
                    value[:, position, part] = kept["value"][:, position, part]
                    return (value, *inputs[1:]) if site in takes_input else value

                register = module.register_forward_pre_hook if site in takes_input else module.register_forward_hook
                for hook, encoding in ((keep, source), (put, text)):
                    handle = register(hook)
                    output = model(torch.tensor([encoding.input_ids])).last_hidden_state
                    handle.remove()
                embeddings.append(torch.nn.functional.normalize(output.mean(1), dim=-1)[0].numpy())
            found.append(embeddings)
    return np.array(found).swapaxes(0, 1)


@pytest.mark.integration
def test_patches_of_a_real_model_are_those_of_hooks_in_pytorch(minilm):
    model, tokenizer = minilm
    texts = tokenizer.encode(["A man is eating food.", "Two dogs run across the wide field."])
    sources = tokenizer.encode(["A man is riding food.", "Two cars run across the wide field."])
    assert [len(text) for text in texts] == [len(text) for text in sources]
    sites = [("queries", 3), ("keys", 1), ("values", 7), ("head_outputs", 11), *((name, None) for name in SWEPT[:1])]
    sites += [("attention_outputs", None), ("feed_forward_outputs", None)]
    cells = [(site, layer, head, position) for site, head in sites for layer in (0, 2, 5) for position in (0, 2, 4)]
    spans = [np.arange(len(text)) for text in texts]
    ablations = [
        Ablation(str(number), (Change(layer, head or 0, "patched", site=site, at=(position,)),))
        for number, (site, layer, head, position) in enumerate(cells)
    ]
    found = bertjax.sweep(
        model, texts, ablations, readouts.sentence_embedding, sources=sources, spans=spans, progress=False
    )
    assert largest_difference(found.outputs, torch_patches(texts, sources, cells)) < 1e-5
    assert np.abs(found.outputs - found.base[None]).max() > 1e-3


def run_hooked(model, ids, hooks):
    handles = [register(hook) for register, hook in hooks]
    output = model(ids).last_hidden_state
    for handle in handles:
        handle.remove()
    return output


def torch_path(text, source, sender, receiver, site):
    """The mean vector of a text after a path is patched by hooks; all other heads of later layers are frozen."""
    model = AutoModel.from_pretrained(locate(MINILM), attn_implementation="eager").eval()
    layers, (first, head), (last, reader) = model.encoder.layer, sender, receiver
    ids = {"target": torch.tensor([text.input_ids]), "source": torch.tensor([source.input_ids])}
    kept: dict = {"target": {}, "source": {}}
    projection = getattr(layers[last].attention.self, {"queries": "query", "keys": "key", "values": "value"}[site])
    part, reading = (slice(32 * number, 32 * number + 32) for number in (head, reader))

    def keeps(which):
        for number, layer in enumerate(layers):
            dense = layer.attention.output.dense
            yield (
                dense.register_forward_pre_hook,
                lambda _, inputs, number=number: kept[which].__setitem__(number, inputs[0].clone()),
            )

    def freeze(number):
        def hook(_, inputs):
            value = kept["target"][number].clone() if number > first else inputs[0].clone()
            if number == first:
                value[..., part] = kept["source"][first][..., part]
            return (value,)

        return layers[number].attention.output.dense.register_forward_pre_hook, hook

    def put(_, inputs, output):
        value = output.clone()
        value[..., reading] = seen["value"][..., reading]
        return value

    seen = {}
    with torch.no_grad():
        for which in ("target", "source"):
            run_hooked(model, ids[which], keeps(which))
        hooks = [freeze(number) for number in range(first, len(layers))]
        hooks.append((projection.register_forward_hook, lambda _, inputs, output: seen.update(value=output.clone())))
        run_hooked(model, ids["target"], hooks)
        output = run_hooked(model, ids["target"], [(projection.register_forward_hook, put)])
        return torch.nn.functional.normalize(output.mean(1), dim=-1)[0].numpy()


@pytest.mark.parametrize("site", RECEIVING)
def test_paths_are_those_of_hooks_in_pytorch(minilm, site):
    model, tokenizer = minilm
    (text,), (source,) = (tokenizer.encode([each]) for each in ("Two dogs run on a field.", "Two cars run on a field."))
    receivers = {site: ["4.2"]}
    senders, found = patch_paths(
        model, collate([text]), collate([source]), receivers, readouts.sentence_embedding, senders=["0.3", "3.7"]
    )
    assert senders == [(0, 3), (3, 7)]
    for sender, outputs in zip(senders, found, strict=True):
        assert largest_difference(outputs[0], torch_path(text, source, sender, (4, 2), site)) < 1e-5
    base = np.asarray(model(collate([text])).sentence_embedding)
    assert largest_difference(found[:, 0], base.repeat(2, 0)) > 1e-5


def test_a_straight_path_through_one_layer_is_the_head_s_alone(small, rng):
    """Without feed-forward layers between, and with all readers named, what comes through is the sender's patch."""
    model, call = random_model(BertModel, small), arguments(small, rng)
    other = dict(call, input_ids=rng.integers(0, small.vocab_size, call["input_ids"].shape))
    receivers = {site: ["1.0", "1.1", "1.2"] for site in RECEIVING}
    _, found = patch_paths(model, call, other, receivers, readouts.hidden_state, senders=["0.1"])
    source, base = model(**other), model(**call)
    sent = model(**call, overrides=overrides.patched_outputs(small, ["0.1"], source))
    through = model(**call, overrides=patching.patched(small, "attention_outputs", [1], sent))
    assert largest_difference(found[0], through.last_hidden_state) < CLOSE
    assert largest_difference(found[0], base.last_hidden_state) > 1e-4
    senders, all_of_them = patch_paths(model, call, other, receivers, readouts.hidden_state)
    assert senders == [(0, 0), (0, 1), (0, 2)]
    assert largest_difference(all_of_them[1], found[0]) < CLOSE
    frozen = patch_paths(model, call, other, receivers, readouts.hidden_state, freeze_feed_forward=True)[1]
    assert largest_difference(frozen, all_of_them) > 1e-5


@pytest.mark.parametrize(("family", "freeze"), [("albert", False), ("modernbert", True)])
def test_what_comes_before_the_sender_is_as_it_was(family, freeze, rng):
    """A sender's run, written down as the paper has it: what comes after it is kept, nothing else."""
    config = config_of(family, num_hidden_layers=4)
    model, call = random_model(BertModel, config), family_arguments(config, rng)
    other = dict(call, input_ids=rng.integers(0, config.vocab_size, call["input_ids"].shape))
    base, source, receivers = model(**call), model(**other), {"queries": ["3.2"], "values": ["2.0", "3.2"]}
    senders, found = patch_paths(
        model, call, other, receivers, readouts.hidden_state, senders=["0.1", "2.2"], freeze_feed_forward=freeze
    )
    for (layer, head), output in zip(senders, found, strict=True):
        later = [after for after in overrides.every_head(config) if after[0] > layer]
        parts = [
            overrides.patched_outputs(config, heads, run) for heads, run in (([(layer, head)], source), (later, base))
        ]
        if freeze:
            parts.append(patching.patched(config, "feed_forward_outputs", range(layer, 4), base))
        between = model(**call, overrides=overrides.combine(*parts))
        read = [patching.patched(config, site, heads, between) for site, heads in receivers.items()]
        expected = model(**call, overrides=overrides.combine(*read)).last_hidden_state
        assert largest_difference(output, expected) < 1e-5
        assert largest_difference(output, base.last_hidden_state) > 1e-4


def test_senders_of_all_layers_are_run_by_the_same_programs(rng):
    config = BertConfig(**SIZES["three heads"] | {"num_hidden_layers": 4})
    model, call = random_model(BertModel, config), arguments(config, rng)
    other = dict(call, input_ids=rng.integers(0, config.vocab_size, call["input_ids"].shape))

    def compiled_for(sender):
        before = pretrained._run._cache_size() + reference._run._cache_size()
        for freeze in (False, True):
            receivers, readout = {"values": ["3.1"]}, readouts.hidden_state
            patch_paths(model, call, other, receivers, readout, senders=[sender], freeze_feed_forward=freeze)
        return pretrained._run._cache_size() + reference._run._cache_size() - before

    assert compiled_for("0.2") == 4  # alone, between without and with frozen feed-forward layers, patched
    assert [compiled_for(sender) for sender in ("1.1", "2.0", "2.2")] == [0, 0, 0]


def test_sources_of_another_shape_are_refused(small, rng):
    model, call = random_model(BertModel, small), arguments(small, rng)
    for other in (
        {name: array[:1] for name, array in call.items()},
        {name: array[:, :5] for name, array in call.items()},
    ):
        for batch, sources in ((call, other), (other, call)):
            with pytest.raises(
                InputError, match=r"as many texts of as many tokens as the batch's \[\d, \d\], found \[\d"
            ):
                patch_paths(model, batch, sources, {"keys": ["1.0"]}, readouts.hidden_state)


@pytest.mark.parametrize(
    ("receivers", "senders", "message"),
    [
        ({}, None, "name receivers"),
        ({"queries": []}, None, "name receivers: heads"),
        ({"queries": iter(())}, None, "name receivers: heads"),
        ({"queries": np.array(["1.0", "9.0"])}, None, "there is no head 9.0"),
        ({"weights": ["1.0"]}, None, "a receiver"),
        ({"queries": ["1.0"]}, ["1.1"], "no receiver comes after head 1.1"),
        ({"queries": ["9.0"]}, None, "there is no head 9.0"),
    ],
)
def test_paths_that_cannot_be_are_refused(small, rng, receivers, senders, message):
    model, call = random_model(BertModel, small), arguments(small, rng)
    with pytest.raises((OverrideError, InputError), match=message):
        patch_paths(model, call, call, receivers, readouts.hidden_state, senders=senders)
