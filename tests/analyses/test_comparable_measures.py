"""What results measure, and in which direction, decides with what they are compared."""

import numpy as np
import pytest
from scipy.stats import spearmanr

import bertjax
from bertjax.analyses import trust_in
from bertjax.cli import main
from bertjax.errors import InputError
from bertjax.results.comparison import agreeing, compare
from tests.factories import make_classifier, write_pairs

HEADS = ["0.0", "0.1", "0.2", "1.0", "1.1"]


@pytest.fixture(scope="module")
def all_results(tmp_path_factory):
    """One model's results of every analysis, in directories named after it."""
    folder = tmp_path_factory.mktemp("quantities")
    model, data = make_classifier(folder / "model"), write_pairs(folder / "pairs.tsv", 16)

    def run(call, name, **more):
        return call(model, "mrpc", data=data, mode="zero", output=folder / name, progress=False, **more)

    roles = bertjax.roles(model, "mrpc", data=data, output=folder / "roles", progress=False)
    return {
        "ablation": run(bertjax.ablate, "ablation", metric="accuracy"),
        "shapley": run(bertjax.shapley, "shapley", heads=HEADS, metric="accuracy"),
        "importance": run(bertjax.importance, "importance"),
        "pairs": run(bertjax.ablate, "pairs", ablate="pairs", heads=HEADS, metric="accuracy"),
        "interactions": run(bertjax.interactions, "interactions", heads=HEADS, metric="accuracy"),
        "roles": roles,
    }


def effects(results, metric=None):
    return {row.name: row.difference for row in results.rows_of(metric)}


def test_shapley_values_are_turned_before_they_are_compared(all_results, capsys):
    exact, values = effects(all_results["ablation"]), effects(all_results["shapley"])
    expected = spearmanr([exact[name] for name in values], [-value for value in values.values()]).statistic
    for several in (["ablation", "shapley"], ["shapley", "ablation"]):
        (pair,) = compare([all_results[name] for name in several])
        assert pair.correlation == pytest.approx(expected, abs=1e-12)
    assert main(["compare", *(str(all_results[name].directory) for name in ("ablation", "shapley"))]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 effects of ablations, 2 contributions of heads (Shapley values)" in shown
    assert "contributions count with the opposite sign" in shown
    rows = all_results["ablation"].compare(all_results["shapley"]).to_dict()["results"]
    assert [(one["quantity"], one["sign"]) for one in rows] == [
        ("effects of ablations", 1),
        ("contributions of heads (Shapley values)", -1),
    ]


def test_one_head_contributes_what_its_ablation_costs(all_results):
    model, data = all_results["ablation"].summary["model"]["name"], all_results["ablation"].summary["settings"]["data"]
    for head in HEADS[:3]:
        found = bertjax.shapley(model, "mrpc", data=data, mode="zero", heads=[head], metric="accuracy", progress=False)
        quantity = found.quantity()
        assert quantity.sign * found.rows_of()[0].difference == pytest.approx(effects(all_results["ablation"])[head])


def test_findings_agree_although_their_signs_differ(all_results, monkeypatch):
    several = [all_results["ablation"], all_results["shapley"]]
    monkeypatch.setattr("bertjax.results.comparison.significant", lambda rows: np.ones(len(rows), bool))
    exact, values = effects(several[0]), effects(several[1])
    same = {name for name in values if exact[name] * values[name] < 0}
    assert {name for name, _, count in agreeing(several) if count == 2} == same
    (pair,) = compare(several)
    assert pair.both == len(same) + sum(exact[name] == values[name] == 0 for name in values)


@pytest.mark.parametrize(
    ("first", "second", "metric"),
    [
        ("ablation", "roles", None),
        ("roles", "ablation", None),
        ("importance", "roles", None),
        ("shapley", "roles", None),
        ("pairs", "interactions", None),
    ],
)
def test_results_of_other_measures_are_not_compared(first, second, metric, all_results, capsys):
    assert main(["compare", str(all_results[first].directory), str(all_results[second].directory)]) == 2
    message = capsys.readouterr().err
    assert "they cannot be compared" in message
    assert len(message.splitlines()) == 1
    with pytest.raises(InputError, match="they cannot be compared"):
        all_results[first].compare(all_results[second])


def test_results_of_the_same_measure_are_compared(all_results, tmp_path):
    for name in ("roles", "interactions", "shapley", "importance"):
        assert all_results[name].compare(all_results[name]).pairs[0].correlation == pytest.approx(1)
    predicted, exact = effects(all_results["importance"]), effects(all_results["ablation"])
    names = [*exact]
    expected = spearmanr([-predicted[name] for name in names], [exact[name] for name in names]).statistic
    (pair,) = all_results["importance"].compare(all_results["ablation"]).pairs
    assert pair.correlation == pytest.approx(expected)  # a loss is better when lower


@pytest.mark.parametrize("name", ["roles", "shapley", "interactions", "importance"])
def test_gradients_are_compared_only_with_exact_effects(name, all_results, tmp_path, monkeypatch, capsys):
    settings = all_results["ablation"].summary["settings"]
    monkeypatch.setattr("bertjax.analyses.importance.head_gradients", lambda *args, **more: pytest.fail("ran"))
    command = ["importance", "--model", settings["model"], "--task", "mrpc", "--data", settings["data"]]
    more = ["--against", str(all_results[name].directory), "--output", str(tmp_path / "out")]
    assert main([*command, *more]) == 2
    message = capsys.readouterr().err
    assert "not exact effects: give results of bertjax ablate" in message
    assert len(message.splitlines()) == 1
    with pytest.raises(InputError, match="not exact effects"):
        trust_in(all_results["importance"], all_results[name])
