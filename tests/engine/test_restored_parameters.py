"""Runs with parameters of another model equal that model in PyTorch, share prefixes, and are resumed exactly."""

import copy
import re

import pytest

from bertjax import BertModel, collate
from bertjax.checkpoints import architecture
from bertjax.engine import compiled_steps, sizes
from bertjax.engine import run as engine
from bertjax.engine.journal import count_parts
from bertjax.engine.plan import make_plan
from bertjax.engine.reference import run as run_reference
from bertjax.errors import InputError, OutputError, OverrideError, SweepInterrupted
from bertjax.interventions import MODES, readouts, stack, to_overrides
from bertjax.interventions import ablations as ab
from bertjax.interventions.parameters import check_source_model
from tests.engine_checks import CLOSE, sum_over_tokens
from tests.family_models import config_of, saved_by_torch
from tests.interruptions import TINY_PARTS, StopAfter
from tests.tiny_models import encodings, largest_difference, random_model

PARTS = ("layer", "attention", "feed_forward")


def restored(layer, part="layer", head=0):
    return ab.Change(layer, head, "restored", site=f"{part}_parameters")


def units(config):
    """Each layer, part and head; all layers up to one; sets of different parts, and with an ablated head."""
    layers, heads = range(config.num_hidden_layers), range(config.num_attention_heads)
    sets = [(restored(layer, part),) for layer in layers for part in PARTS]
    sets += [(restored(layer, "head", head),) for layer in layers for head in heads]
    sets += [tuple(restored(layer) for layer in range(last + 1)) for last in layers]
    sets += [
        (restored(0, "head", 0), restored(0, "head", 2), restored(0, "feed_forward"), restored(1, "attention")),
        (restored(0, "attention"), ab.Change(0, 1, "zero"), ab.Change(1, 0, "zero")),
    ]
    return [ab.Ablation(str(number), changes) for number, changes in enumerate(sets)]


def swap(model, source, changes, config):
    """Replace tensors of a PyTorch model by those of another, by their names; set heads to zero."""
    ours, theirs, width = model.state_dict(), source.state_dict(), config.head_dim
    for change in changes:
        rows = slice(change.head * width, (change.head + 1) * width)
        for name, tensor in ours.items():
            found = re.search(rf"layers?\.{change.layer}\.(.*)", name)
            if found is None:
                continue
            is_output = re.search(r"attention\.output\.dense\.weight|attn\.(o|Wo)\.weight", name) is not None
            if change.mode == "zero":
                if is_output:
                    tensor[:, rows] = 0
            elif change.site == "head_parameters":
                if is_output:
                    tensor[:, rows] = theirs[name][:, rows]
                elif "Wqkv" in name:
                    three = (3, len(tensor) // 3)
                    tensor.unflatten(0, three)[:, rows] = theirs[name].unflatten(0, three)[:, rows]
                elif re.search(r"(query|key|value|_proj|attn\.[qkv])\.(weight|bias)$", name):
                    tensor[rows] = theirs[name][rows]
            else:
                part = "attention" if "att" in found[1] else "feed_forward"
                if change.site in ("layer_parameters", f"{part}_parameters"):
                    tensor[:] = theirs[name]


CASES = [
    ("bert", 0, sum_over_tokens),
    ("mpnet", 0, readouts.hidden_state),
    ("deberta-v2", 0, readouts.hidden_state),  # distances go through the projections of each layer
    ("deberta-v2", 1, sum_over_tokens),  # distances have their own projections
    ("modernbert", 0, readouts.hidden_state),  # pre-norm, gated, biases left out
    ("modernbert", 1, readouts.hidden_state),
]


@pytest.mark.parametrize(("family", "size", "readout"), CASES)
def test_runs_equal_a_torch_model_with_swapped_tensors(family, size, readout, rng, tmp_path, x64):
    torch = pytest.importorskip("torch")
    from transformers import AutoModel

    config = config_of(family, size)
    paths = [saved_by_torch(family, architecture.BODY, tmp_path / str(seed), size, seed) for seed in (1, 2)]
    model, source = (BertModel.from_pretrained(path, dtype="float64") for path in paths)
    texts, runs = encodings(config, rng, [3, 11, 1, 5]), units(config)
    options = {"row_length": 23, "tokens_at_once": 69, "progress": False}
    found = engine.sweep(model, texts, runs, readout, source_model=source, **options)
    batch = {name: torch.as_tensor(array) for name, array in collate(texts).items()}
    if family in ("mpnet", "modernbert"):  # which have no segments
        del batch["token_type_ids"]
    torch_models = [AutoModel.from_pretrained(path).double().eval() for path in paths]
    close = CLOSE["float64" if family in ("bert", "mpnet") else "float32"]  # PyTorch computes positions in float32
    for run, outputs in zip([ab.Ablation("base", ()), *runs], [found.base, *found.outputs], strict=True):
        one, other = copy.deepcopy(torch_models[0]), torch_models[1]
        swap(one, other, run.changes, config)
        with torch.no_grad():
            expected = one(**batch).last_hidden_state.numpy()
        is_first = readout is sum_over_tokens
        real, expected = (None, expected[:, 0]) if is_first else (batch["attention_mask"], expected)
        assert largest_difference(outputs, expected, real) <= close, run.changes


@pytest.fixture
def config():
    return config_of("bert", 0)


def chains(config):
    layers = range(config.num_hidden_layers)
    single = [ab.Ablation(str(layer), (restored(layer),)) for layer in layers]
    return [*single, *[ab.Ablation(f"to {last}", tuple(map(restored, range(last + 1)))) for last in layers]]


def test_the_sweep_computes_the_layers_of_the_trie(config, rng, monkeypatch):
    """A restored layer starts from the state before it, and sets of layers start from their prefixes."""
    model, source = (random_model(BertModel, config, seed=seed) for seed in (1, 2))
    texts, steps = encodings(config, rng, [16] * 12), []
    apply_layer = compiled_steps.apply_layer
    monkeypatch.setattr(
        compiled_steps, "apply_layer", lambda *args, **more: steps.append(1) or apply_layer(*args, **more)
    )
    options = {"row_length": 16, "tokens_at_once": 96, "one_per_row": True, "progress": False}
    engine.sweep(model, texts, chains(config), sum_over_tokens, source_model=source, **options)
    layers = config.num_hidden_layers
    of_trie = layers + sum(range(1, layers + 1)) + sum(range(1, layers))
    assert sum(make_plan(config, chains(config)).states()) == of_trie
    assert of_trie == 12 < layers * (1 + 2 * layers)  # of single runs
    assert len(steps) == 2 * of_trie  # blocks of 6 texts are full


def test_a_model_restored_from_itself_does_not_change(config, rng):
    model = random_model(BertModel, config)
    found = engine.sweep(
        model,
        encodings(config, rng, [3, 11, 5]),
        units(config)[:-1],
        sum_over_tokens,
        source_model=model,
        progress=False,
    )
    assert (found.outputs == found.base).all()


def test_an_interrupted_sweep_resumes_with_the_same_bytes(config, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    model, source, other = (random_model(BertModel, config, seed=seed) for seed in (1, 2, 3))
    texts = encodings(config, rng, [3, 11, 5, 7, 2, 9])

    def run(source=source, journal=tmp_path / "journal", **more):
        sized = {"row_length": 16, "tokens_at_once": 48}
        options = {"source_model": source, "journal": journal, "progress": False, **sized, **more}
        return engine.sweep(model, texts, units(config), sum_over_tokens, **options).outputs

    whole = run(journal=None)
    with pytest.raises(SweepInterrupted):
        run(progress=StopAfter(0.6))
    assert count_parts(tmp_path / "journal") > 1
    with pytest.raises(OutputError, match="source model"):
        run(other)
    assert run().tobytes() == whole.tobytes()


def test_the_memory_of_both_models_is_counted(config, rng):
    model = random_model(BertModel, config)
    texts = encodings(config, rng, [5])
    bytes_of = [
        engine.runner_bytes(engine.make_runner(one, sizes.choose_sizes(one)), one)
        for runs in (ab.single_heads(config), chains(config))
        for one in [engine.make_sweep_input(model, texts, runs, sum_over_tokens, source_model=model)]
    ]
    assert bytes_of[1] - bytes_of[0] == config.num_hidden_layers * 3 * config.hidden_size**2 * 4


def test_changes_of_parameters_are_checked(config, rng, unchecked):
    for wrong, message in (
        ({"mode": "restored"}, "give site= one of layer_parameters"),
        ({"mode": "zero", "site": "layer_parameters"}, "give mode='restored'"),
        ({"mode": "restored", "site": "layer_parameters", "share": 0.5}, "leave share and at out"),
        ({"mode": "restored", "site": "layer_parameters", "at": (1,)}, "leave share and at out"),
        ({"mode": "restored", "site": "attention_parameters", "head": 1}, "belong to a whole layer"),
    ):
        with pytest.raises(InputError, match=message):
            ab.Change(**{"layer": 0, "head": 0, **wrong})
    assert not {"restored", "redrawn"} & set(MODES)  # these are for activations
    model, run = random_model(BertModel, config), chains(config)[0]
    with pytest.raises(OverrideError, match="give source_model="):
        engine.sweep(model, encodings(config, rng, [3]), [run], sum_over_tokens, progress=False)
    with pytest.raises(OverrideError, match="changes parameters"):
        run_reference(model, {"input_ids": [[1]]}, stack([to_overrides(config, run)]), sum_over_tokens)
    with pytest.raises(OverrideError, match="there is no layer 3"):
        make_plan(config, [ab.Ablation("3", (restored(3),))])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            ("bert", {"intermediate_size": 9}),
            r"intermediate.bias of the base model is float32 \[9\], expected float32 \[7\]",
        ),
        (("bert", {"num_hidden_layers": 2}), "has 2 layers, the model 3: give one of the same shape"),
        (("electra", {}), "is of family ELECTRA, the model of BERT"),
        (("bert", {"hidden_act": "relu"}), "layer 0 of the base model differs in activation"),
    ],
)
def test_other_source_models_are_refused(config, source, message):
    family, changes = source
    model, other = random_model(BertModel, config), random_model(BertModel, config_of(family, 0, **changes))
    with pytest.raises(InputError, match=message):
        check_source_model(model, other)


def test_layers_that_share_parameters_are_not_restored():
    model = random_model(BertModel, config_of("albert", 0))
    with pytest.raises(InputError, match="share parameters: no layer can be restored"):
        check_source_model(model, model)
