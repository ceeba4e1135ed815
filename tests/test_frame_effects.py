"""Frame maps joined with what disabling heads costs: numbers that are known, files of three kinds, and mistakes."""

import json

import numpy as np
import pytest

from experiments.frame_effects import figures, main, tables
from experiments.frames.effects import join_maps
from tests.made_up import HEADS, LAYERS, make_results

NAMES = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
SHAPE = (2, 3)


def test_heads_that_lose_as_they_attend_have_a_rank_correlation_of_1(rng):
    attention = rng.random((6, 12))
    chosen = attention > np.quantile(attention, 0.8)
    found = join_maps(attention, 10 * attention**3, chosen)
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["interval"] == pytest.approx([1, 1])
    assert found["chosen"] == pytest.approx((10 * attention**3)[chosen].mean())
    assert found["others"] == pytest.approx((10 * attention**3)[~chosen].mean())
    assert found["difference"] == pytest.approx(found["chosen"] - found["others"])
    low, high = found["difference_interval"]
    assert 0 < low < found["difference"] < high
    assert found["p"] == pytest.approx(1 / 10001)  # by none of the draws


def test_p_is_the_share_of_groups_that_are_as_far_apart():
    losses = np.array([[1.0, 2.0, 3.0, 10.0]])
    found = join_maps(losses, losses, np.array([[False, False, False, True]]), draws=20000)
    assert found["p"] == pytest.approx(1 / 4, abs=4 * 0.5 / np.sqrt(20000))  # one head of four
    assert found["difference_interval"] is None
    lowest = join_maps(losses, losses, np.array([[True, False, False, False]]), draws=20000)
    assert lowest["p"] == pytest.approx(1 / 2, abs=4 * 0.5 / np.sqrt(20000))  # and 10.0 is farther from the rest


def test_heads_without_a_change_do_not_count_and_no_group_is_no_comparison():
    losses = np.array([[1.0, np.nan, 3.0]])
    found = join_maps(np.array([[1.0, 9.0, 2.0]]), losses, np.array([[False, True, False]]))
    assert (found["heads"], found["rank_correlation"]) == (2, pytest.approx(1))
    assert (found["chosen_heads"], found["difference"], found["p"]) == (0, None, None)


def frames(directory, left=("0.1", "1.2"), sha="one", shape=SHAPE):
    """As `frame_semantics` leaves it, as far as it is read."""
    rows = (np.arange(float(np.prod(shape))).reshape(shape) / 10).tolist()
    both = dict.fromkeys(("element_to_predicate", "predicate_to_element"), rows)
    control = {"links": [rows, rows], "others": np.full((2, *shape), 0.05).tolist()}
    results = {"maps": both, "controls": {"same_key": control}}
    results["heads_left"] = {"element_to_predicate": list(left), "predicate_to_element": []}
    directory.mkdir()
    numbers = {"settings": {"model": "m", "source": "published"}, "model": {"weights_sha256": sha}, "results": results}
    (directory / "numbers.json").write_text(json.dumps(numbers))
    return directory


def recorded(directory, changes, kind="head", layers=2):
    """As `head_ablation` leaves it, as far as it is read."""
    directory.mkdir()
    effects = {"accuracy": {"uniform": {"change": list(changes)}}}
    results = {"kind": kind, "task": "rte", "examples": 277, "metric": "accuracy", "names": NAMES, "effects": effects}
    model = {"name": "tuned", "layers": layers, "heads": 3, "weights_sha256": "other"}
    (directory / "numbers.json").write_text(json.dumps({"model": model, "results": results}))
    return directory


def test_a_run_joins_maps_and_tasks_and_its_numbers_are_enough_for_tables_and_picture(tmp_path, capsys):
    changes = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    tasks = [recorded(tmp_path / "task", changes), recorded(tmp_path / "none", [None] * 6)]
    output = tmp_path / "out"
    arguments = ["--frames", str(frames(tmp_path / "frames")), "--results", *map(str, tasks), "--output", str(output)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "rte (277 examples, Accuracy, uniform; tuned; other weights than those of the maps)" in said
    assert "elements to predicate: rank correlation 1.00; 2 heads left lose +3.00 points, the others +2.25" in said
    assert "predicate to elements: rank correlation 1.00; 0 of 6 heads are left: nothing to compare" in said
    assert "rank correlation undefined" in said
    numbers = json.loads((output / "numbers.json").read_text())
    assert numbers["program"] == "frame_effects"
    above = numbers["results"]["maps"]["element_to_predicate_above"]
    assert above[1] == pytest.approx([0.25, 0.35, 0.45])
    joined = numbers["results"]["tasks"][0]["joined"]["element_to_predicate"]
    assert joined == {**join_maps(np.arange(6.0).reshape(SHAPE), -np.array(changes).reshape(SHAPE), left()), **joined}
    assert tables(numbers).count("\n") == 1 + 2 * 5
    figures(numbers)["figure"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (output / "figure.png").read_bytes()
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_results_of_ablate_are_read_and_of_head_ablation_those_of_the_papers_mode(tmp_path, capsys):
    ablate = make_results(tmp_path / "ablate")
    inner = make_results(tmp_path / "modes" / "uniform", "stsb")
    make_results(tmp_path / "modes" / "zero", "stsb", mode="zero")
    given = frames(tmp_path / "frames", shape=(LAYERS, HEADS))
    output = tmp_path / "out"
    arguments = ["--frames", given, "--results", ablate, inner.parent, "--output", output]
    assert main([str(argument) for argument in arguments]) == 0
    tasks = json.loads((output / "numbers.json").read_text())["results"]["tasks"]
    assert [(one["task"], one["mode"]) for one in tasks] == [("mrpc", "uniform"), ("stsb", "uniform")]
    for directory, one in zip((ablate, inner), tasks, strict=True):
        summary = json.loads((directory / "summary.json").read_text())
        for entry in summary["ablations"]:
            assert one["losses"][entry["layer"]][entry["head"]] == pytest.approx(-100 * entry["delta"], abs=1e-6)
        assert (one["examples"], one["metric"]) == (120, summary["metric"]["label"])
    assert "mrpc (120 examples, " in capsys.readouterr().out


def left():
    found = np.zeros(SHAPE, bool)
    found[0, 1] = found[1, 2] = True
    return found


def test_mistakes_are_one_line(tmp_path, capsys):
    good = frames(tmp_path / "frames")
    old = tmp_path / "old"
    old.mkdir()
    (old / "numbers.json").write_text('{"results": {"maps": {}}}')
    layers = recorded(tmp_path / "layers", [0.0] * 6, kind="layer")
    larger = recorded(tmp_path / "larger", [0.0] * 6, layers=12)
    for given, results, words in (
        (tmp_path / "nowhere", layers, "holds no results of frame_semantics"),
        (old, layers, "is no result of this version of frame_semantics"),
        (good, layers, "no single heads were disabled"),
        (good, larger, "a model of 12 layers x 3 heads; the frame maps are of one of 2 x 3"),
        (good, old, "holds no results of bertjax ablate or head_ablation"),
        (good, tmp_path / "nowhere", "holds no results of `bertjax ablate`"),
    ):
        code = main(["--frames", str(given), "--results", str(results), "--output", str(tmp_path / "out")])
        said = capsys.readouterr().err
        assert (code, said.count("\n")) == (2, 1), said
        assert words in said
    assert not (tmp_path / "out").exists()
