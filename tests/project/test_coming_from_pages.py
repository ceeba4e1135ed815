"""Pages for people who come from elsewhere: the same number both ways, as the reader runs it, and in float64."""

import re

import numpy as np
import pytest

import bertjax
from bertjax import overrides, patching
from tests.markdown_pages import DOCS, run_snippets
from tests.tiny_models import SIZES, arguments, largest_difference

PRINTED = 1.5e-5  # numbers are printed with five decimals, of float32
CLOSE = 1e-12

pytestmark = [pytest.mark.integration, pytest.mark.needs_torch]


@pytest.fixture
def read(tmp_path, monkeypatch, capsys):
    """Run a page as its reader does: its names, and for each printed line the numbers, or words, on it."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        page = DOCS / "coming-from" / f"{name}.md"
        names = run_snippets(page.read_text(), page)
        lines = re.findall(r"^([^:\n]+): (.+)$", capsys.readouterr().out, re.MULTILINE)
        return names, {label: rest.split() for label, rest in lines}

    return run


def check_numbers(printed, labels):
    """Each label once, the same number twice, and none of them that of another change."""
    assert [*printed] == labels
    pairs = {label: [float(number) for number in numbers] for label, numbers in printed.items()}
    for label, (theirs, ours) in pairs.items():
        assert abs(theirs - ours) < PRINTED, label
    return {label: ours for label, (_, ours) in pairs.items()}


@pytest.fixture
def twins(tmp_path, rng, x64):
    """A tiny random model of transformers in float64, the same of bertjax, a padded batch and another text's."""
    import torch
    from transformers import BertConfig, BertModel

    def make(form):
        torch.manual_seed(int(rng.integers(2**31)))
        reference = BertModel(BertConfig(**SIZES["three heads"], attn_implementation=form)).double().eval()
        reference.save_pretrained(tmp_path / "tiny")
        model = bertjax.load(tmp_path / "tiny", dtype="float64")
        batch = arguments(model.config, rng, batch=4, tokens=7)
        other = batch | {"input_ids": rng.integers(0, 41, (4, 7))}
        as_tensors = [{name: torch.tensor(array) for name, array in one.items()} for one in (batch, other)]
        return reference, model, *as_tensors

    return make


def apart(theirs, output, batch):
    return largest_difference(output.last_hidden_state, theirs, batch["attention_mask"])


def test_head_mask_and_prune_heads(read, twins, rng):
    import torch

    names, printed = read("transformers")
    labels = ["one mask", "without 2.7", "without 5.5", "gradient at 2.7", "pruned", "saved and loaded"]
    numbers = check_numbers(printed, labels)
    assert numbers["saved and loaded"] == numbers["pruned"]
    assert len({*numbers.values()}) == 5
    assert bertjax.load("smaller").config.pruned_heads == ((2, (7,)), (5, (0,)))

    reference, model, batch, _ = twins("masked")
    mask = torch.tensor(rng.uniform(size=(2, 3)))
    with torch.no_grad():
        theirs = reference(**batch, head_mask=mask).last_hidden_state
        pruned = names["without_heads"](reference, {0: [1], 1: [0, 2]})(**batch, head_mask=torch.ones(2, 3).double())
        flat = reference(**batch, head_mask=mask[0].expand(2, 3)).last_hidden_state
    assert apart(theirs, model(batch, overrides=overrides.factor(model.config, mask)), batch) < CLOSE
    assert apart(theirs, model(batch), batch) > 1e-3
    same_in_all = overrides.factor(model.config, np.broadcast_to(mask[0], (2, 3)))
    assert apart(flat, model(batch, overrides=same_in_all), batch) < CLOSE
    without = overrides.zero(model.config, ["0.1", "1.0", "1.2"])
    assert apart(pruned.last_hidden_state, model(batch, overrides=without), batch) < CLOSE


def test_a_head_mask_of_five_axes_is_fixed_edges(twins):
    """As version 4 had it, `[layers, batch, heads, query, key]`: the row of an edge at 0 does not sum to 1."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def masked_edges(module, query, key, value, attention_mask, head_mask, **options):
        weights = (query @ key.transpose(2, 3) * module.scaling + attention_mask).softmax(-1)
        return (weights * head_mask[module.layer_idx] @ value).transpose(1, 2), weights

    AttentionInterface.register("masked edges", masked_edges)
    AttentionMaskInterface.register("masked edges", eager_mask)
    reference, model, batch, _ = twins("masked edges")
    mask = torch.ones(2, 4, 3, 7, 7).double()
    mask[1, 0, 2, 0, 3], mask[0, 0, 1, 4, 4] = 0, 0
    with torch.no_grad():
        theirs = reference(**batch, head_mask=mask).last_hidden_state
    edges = overrides.fixed_edges(model.config, {(1, 2, 0, 3): 0.0, (0, 1, 4, 4): 0.0}, 0)
    assert apart(theirs, model(batch, overrides=edges), batch) < CLOSE
    assert apart(theirs, model(batch), batch) > 1e-6


def put(index, value):
    """A hook of TransformerLens that writes a value, or a function of the activation, at an index."""

    def hook(values, point):
        values[index] = value(values, point) if callable(value) else value
        return values

    return hook


def test_hooks_of_transformer_lens(read, twins):
    names, printed = read("transformer-lens")
    assert [printed.pop(f"cached {point}") for point in ("hook_z", "hook_pattern")] == [["True"]] * 2
    labels = ["hook_z", "hook_pattern", "patched head", "patched stream"]
    numbers = check_numbers(printed, [*labels, "lowest of 72 heads", "highest of 72 heads"])
    assert len({*numbers.values()}) == 6

    reference, model, batch, other = twins("hooked")
    run, cache, config, source = names["run_with_hooks"], {}, model.config, model(other)
    run(reference, other, cache=cache)
    points = {"z": source.record.head_outputs, "q": source.record.queries, "pattern": source.attentions}
    for point, ours in points.items():
        real = np.asarray(batch["attention_mask"])
        where = real if point != "pattern" else np.broadcast_to(real[:, None], (4, 3, 7))
        for layer in range(2):
            assert largest_difference(ours[layer], cache[f"blocks.{layer}.attn.hook_{point}"], where) < CLOSE

    every, head, real = slice(None), (slice(None), slice(None), 2), batch["attention_mask"][:, None].double()
    cases = {
        "blocks.1.attn.hook_z": (put(head, lambda z, _: z[head] / 2), overrides.factor(config, ["1.2"], 0.5)),
        "blocks.0.attn.hook_z": (
            put(head, lambda _, point: cache[point.name][head]),
            overrides.patched_outputs(config, ["0.2"], source),
        ),
        "blocks.0.attn.hook_pattern": (
            put((every, 1), real / real.sum(-1, keepdim=True)),
            overrides.uniform(config, ["0.1"]),
        ),
        "blocks.1.attn.hook_q": (
            put((every, [0], 2), lambda _, point: cache[point.name][:, [0], 2]),
            patching.patched(config, "queries", ["1.2"], source, tokens=[0]),
        ),
        "blocks.1.hook_resid_pre": (
            put((every, 0), lambda _, point: cache[point.name][:, 0]),
            patching.patched(config, "hidden_states", [1], source, tokens=[0]),
        ),
    }
    for point, (hook, change) in cases.items():
        theirs = run(reference, batch, [(point, hook)])
        assert apart(theirs, model(batch, overrides=change), batch) < CLOSE, point
        assert apart(theirs, model(batch), batch) > 1e-6, point


def test_a_loop_in_pytorch(read, twins, rng):
    import torch

    names, printed = read("pytorch-loop")
    assert printed.pop("kept output") == printed.pop("rows of ids") == ["True"]
    labels = ["zero", "mean", "patched", "lowest of 72 heads", "highest of 72 heads"]
    numbers = check_numbers(printed, labels)
    assert len({*numbers.values()}) == 5

    reference, model, batch, other = twins("eager")
    changed_head, run, config, real = names["changed_head"], names["run"], model.config, batch["attention_mask"].bool()
    kept = {}
    for key, one in (("own", batch), ("other", other)):
        with changed_head(reference, 1, 2, lambda output, key=key: kept.setdefault(key, output.clone())):
            run(reference, one)
    mean, vector = kept["own"][real].mean(0), torch.tensor(rng.normal(size=4))
    means = bertjax.mean_head_outputs(model, batch)
    cases = {
        "factor": (lambda output: 0.3 * output, overrides.factor(config, ["1.2"], 0.3)),
        "mean": (lambda output: mean.expand_as(output), overrides.mean(config, ["1.2"], means)),
        "patched": (lambda output: kept["other"], overrides.patched_outputs(config, ["1.2"], model(other))),
        "replaced": (
            lambda output: vector.expand_as(output),
            patching.replaced(config, "head_outputs", {"1.2": vector}),
        ),
    }
    for name, (change, override) in cases.items():
        with changed_head(reference, 1, 2, change):
            theirs = run(reference, batch)
        assert apart(theirs, model(batch, overrides=override), batch) < CLOSE, name
        assert apart(theirs, model(batch), batch) > 1e-6, name
    assert apart(run(reference, batch), model(batch), batch) < CLOSE  # no hook is left
