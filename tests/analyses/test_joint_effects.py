"""What heads do together: interactions of pairs, Shapley values, and screens, against their definitions."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import hypergeom
from sklearn.metrics import roc_auc_score

import bertjax
from bertjax import BertForSentenceEmbedding
from bertjax.analyses import Drawn, Shapley, ablate, shapley
from bertjax.analyses.interactions import with_singles
from bertjax.analyses.shapley import added_in_order, all_subsets, draw_orders, exact_values
from bertjax.cli import main
from bertjax.engine import sweep
from bertjax.errors import DataError, InputError, SweepInterrupted
from bertjax.interventions import Ablation, Change, ablation, every_head
from bertjax.jobs import analysis
from bertjax.jobs.contributions import contributions_of, snap_constant_outputs
from bertjax.jobs.job import load_job
from bertjax.jobs.scoring import LabelledMetric
from bertjax.jobs.settings import for_this_device
from bertjax.tasks import TaskResult
from tests.factories import add_tokenizer, make_config, write_pairs
from tests.interruptions import StopAfter
from tests.job_factories import settings_of
from tests.schema_checks import check_by_jsonschema
from tests.task_factories import TASK_FACTORIES
from tests.tiny_models import random_model

TEN_HEADS = replace(make_config(), num_hidden_layers=5, num_attention_heads=2)


@pytest.fixture(scope="module")
def run_analysis(tmp_path_factory):
    """A random sentence embedder of ten heads, pairs, and how to run jobs on them."""
    folder = tmp_path_factory.mktemp("together")
    random_model(BertForSentenceEmbedding, TEN_HEADS).save_pretrained(folder / "model")
    model = add_tokenizer(folder / "model")
    data = write_pairs(folder / "pairs.tsv", 24)

    def run(job, **options):
        settings = {"data": data, "mode": "zero", "progress": False, **options}
        return job(model, "mrpc", **settings)

    run.folder, run.model, run.data = folder, model, data
    return run


def scores_of(results, metric=None):
    return {row.name: row.score for row in results.rows_of(metric)}


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_interactions_are_second_differences(run_analysis):
    found = run_analysis(bertjax.interactions)
    pairs, singles = (run_analysis(bertjax.ablate, ablate=what) for what in ("pairs", "heads"))
    alone, base = scores_of(singles), singles.base
    assert found.names == pairs.names
    effects = {name: score - base for name, score in scores_of(pairs).items()}
    sums = {name: sum(alone[head] - base for head in name.split("+")) for name in effects}
    interactions = scores_of(found)
    assert max(map(abs, interactions.values())) > 0.01
    for name in found.names:
        np.testing.assert_allclose(scores_of(found, "effect_of_both")[name], effects[name], atol=1e-7)
        np.testing.assert_allclose(scores_of(found, "sum_of_effects")[name], sums[name], atol=1e-7)
        np.testing.assert_allclose(interactions[name], effects[name] - sums[name], atol=1e-7)
    row = found.rows_of()[0]
    assert (row.metric, row.base, row.layer, row.head) == ("interaction", 0, None, None)
    assert row.low <= row.score <= row.high
    assert found.summary["derived"]["base"] == pytest.approx(base)


def test_intervals_of_interactions_are_those_of_four_scores(run_analysis):
    found = run_analysis(bertjax.interactions, heads=["0.0", "3.1", "4.0"])
    outputs = found.outputs["outputs"]
    assert outputs.shape == (3, 24, 3)
    np.testing.assert_allclose(outputs[..., 0], outputs[..., 1] - outputs[..., 2], atol=1e-12)
    means = outputs[..., 0][:, np.random.default_rng(1).integers(0, 24, (4000, 24))].mean(axis=-1)
    for row, drawn in zip(found.rows_of(), means, strict=True):
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert abs(row.low - low) < 0.3 * (high - low) + 1e-9
        assert abs(row.high - high) < 0.3 * (high - low) + 1e-9


@pytest.mark.parametrize("task", ["mlm", "ranking"])
def test_interactions_of_other_tasks(task, tmp_path):
    make, write, name = TASK_FACTORIES[task]
    model, data = make(tmp_path / "model"), write(tmp_path / name)
    found = bertjax.interactions(model, task, data=data, mode="mean", progress=False)
    singles, pairs = (
        bertjax.ablate(model, task, data=data, mode="mean", ablate=what, progress=False) for what in ("heads", "pairs")
    )
    alone, both = scores_of(singles), scores_of(pairs)
    for name, value in scores_of(found).items():
        first, second = (alone[head] for head in name.split("+"))
        np.testing.assert_allclose(value, both[name] - first - second + singles.base, atol=1e-5)
    assert found.measure().greater_is_better == singles.measure().greater_is_better


def test_heads_of_pairs_are_run_once():
    pairs = [ablation(TEN_HEADS, pair) for pair in (["0.0", "1.1"], ["0.0", "2.0"], ["1.1", "2.0"])]
    runs = with_singles(pairs)
    assert [run.name for run in runs] == ["0.0", "1.1", "2.0", "0.0+1.1", "0.0+2.0", "1.1+2.0"]
    with pytest.raises(InputError, match="is not a pair of heads"):
        with_singles([ablation(TEN_HEADS, ["0.0", "1.0", "1.1"])])


# ---- Shapley values --------------------------------------------------------------------------------------------------


def mean_over_all_orders(heads, score):
    """Shapley values by their other definition: over all orders, and a score of the set that is gone."""
    orders = list(itertools.permutations(range(heads)))
    values = np.zeros(heads)
    for order in orders:
        for place, head in enumerate(order):
            values[head] += score[frozenset(order[:place])] - score[frozenset(order[: place + 1])]
    return values / len(orders)


def game(heads, seed):
    """A random score of each set, as contributions of one example, in the order of `all_subsets`."""
    rng = np.random.default_rng(seed)
    sets = [frozenset(one) for size in range(heads + 1) for one in itertools.combinations(range(heads), size)]
    score = {one: float(value) for one, value in zip(sets, rng.normal(size=len(sets)), strict=True)}
    return score, np.array([[score[one]] for one in sets])


def test_exact_values_are_the_means_over_all_orders():
    score, contributed = game(5, 0)
    np.testing.assert_allclose(exact_values(5, contributed)[:, 0], mean_over_all_orders(5, score))


def draw(heads, score, pairs, seed):
    """What so many pairs of orders give in a game."""

    def added(order):
        gone = [frozenset(order[:count].tolist()) for count in range(heads + 1)]
        return added_in_order(order, np.array([[score[one]] for one in gone]))

    both = [[added(order) for order in draw_orders(heads, pair, seed)] for pair in range(pairs)]
    means = [(first + second) / 2 for first, second in both]
    return Drawn(np.sum(means, axis=0), np.stack([mean[:, 0] for mean in means]))


def test_sampled_shapley_values_are_unbiased_with_coverage():
    score, contributed = game(6, 1)
    exact = exact_values(6, contributed)[:, 0]
    drawn = [draw(6, score, 12, seed) for seed in range(300)]
    means = np.array([one.mean[:, 0] for one in drawn])
    error = means.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(means.mean(axis=0) - exact) < 4 * error).all()
    held = np.abs(means - exact) <= np.array([one.half_widths for one in drawn])
    assert 0.92 < held.mean() < 0.975
    np.testing.assert_allclose(means.sum(axis=1), score[frozenset()] - score[frozenset(range(6))])


def test_reverses_make_values_of_pairs_more_certain():
    """In a game of heads and pairs, an order and its reverse tell all: each partner is gone in one of the two."""
    rng = np.random.default_rng(3)
    alone, together = rng.normal(size=6), rng.normal(size=(6, 6))
    sets = [frozenset(one) for size in range(7) for one in itertools.combinations(range(6), size)]
    score = {
        one: sum(alone[list(one)]) + sum(together[pair] for pair in itertools.combinations(sorted(one), 2))
        for one in sets
    }
    one_pair = draw(6, score, 1, 0)
    np.testing.assert_allclose(one_pair.mean[:, 0], mean_over_all_orders(6, score))


def test_few_pairs_give_no_interval():
    score, _ = game(4, 2)
    assert np.isinf(draw(4, score, 7, 0).half_widths).all()
    assert np.isfinite(draw(4, score, 8, 0).half_widths).all()
    joined = draw(4, score, 3, 0).join(draw(4, score, 3, 1))
    assert len(joined.values) == 6
    np.testing.assert_allclose(joined.mean, (draw(4, score, 3, 0).mean + draw(4, score, 3, 1).mean) / 2)


def test_intervals_over_few_orders_hold():
    """Student's t held in 95 of 100 of the symmetric ones and in 90 of the skewed ones."""
    rng = np.random.default_rng(0)
    symmetric = np.array([-3.0, -2.0, -1.0, 0.0, 0.0, 1.0, 2.0, 3.0])[:, None]
    half = Drawn(np.zeros((1, 1)), symmetric).half_widths
    np.testing.assert_allclose(half, stats.t.ppf(0.975, 7) * stats.sem(symmetric))
    for values in (rng.normal(size=(8, 1000)), rng.exponential(size=(8, 1000)) - 1):
        drawn = Drawn(np.zeros((1000, 1)), values)
        assert 0.935 < (np.abs(values.mean(axis=0)) <= drawn.half_widths).mean() < 0.985


@pytest.fixture(scope="module")
def all_sets(run_analysis):
    """ROC AUC of the ten-headed model without each of its 1,024 sets of heads, by the engine alone."""
    job = load_job(
        for_this_device(settings_of(model=str(run_analysis.model), task="mrpc", data=str(run_analysis.data)))
    )
    sets = all_subsets(TEN_HEADS, every_head(TEN_HEADS), "zero")
    form = job.encoded.form
    swept = sweep(job.model, job.encoded.texts, sets, form.readout, combine=form.combine, progress=False)
    values = [roc_auc_score(job.examples.labels, run) for run in (swept.base, *swept.outputs)]
    names = [frozenset(f"{change.layer}.{change.head}" for change in one.changes) for one in sets]
    return dict(zip([frozenset(), *names], values, strict=True))


def value_of(head, heads, score):
    """By the formula: over all sets without the head, of n heads, |S|! (n - |S| - 1)! / n! times what it adds."""
    from math import factorial

    others = [one for one in heads if one != head]
    total = 0.0
    for size in range(len(heads)):
        share = factorial(size) * factorial(len(heads) - size - 1) / factorial(len(heads))
        for gone in itertools.combinations(others, size):
            total += share * (score[frozenset(gone)] - score[frozenset((*gone, head))])
    return total


def test_values_of_all_sets_are_those_of_the_definition(run_analysis, all_sets):
    found = run_analysis(bertjax.shapley, permutations=104)  # 1,023 sets cost less than 1,040 runs
    assert found.summary["shapley"]["exact"]
    for head, value in scores_of(found).items():
        np.testing.assert_allclose(value, value_of(head, found.names, all_sets), atol=1e-9)
    assert sum(scores_of(found).values()) == pytest.approx(
        found.summary["derived"]["base"] - all_sets[frozenset(found.names)]
    )
    assert found.summary["shapley"]["without"] == pytest.approx(all_sets[frozenset(found.names)])


def test_drawn_values_of_a_model_are_near_those_of_all_sets(run_analysis, all_sets):
    found = run_analysis(bertjax.shapley, permutations=60, seed=5)
    summary = found.summary["shapley"]
    assert (summary["exact"], summary["orders"]) == (False, 60)
    exact = np.array([value_of(head, found.names, all_sets) for head in found.names])
    apart = np.abs(np.array([*scores_of(found).values()]) - exact)
    assert apart.max() > 1e-6
    assert (apart < 2 * np.array(summary["half_widths"])).all()  # of a 95 % interval: four standard errors
    assert sum(scores_of(found).values()) == pytest.approx(exact.sum())


def test_unnamed_heads_are_not_removed(run_analysis, all_sets):
    found = run_analysis(bertjax.shapley, heads=["1.1", "4.0"], output=run_analysis.folder / "two")
    expected = [value_of(head, ["1.1", "4.0"], all_sets) for head in ("1.1", "4.0")]
    np.testing.assert_allclose([*scores_of(found).values()], expected, atol=1e-9)
    check_by_jsonschema(json.loads((run_analysis.folder / "two" / "summary.json").read_text()))


def test_sampling_stops_when_intervals_are_narrow(run_analysis, monkeypatch):
    monkeypatch.setattr(shapley, "RUNS_AT_ONCE", 40)  # two pairs of orders
    found = run_analysis(bertjax.shapley, permutations=80, within=90.0)
    assert found.summary["shapley"]["orders"] == 16  # as soon as there is an interval
    assert found.summary["shapley"]["within"] == 0.9
    widest, seen = 100 * max(found.summary["shapley"]["half_widths"]), []
    progress = lambda done, total: seen.append(done / total)  # noqa: E731
    longer = run_analysis(bertjax.shapley, permutations=80, within=widest / 1.1, progress=progress)
    assert 16 < longer.summary["shapley"]["orders"] < 80
    assert seen[seen.index(1) - 1] > 0.9  # of the orders that are expected, not of all
    whole = run_analysis(bertjax.shapley, permutations=20, within=1e-9)
    assert whole.summary["shapley"]["orders"] == 20


@pytest.mark.integration
def test_interrupted_orders_resume_to_the_same_values(run_analysis, tmp_path, monkeypatch):
    monkeypatch.setattr(shapley, "RUNS_AT_ONCE", 40)
    whole = run_analysis(bertjax.shapley, permutations=20)
    options = {"permutations": 20, "output": tmp_path / "job"}
    with pytest.raises(SweepInterrupted):
        run_analysis(bertjax.shapley, **options, progress=StopAfter(0.5))
    assert len(list((tmp_path / "job").glob("orders-*"))) > 1
    left_to_do = []
    sweep_job = analysis.sweep_job

    def counted(job, means, say, progress, journal):
        def report(done, total):
            left_to_do.append((journal.name, total - done))
            progress(done, total)

        return sweep_job(job, means, say, report, journal)

    monkeypatch.setattr(analysis, "sweep_job", counted)
    again = run_analysis(bertjax.shapley, **options)
    assert np.array_equal(again.outputs["outputs"], whole.outputs["outputs"])
    assert again.summary["shapley"] == whole.summary["shapley"]
    assert {left for name, left in left_to_do if name == "orders-00000"} == {0}  # that was done before
    assert max(left for name, left in left_to_do) > 0
    assert not list((tmp_path / "job").glob("orders-*"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"permutations": 7}, "permutations are drawn in pairs"),
        ({"permutations": 0}, "permutations must be an integer of at least 2"),
        ({"within": -1.0}, "within must be a number above 0"),
        ({"within": float("nan")}, "within must be a number above 0"),
    ],
)
def test_impossible_numbers_of_orders_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Shapley(**wrong)


# ---- screens ---------------------------------------------------------------------------------------------------------


def test_a_screen_runs_chosen_and_random_ablations(run_analysis, monkeypatch):
    monkeypatch.setattr(ablate, "FEWEST_AUDITED", 3)
    found, whole = (
        run_analysis(bertjax.ablate, screen=screen, output=run_analysis.folder / f"screen {screen}")
        for screen in (4, None)
    )
    estimates = scores_of(run_analysis(bertjax.importance), "importance")
    best = sorted(estimates, key=lambda name: -estimates[name])[:4]
    summary = found.summary["screen"]
    assert set(found.names) == {*best, *summary["audited"]}
    assert (summary["chosen"], summary["left_out"], len(summary["audited"])) == (4, 6, 3)
    assert not {*best} & {*summary["audited"]}
    for name, score in scores_of(found).items():
        assert score == pytest.approx(scores_of(whole)[name], abs=1e-9)
    effects = {row.name: abs(row.difference) for row in whole.rows_of()}
    assert summary["largest"] == max(summary["audited"], key=effects.get)
    assert summary["sentence"] in found.sentence
    assert found.sentence_of() == found.sentence  # the printed table shows it
    assert "the largest effect among them is" in summary["sentence"]
    assert (
        f"more than that of {sum(effects[one] < effects[summary['largest']] for one in best)} of those"
        in found.sentence
    )
    check_by_jsonschema(json.loads((run_analysis.folder / "screen 4" / "summary.json").read_text()))


def test_a_screen_of_pairs_adds_the_gradients_of_both_heads():
    changes = np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0], [0.5, 0.5]])
    config = replace(make_config(), num_hidden_layers=2, num_attention_heads=2)
    pairs = [ablation(config, pair, "zero") for pair in (["0.0", "1.0"], ["0.0", "0.1"], ["0.1", "1.1"])]
    assert ablate.predicted_sizes(pairs, changes, every_head(config), "zero").tolist() == [0.0, 1.0, 1.5]
    mixed = Ablation("mixed", (Change(0, 0, "uniform"),))
    with pytest.raises(InputError, match="ablation mixed is not in mode zero"):
        ablate.predicted_sizes([mixed], changes, every_head(config), "zero")


@pytest.mark.parametrize(("count", "drawn"), [(52, 10), (2548, 10), (7, 3), (3, 3), (4, 1)])
def test_the_bound_of_larger_values(count, drawn):
    most = ablate.most_larger(count, drawn)
    missed = [hypergeom(count, larger, drawn).pmf(0) for larger in range(count + 1)]
    assert most == max((larger for larger in range(count + 1) if missed[larger] > 0.05 and larger < count), default=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"screen": 10}, "a screen of 10 runs 20 of 10 ablations, including its random sample"),
        ({"screen": 0}, "screen must be an integer of at least 1"),
        ({"screen": 2, "precision": "bfloat16"}, "is computed in float32: leave --precision out"),
    ],
    ids=str,
)
def test_impossible_screens_are_refused(wrong, message, run_analysis):
    with pytest.raises(InputError, match=message):
        run_analysis(bertjax.ablate, **wrong)


# ---- commands --------------------------------------------------------------------------------------------------------


def command(run_analysis, name, output, *more):
    options = ["--model", str(run_analysis.model), "--task", "mrpc", "--data", str(run_analysis.data), "--mode", "zero"]
    return main([name, *options, "--output", str(output), "--no-compile-cache", "--overwrite", *more])


@pytest.mark.integration
@pytest.mark.parametrize(("name", "options"), [("interactions", ()), ("shapley", ("--permutations", "16"))])
def test_results_are_read_by_all_other_commands(run_analysis, name, options, capsys, tmp_path):
    output = tmp_path / name
    assert command(run_analysis, name, output, *options) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "about" in printed.split("computing statistics")[0]  # the cost is printed before the run
    assert "without ablation" not in printed
    check_by_jsonschema(json.loads((output / "summary.json").read_text()))
    results = bertjax.read_results(output)
    assert results.sentence.split(";")[0] in printed
    assert ("16 orders: each value is known to ±" in printed) == (name == "shapley")
    assert main(["show", str(output)]) == 0
    assert main(["show", str(output), "--format", "md"]) == 0
    table = capsys.readouterr().out
    assert "effect" in table
    assert "score" not in table.split("|", 1)[1].split("\n")[0]
    assert main(["report", str(output)]) == 0
    assert main(["compare", str(output), str(output)]) == 0
    figures = ("auto", "ranking", "pairs" if name == "interactions" else "map")
    for figure in figures:
        assert main(["plot", str(output), "--figure", figure, "-o", str(tmp_path / f"{figure}.png")]) == 0
    capsys.readouterr()
    assert command(run_analysis, name, output, "--heads", "9.9") == 2
    assert "there is no head" in capsys.readouterr().err


def test_the_map_of_pairs_needs_pairs(run_analysis, capsys, tmp_path):
    run_analysis(bertjax.ablate, output=tmp_path / "heads")
    assert main(["plot", str(tmp_path / "heads"), "--figure", "pairs", "-o", str(tmp_path / "map.png")]) == 2
    assert "sets that are no pairs of heads" in capsys.readouterr().err


def test_outputs_that_differ_by_rounding_alone_are_equal(unchecked):
    """Without any head a classifier of [CLS] says the same of every text: a correlation with that is none."""
    rng = np.random.default_rng(0)
    outputs = np.stack([rng.normal(size=8), 3 + 1e-7 * rng.normal(size=8)]).astype(np.float32)
    found = snap_constant_outputs(TaskResult(outputs[0], outputs))
    assert np.array_equal(found.outputs[0], outputs[0])
    assert np.ptp(found.outputs[1]) == 0
    job = type(
        "MadeUp",
        (),
        {"labelled_metrics": [LabelledMetric(bertjax.METRICS["pearson"], rng.normal(size=8))], "positive": 1},
    )
    job.units = None
    _, shared = contributions_of(job, TaskResult(outputs[0], outputs))
    assert np.ptp(shared[1]) > 0
    assert not shared[2].any()


@pytest.mark.parametrize("job", ["interactions", "shapley"])
def test_a_score_undefined_without_an_example_is_refused_early(job, run_analysis, tmp_path):
    rows = run_analysis.data.read_text().splitlines()
    rows[1:] = [f"{int(number == 4)}{row[1:]}" for number, row in enumerate(rows[1:])]
    (tmp_path / "one.tsv").write_text("\n".join(rows) + "\n")
    with pytest.raises(DataError, match="undefined without example 4"):
        run_analysis(getattr(bertjax, job), data=tmp_path / "one.tsv", output=tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*")]


def test_options_of_other_calls_are_refused(run_analysis):
    for name in ("ablate", "screen", "resume"):
        with pytest.raises(InputError, match=f"{name} is not an option of this call"):
            run_analysis(bertjax.shapley, **{name: 3})


def test_effects_in_bfloat16_are_written_too(run_analysis):
    found = run_analysis(bertjax.shapley, heads=["0.0", "1.1"], precision="bfloat16")
    assert "float32" not in found.summary
    assert found.names == ["0.0", "1.1"]
