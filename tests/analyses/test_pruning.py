"""Orders of removal by their definitions: one half of the examples chooses them, the other half scores them."""

import itertools
import json
import re

import numpy as np
import pytest

import bertjax
from bertjax import BertForSequenceClassification
from bertjax.analyses import Prune, head_gradients, prune
from bertjax.analyses.prune import ORDERS, ablated_losses, gradient_costs, heads_left, magnitudes, order_by
from bertjax.cli import main
from bertjax.engine.plan import make_plan
from bertjax.errors import InputError, OutputError, SweepInterrupted
from bertjax.interventions import (
    Ablation,
    Change,
    ablation,
    every_head,
    one_of_layer,
    overrides,
    remove_heads,
    single_heads,
)
from bertjax.jobs.job import load_job
from bertjax.jobs.settings import for_this_device
from bertjax.plots import Curve, make_curves
from bertjax.statistics import compute_statistics, summarise
from tests.factories import make_config, make_embedder, write_pairs
from tests.family_models import config_of
from tests.job_factories import settings_of
from tests.schema_checks import check_by_jsonschema
from tests.task_factories import TASK_FACTORIES, example_losses, load_task_job
from tests.tiny_models import random_model

FEW = {"strengths": (3.0, 0.0, 1000.0), "gate_steps": 40, "gate_rate": 0.3}  # in no order

SHOWN_AS = bertjax.METRICS["accuracy"].measure


@pytest.fixture(scope="module")
def pruned_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pruning")
    model, data = make_embedder(folder / "model"), write_pairs(folder / "pairs.tsv", 40)
    found = bertjax.prune(
        model, "mrpc", data=data, output=folder / "pruned", progress=False, orders=ORDERS, draws=3, **FEW
    )
    return folder, model, data, found


def halves(pruned_model):
    _, model, data, _ = pruned_model
    return prune._halves(load_job(for_this_device(settings_of(model=str(model), task="mrpc", data=str(data)))), Prune())


def test_an_order_removes_the_lowest_costs_first():
    worth = np.random.default_rng(0).permutation(20)
    heads = [(layer, head) for layer in range(4) for head in range(5)]
    calls = []

    def costs(gone, left):
        calls.append((tuple(gone), tuple(left)))
        return np.array([worth[heads.index(head)] + 100 * ((head[1] == 0) and (0, 1) in gone) for head in left])

    found = order_by(costs, heads, 0.25)
    assert sorted(found) == heads
    assert [len(gone) for gone, _ in calls] == [0, 5, 10, 15]
    for gone, left in calls:
        assert {*gone} | {*left} == {*heads}
        assert list(gone) == found[: len(gone)]
    first = sorted(heads, key=lambda head: worth[heads.index(head)])[:5]
    assert found[:5] == first
    assert len(order_by(costs, heads, 0.001)) == 20  # one at a time


def test_points_end_without_heads():
    assert heads_left(144) == [130, 115, 101, 86, 72, 58, 43, 29, 14, 0]
    assert heads_left(3, 10)[-1] == 0
    for heads, points in ((3, 10), (72, 150), (6, 40)):
        left = heads_left(heads, points)
        assert left == sorted({*left}, reverse=True)
        assert left[0] < heads


@pytest.mark.parametrize("task", ["mlm", "question-answering", "embedder"])
def test_exact_losses_are_those_of_the_task(task, tmp_path):
    job = load_task_job(task, tmp_path)
    runs = [ablation(job.model.config, heads, "zero") for heads in (["0.0"], ["0.1", "1.2"])]
    found = ablated_losses(job.model, job.encoded, runs)
    base = head_gradients(job.model, job.encoded).losses
    np.testing.assert_allclose(found[0], base, rtol=1e-4, atol=1e-6)
    assert np.abs(found[1:] - found[0]).max() > 1e-5
    objective, texts = job.encoded.objective, job.encoded
    for run, name in enumerate(runs, 1):
        swept = bertjax.sweep(
            job.model,
            [(text,) for text in texts.encodings],
            [name],
            objective.readout,
            at=texts.at,
            targets=texts.targets,
            progress=False,
        )
        np.testing.assert_allclose(found[run], example_losses(texts, swept.outputs[0]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", ["zero", "uniform"])
def test_gradients_after_removals_are_slopes_there(mode, tmp_path):
    job = load_task_job("embedder", tmp_path, mode)
    gone = [(0, 1), (1, 0)]
    found = head_gradients(job.model, job.encoded, mode, gone=gone)
    names = [(layer, head) for layer, head in every_head(job.model.config)]
    whole = ablated_losses(job.model, job.encoded, [ablation(job.model.config, gone, mode)])[1]
    np.testing.assert_allclose(found.losses, whole, rtol=1e-4, atol=1e-6)
    shares = (-0.05, 0.05)
    for place, head in enumerate(names):
        if head in gone:
            continue
        changed = [
            Ablation("near", (*(Change(*one, mode) for one in gone), Change(*head, mode, share))) for share in shares
        ]
        low, high = ablated_losses(job.model, job.encoded, changed)[1:]
        slopes = (high - low) / 0.1
        np.testing.assert_allclose(found.changes[place], slopes, atol=0.03 * np.abs(found.changes).max())
    costs = gradient_costs(job.model, job.encoded, mode, None)(gone, [(0, 0), (1, 2)])
    expected = [np.abs(found.changes[names.index(head)]).mean() for head in ((0, 0), (1, 2))]
    np.testing.assert_allclose(costs, expected)


def test_magnitudes_are_norms_of_the_map_of_a_head():
    model = random_model(BertForSequenceClassification, make_config())
    found = magnitudes(model)
    assert (*found,) == every_head(model.config)
    for (layer, head), size in found.items():
        attention = model.body.encoder.layers[layer].attention
        product = np.asarray(attention.value.kernel[:, head]) @ np.asarray(attention.output.kernel[head])
        np.testing.assert_allclose(size, np.linalg.norm(product), rtol=1e-5)


def test_the_greedy_order_is_that_of_all_trials(pruned_model):
    """One head at a time, by a loop over the engine."""
    _, model, data, _ = pruned_model
    found = bertjax.prune(model, "mrpc", data=data, mode="zero", progress=False, orders=("greedy",), greedy_share=0.01)
    choosing, _ = halves(pruned_model)
    gone, left = [], [*every_head(choosing.model.config)]
    while left:
        trials = [ablation(choosing.model.config, [*gone, head], "zero") for head in left]
        means = ablated_losses(choosing.model, choosing.encoded, trials)[1:].mean(axis=1)
        gone.append(left.pop(int(means.argmin())))
    assert found.summary["pruning"]["orders"][0]["heads"] == [f"{layer}.{head}" for layer, head in gone]


def test_halves_share_no_example(pruned_model):
    *_, found = pruned_model
    choosing, judging = halves(pruned_model)
    assert not {*choosing.examples.ids} & {*judging.examples.ids}
    assert len(choosing.examples) == len(judging.examples) == 20
    assert [one["id"] for one in found.examples] == list(judging.examples.ids)
    assert found.summary["pruning"]["chosen_on"] == 20


def test_scores_are_those_of_the_removed_sets(pruned_model):
    folder, _, _, found = pruned_model
    summary = found.summary["pruning"]
    names = [order["name"] for order in summary["orders"]]
    assert names == ["gradient", "greedy", "magnitude", "gradient reversed", "random 0", "random 1", "random 2"]
    orders = {order["name"]: order for order in summary["orders"]}
    assert orders["gradient reversed"]["heads"] == orders["gradient"]["heads"][::-1]
    assert len({tuple(order["heads"]) for order in summary["orders"]}) == 7
    rows = {row.name: row for row in found.rows_of()}
    assert len(rows) == len(names) * len(summary["points"]) + sum(gate["run"] is not None for gate in summary["gates"])
    for order, left in itertools.product(summary["orders"], summary["points"]):
        row = rows[order["runs"][str(left)]]
        assert sorted(row.heads) == sorted(order["heads"][: 6 - left])
    none_left = {rows[order["runs"]["0"]].score for order in summary["orders"]}
    assert len(none_left) == 1
    check_by_jsonschema(json.loads((folder / "pruned" / "summary.json").read_text()))


def test_gates_close_the_recorded_sets(pruned_model):
    *_, found = pruned_model
    gates, rows = found.summary["pruning"]["gates"], {row.name: row for row in found.rows_of()}
    assert [gate["strength"] for gate in gates] == [0.0, 3.0, 1000.0]
    for gate in gates:
        if gate["run"] is None:  # all gates are open
            assert gate["left"] == 6
            continue
        row = rows[gate["run"]]
        assert gate["run"] == f"gates {gate['strength']:g}: {gate['left']}"
        assert {*row.heads} == {head for head, share in gate["open"].items() if share < 0.5}
        assert len(gate["open"]) - len(row.heads) == gate["left"]
    nothing = rows[found.summary["pruning"]["orders"][0]["runs"]["0"]].score
    assert gates[-1]["left"] == 0
    assert rows[gates[-1]["run"]].score == nothing
    choosing, _ = halves(pruned_model)
    closed = [head for head, share in gates[0]["open"].items() if share < 0.5]
    runs = [ablation(choosing.model.config, closed, "zero", "closed")]
    without = ablated_losses(choosing.model, choosing.encoded, runs)
    assert without[1].mean() <= without[0].mean() + 1e-6  # a price of nothing keeps what the loss is


@pytest.mark.integration
def test_interrupted_gates_resume_to_the_same(pruned_model, tmp_path, capsys):
    _, model, data, _ = pruned_model
    few = {"orders": ("gates",), **FEW}
    options = {"data": data, "mode": "zero", **few, "output": tmp_path / "job"}

    def stop(done, total):
        if total == 3 and done > 1.5:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted, match="1 of 3 parts are saved"):
        bertjax.prune(model, "mrpc", **options, progress=stop)
    with pytest.raises(OutputError, match="unfinished sweep with other settings"):
        bertjax.prune(model, "mrpc", **options | {"strengths": (0.0, 3.0)}, progress=False)
    steps = []
    again = bertjax.prune(model, "mrpc", **options, progress=lambda done, total: steps.append((done, total)))
    assert min(done for done, total in steps if total == 3) > 1  # the first price was done before
    whole = bertjax.prune(model, "mrpc", **{**options, "output": None}, progress=False)
    assert again.summary["pruning"] == whole.summary["pruning"]
    assert np.array_equal(again.outputs["outputs"], whole.outputs["outputs"])
    assert not [*(tmp_path / "job").glob("pruning-*")]
    assert main(["plot", str(tmp_path / "job"), "--figure", "curves", "-o", str(tmp_path / "gates.png")]) == 0
    assert main(["show", str(tmp_path / "job")]) == 0
    check_by_jsonschema(json.loads((tmp_path / "job" / "summary.json").read_text()))


@pytest.mark.integration
def test_the_command_prints_and_draws_each_order(pruned_model, capsys, tmp_path):
    _, model, data, found = pruned_model
    options = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--mode", "zero", "--no-compile-cache"]
    output = str(tmp_path / "again")
    orders = ["--orders", "gradient", "random", "reversed", "gates", "--draws", "3", "--points", "3"]
    orders += ["--output", output, "--strengths", "0", "50", "--gate-steps", "40"]
    assert main(["prune", *options, *orders]) == 0
    printed = capsys.readouterr().out
    assert "20 examples choose the orders, 20 others score them" in printed
    total = next(line for line in printed.splitlines() if line.strip())
    assert re.match(
        r"about .* in all \(gradient .*, gates .*, judging 17 sets .*\); not counting compilation and", total
    ), total
    score = found.measure().score
    rows = {row.name: row for row in bertjax.read_results(output).rows_of()}
    assert score(rows["gradient 2"].score) in printed
    drawn = [rows[f"random {draw}: 2"].score for draw in range(3)]
    for number in (np.mean(drawn), min(drawn), max(drawn)):
        assert score(number) in printed
    assert "Learned gates" in printed
    assert score(rows["gates 50: 0"].score) in printed
    for figure in ("auto", "curves", "ranking"):
        assert main(["plot", output, "--figure", figure, "-o", str(tmp_path / f"{figure}.png")]) == 0
    assert main(["show", output]) == 0
    assert main(["report", output]) == 0
    bertjax.ablate(model, "mrpc", data=data, output=tmp_path / "heads", progress=False)
    capsys.readouterr()
    assert main(["plot", str(tmp_path / "heads"), "--figure", "curves", "-o", str(tmp_path / "no.png")]) == 2
    assert "give results of bertjax prune" in capsys.readouterr().err


def test_an_interrupted_pruning_resumes_to_the_same_results(pruned_model, tmp_path, monkeypatch):
    _, model, data, _ = pruned_model
    settings = {"data": data, "mode": "zero", "orders": ("greedy",), "output": tmp_path / "job"}
    calls = []

    def stop(done, total):
        calls.append(done)
        if len(calls) > 12:
            raise KeyboardInterrupt

    with pytest.raises(SweepInterrupted):
        bertjax.prune(model, "mrpc", **settings, progress=stop)
    assert [*(tmp_path / "job").glob("pruning-*")]
    losses_of, taken = prune.ablated_losses, []

    def counted(*arguments, progress, **options):
        left_to_do = []
        found = losses_of(*arguments, progress=lambda done, total: left_to_do.append(total - done), **options)
        taken.append(max(left_to_do))
        return found

    monkeypatch.setattr(prune, "ablated_losses", counted)
    again = bertjax.prune(model, "mrpc", **settings, progress=False)
    assert taken[0] == 0  # that was done before
    assert taken[-1] > 0
    whole = bertjax.prune(model, "mrpc", **{**settings, "output": None}, progress=False)
    assert np.array_equal(again.outputs["outputs"], whole.outputs["outputs"])
    assert not [*(tmp_path / "job").glob("pruning-*")]


def test_masked_words_can_score_orders(tmp_path):
    make, write, name = TASK_FACTORIES["mlm"]
    model, data = make(tmp_path / "model"), write(tmp_path / name)
    few = {"orders": ("gradient",), "points": 2}
    found = bertjax.prune(model, "mlm", data=data, mode="mean", **few, progress=False)
    assert [row.name for row in found.rows_of()] == ["gradient 3", "gradient 0"]


@pytest.mark.parametrize(
    ("option", "order"),
    [
        (["--gate-steps", "3"], "gates"),
        (["--strengths", "3"], "gates"),
        (["--greedy-share", "0.5"], "greedy"),
        (["--gradient-share", "0.5"], "gradient"),
        (["--draws", "3"], "random"),
    ],
    ids=lambda arguments: arguments[0] if isinstance(arguments, list) else None,
)
def test_options_of_orders_that_do_not_run_are_refused(option, order, pruned_model, capsys):
    _, model, data, _ = pruned_model
    arguments = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--orders", "magnitude"]
    assert main(["prune", *arguments, *option]) == 2
    assert f"{option[0]} belongs to the order {order}: add {order} to --orders" in capsys.readouterr().err


def test_by_default_only_quick_orders_run_by_zero(pruned_model, tmp_path, capsys):
    _, model, data, _ = pruned_model
    found = bertjax.prune(model, "mrpc", data=data, progress=False)
    names = {order["name"].split()[0] for order in found.summary["pruning"]["orders"]}
    assert names == {"gradient", "magnitude", "random"}
    assert "gates" not in found.summary["pruning"]
    assert found.summary["mode"]["name"] == "zero"
    arguments = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--no-compile-cache"]
    output = ["--draws", "1", "--points", "2", "--output", str(tmp_path / "pruned")]
    assert main(["prune", *arguments, *output]) == 0
    removed = ["--from", str(tmp_path / "pruned"), "--run", "gradient 3", "--output", str(tmp_path / "without")]
    assert main(["remove-heads", *removed]) == 0


def test_the_estimated_time_has_a_part_for_each_order(pruned_model):
    choosing, judging = halves(pruned_model)
    both = Prune(orders=("gradient", "greedy", "gates"), strengths=(1.0, 2.0), gate_steps=10)
    parts = prune._seconds(choosing, judging, both)
    assert list(parts) == ["gradient", "greedy", "gates", "judging 14 sets"]
    assert all(seconds > 0 for seconds in parts.values())
    assert list(prune._seconds(choosing, judging, Prune(orders=("magnitude",), points=3))) == ["judging 3 sets"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"orders": ("best",)}, "order 'best' is not one of gradient"),
        ({"orders": ("greedy", "greedy")}, "an order is named twice"),
        ({"orders": ("random", "reversed")}, "need another order to compare with"),
        ({"orders": ("gates", "reversed")}, "gates have no order that could be reversed"),
        ({"strengths": (1.0, -1.0)}, "strengths must be a list of numbers from 0"),
        ({"strengths": (1.0, 1.0)}, "a strength is given twice"),
        ({"greedy_share": 0.0}, "greedy_share must be a share of all heads"),
        ({"draws": 0}, "draws must be an integer of at least 1"),
    ],
    ids=str,
)
def test_unknown_orders_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Prune(**wrong)


def test_all_heads_of_a_layer_but_one():
    sets = one_of_layer(make_config(), "zero")
    assert [one.name for one in sets] == [f"layer {layer} but {layer}.{head}" for layer in (0, 1) for head in range(3)]
    for one, kept in zip(sets, every_head(make_config()), strict=True):
        heads = {(change.layer, change.head) for change in one.changes}
        assert heads == {(kept[0], head) for head in range(3)} - {kept}


def test_curves_are_drawn_from_all_heads_to_none():
    curves = [Curve("greedy", np.array([[80.0, 50.0]]), np.array([[78.0, 40.0], [82.0, 60.0]]))]
    curves.append(Curve("random", np.array([[70.0, 50.0], [60.0, 50.0]])))
    figure = make_curves(np.array([2, 0]), curves, (4, 84.0), "A model", "", measure=SHOWN_AS)
    axes = figure.axes[0]
    of_gates = Curve("gates", np.array([[60.0]]), left=np.array([3]))
    other = make_curves(np.array([2, 0]), [of_gates], (4, 84.0), "A model", "", measure=SHOWN_AS)
    assert other.axes[0].lines[0].get_xdata().tolist() == [4, 3]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3 and line.get_clip_on()]
    assert [line.get_ydata().tolist() for line in lines] == [[84.0, 80.0, 50.0], [84.0, 65.0, 50.0]]
    assert lines[0].get_xdata().tolist() == [4, 2, 0]
    assert axes.get_xlim() == (4, 0)
    assert len({line.get_color() for line in lines}) == 2
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["greedy", "random\n(mean and range\nof 2 draws)"]


def test_curves_end_at_the_bounds_of_the_metric():
    curve = Curve("greedy", np.array([[98.0, 3.0]]), np.array([[90.0, -20.0], [120.0, 20.0]]))
    figure = make_curves(np.array([2, 0]), [curve], (4, 99.0), "A model", "", measure=SHOWN_AS, bounds=(0.0, 100.0))
    axes = figure.axes[0]
    assert axes.get_ylim() == (0, 100)
    (band,) = axes.collections[0].get_paths()
    assert {90.0, 100.0, 0.0, 20.0} <= {*band.vertices[:, 1]} <= {90.0, 100.0, 0.0, 20.0, 99.0}


def test_the_sentence_has_the_heads_removed_before_a_loss():
    labels = np.arange(40) % 2
    right, wrong = np.eye(2)[labels], np.eye(2)[1 - labels]  # logits
    mixed = np.where(np.arange(40)[:, None] < 38, right, wrong)  # no significant loss
    runs = {"gradient 6": right, "gradient 3": wrong, "gradient 0": right}
    runs |= {"random 0: 6": right, "random 0: 3": mixed, "random 0: 0": wrong}
    runs |= {"random 1: 6": wrong, "random 1: 3": wrong, "random 1: 0": wrong, "gates 1": mixed, "gates 2": wrong}
    found = compute_statistics("accuracy", right, np.stack([*runs.values()]), labels, resamples=100, draws=199)
    orders = [
        {"name": name, "heads": ["0.0"] * 9, "runs": {left: f"{name}{end} {left}" for left in ("6", "3", "0")}}
        for name, end in (("gradient", ""), ("random 0", ":"), ("random 1", ":"))
    ]
    gates = [
        {"run": run, "left": left, "open": dict.fromkeys("abcdefghi", 1.0)}
        for run, left in (("gates 1", 7), ("gates 2", 1), (None, 9))
    ]
    sentence = summarise(found, [*runs], "set", {"orders": orders, "gates": gates})
    start = "Number of heads removed without a significant loss, at q < 0.05 (Accuracy), of 9: "
    assert sentence.startswith(f"{start}gradient 3, random orders 3 (median of 2), learned gates 2; 40 examples ")


# ---- checkpoints without heads ---------------------------------------------------------------------------------------


def outputs(model, batch, change=None):
    return np.asarray(model(batch, overrides=change).sentence_embedding)


def test_removed_heads_are_those_of_mode_zero(pruned_model, tmp_path):
    _, model, *_ = pruned_model
    tokenizer, whole, edited = bertjax.Tokenizer.from_pretrained(model), bertjax.load(model), bertjax.load(model)
    batch, heads = tokenizer(["the cat sat on the mat", "a dog ran"]), ["0.1", "1.0", "1.2"]
    remove_heads(edited, heads)
    expected = outputs(whole, batch, overrides.factor(whole.config, heads, 0.0))
    assert np.abs(expected - outputs(whole, batch)).max() > 1e-3
    np.testing.assert_allclose(outputs(edited, batch), expected, atol=2e-6)
    edited.save_pretrained(tmp_path / "saved", tokenizer)
    np.testing.assert_allclose(outputs(bertjax.load(tmp_path / "saved"), batch), expected, atol=2e-6)
    dead = overrides.factor(whole.config, heads, 7.0)  # outputs of removed heads have no effect
    assert np.array_equal(outputs(edited, batch, dead), outputs(edited, batch))


def test_shared_weights_keep_their_heads(tmp_path):
    shared = bertjax.BertForMaskedLM(config_of("albert"))
    with pytest.raises(InputError, match=r"shares its weights with 1\.0"):
        remove_heads(shared, ["0.0"])
    before = np.asarray(shared.body.encoder.layers[0].attention.output.kernel)
    assert before[0].any()
    remove_heads(shared, [f"{layer}.0" for layer in range(shared.config.num_hidden_layers)])
    after = np.asarray(shared.body.encoder.layers[0].attention.output.kernel)
    assert not after[0].any()
    assert np.array_equal(after[1:], before[1:])


def remove(pruned_model, *options, output):
    _, model, *_ = pruned_model
    return main(["remove-heads", "--model", str(model), *options, "--output", str(output)])


def test_the_command_removes_the_heads_of_a_run(pruned_model, tmp_path, capsys):
    folder, _, data, found = pruned_model
    saved = tmp_path / "saved"
    assert remove(pruned_model, "--from", str(folder / "pruned"), "--run", "greedy 3", output=saved) == 0
    assert "without 3 heads" in capsys.readouterr().out
    row = next(row for row in found.rows_of() if row.name == "greedy 3")
    ids = [*halves(pruned_model)[1].examples.ids]
    rows = data.read_text().splitlines()
    (tmp_path / "half.tsv").write_text("\n".join([rows[0], *(rows[1 + int(one)] for one in ids)]) + "\n")
    cut = bertjax.ablate(saved, "mrpc", data=tmp_path / "half.tsv", heads=["0.0"], progress=False)
    assert cut.base == pytest.approx(row.score, abs=1e-6)
    assert remove(pruned_model, "--heads", "0.0", output=saved) == 2
    assert "already has a checkpoint" in capsys.readouterr().err
    assert remove(pruned_model, "--heads", "0.0", "--overwrite", output=saved) == 0


@pytest.mark.needs_torch
def test_transformers_reads_it(pruned_model, tmp_path):
    import torch
    from transformers import AutoModel

    _, model, *_ = pruned_model
    assert remove(pruned_model, "--heads", "0.1", "1.0", output=tmp_path / "saved") == 0
    batch = bertjax.Tokenizer.from_pretrained(model)(["the cat sat on the mat", "a dog ran"])
    theirs = AutoModel.from_pretrained(tmp_path / "saved").eval()
    inputs = {name: torch.tensor(np.asarray(value)) for name, value in batch.items()}
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state.numpy()
    whole = bertjax.load(model)
    factored = np.asarray(whole(batch, overrides=overrides.factor(whole.config, ["0.1", "1.0"], 0.0)).last_hidden_state)
    real = np.asarray(batch["attention_mask"]) > 0
    np.testing.assert_allclose(factored[real], expected[real], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --heads, or --from DIR and --run NAME"),
        (("--heads", "9.9"), "there is no head 9.9"),
        (("--from", "PRUNED"), "give either --heads"),
        (("--from", "PRUNED", "--run", "best"), "has no run 'best'"),
        (("--from", "UNIFORM", "--run", "0.0"), "only mode 'zero' can be applied to weights"),
        (("--from", "OTHER", "--run", "0.0"), "is of another model"),
    ],
    ids=str,
)
def test_heads_that_cannot_be_removed_are_refused(options, message, pruned_model, tmp_path, capsys):
    folder, model, data, _ = pruned_model
    places = {"PRUNED": folder / "pruned", "UNIFORM": tmp_path / "uniform", "OTHER": tmp_path / "other"}
    if "UNIFORM" in options:
        bertjax.ablate(model, "mrpc", data=data, heads=["0.0"], output=places["UNIFORM"], progress=False)
    if "OTHER" in options:
        other = make_embedder(tmp_path / "model", seed=1)
        bertjax.ablate(other, "mrpc", data=data, heads=["0.0"], mode="zero", output=places["OTHER"], progress=False)
    assert remove(pruned_model, *(str(places.get(word, word)) for word in options), output=tmp_path / "saved") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "saved" / "config.json").exists()


def test_half_of_the_heads_cost_less_than_twelve_sweeps():
    """A step of the exact order is a plan whose runs share the layers below their first different head."""
    config = bertjax.BertConfig()
    heads = [*every_head(config)]
    sweep_work = make_plan(config, single_heads(config, "zero")).root.work(config.num_hidden_layers)
    order = [heads[place] for place in np.random.default_rng(0).permutation(len(heads))]
    work, gone = 0, 0
    while gone < len(heads) // 2:
        trials = [ablation(config, [*order[:gone], head], "zero") for head in order[gone:]]
        work += make_plan(config, trials).root.work(config.num_hidden_layers)
        gone += 8  # a twentieth
    assert 5 < work / sweep_work < 8


def test_leftover_files_do_not_replace_finished_results(pruned_model, tmp_path, capsys):
    _, model, data, _ = pruned_model
    output = tmp_path / "job"

    def stop(done, total):
        if done > 2:
            raise KeyboardInterrupt

    options = {"data": data, "mode": "zero", "output": output}
    with pytest.raises(SweepInterrupted):
        bertjax.prune(model, "mrpc", **options, orders=("greedy",), progress=stop)
    assert [*output.glob("pruning-*")]
    other = {"orders": ("greedy",), "greedy_share": 0.5}
    bertjax.prune(model, "mrpc", **options, seed=1, overwrite=True, **other, progress=False)
    assert not [*output.glob("pruning-*")]
    with pytest.raises(OutputError, match="already has results"):
        bertjax.prune(model, "mrpc", **options, orders=("magnitude",), progress=False)


def test_orders_without_data_are_scored_on_all_examples(pruned_model):
    _, model, data, _ = pruned_model
    found = bertjax.prune(model, "mrpc", data=data, mode="zero", orders=("magnitude",), progress=False)
    assert found.summary["pruning"]["chosen_on"] == 0
    assert found.summary["data"]["examples"] == 40


def test_sets_of_a_file_may_be_in_any_mode(pruned_model, tmp_path, capsys):
    _, model, data, _ = pruned_model
    (tmp_path / "sets.txt").write_text("both: 0.0=uniform 1.1=uniform\n")
    options = {"data": data, "mode": "zero", "ablate": tmp_path / "sets.txt", "output": tmp_path / "sets"}
    bertjax.ablate(model, "mrpc", **options, progress=False)
    assert remove(pruned_model, "--from", str(tmp_path / "sets"), "--run", "both", output=tmp_path / "saved") == 2
    assert "has sets from a file, which may have any mode" in capsys.readouterr().err
