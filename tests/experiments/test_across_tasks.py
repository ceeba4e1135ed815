"""Runs of several seeds and tasks joined: made-up effects that are found or not, nulls, other measures, mistakes."""

import json
from itertools import permutations

import numpy as np
import pytest
import scipy.stats

from experiments.beyond import across_tasks
from experiments.beyond.across_tasks import TESTS, read_tasks
from experiments.shared.head_maps import read_map
from experiments.shared.joined_tables import format_q
from experiments.shared.joins import (
    between_seeds,
    compare_marked,
    correlate,
    draw_orders,
    permute,
    reliability,
    share_top,
)
from tests.tiny_models import largest_difference

pytestmark = pytest.mark.integration

LAYERS, HEADS = 4, 6
PLACES = LAYERS * HEADS
LAYER_OF = np.repeat(np.arange(LAYERS), HEADS)
NAMES = [f"{layer}.{head}" for layer in range(LAYERS) for head in range(HEADS)]


def write_run(directory, task, effects, *, seed=0, examples=400, kind="head", labels_seed=0, split="validation"):
    """A run whose places lose that share of the examples when they are disabled (or gain, where it is negative).

    Which ones is drawn with `seed`, so that runs differ by the noise of examples and seeds.
    """
    rng, labels = np.random.default_rng(seed), np.random.default_rng(labels_seed).integers(0, 2, examples)
    right = np.ones((1 + len(effects), examples), bool)
    right[0, rng.random(examples) < 0.3] = False
    for place, share in enumerate(effects, 1):
        flip = rng.random(examples) < abs(share) + 0.02
        right[place] = np.where(flip, rng.random(examples) < (share < 0), right[0])
    outputs = np.eye(2)[np.where(right, labels, 1 - labels)]
    changes = 100 * (right[1:].mean(1) - right[0].mean())
    part = {name: changes.tolist() for name in ("change", "low", "high")}
    q = [0.001 if abs(share) > 0.2 else 0.9 for share in effects]
    part |= {"p": q, "q": q, "mean": float(changes.mean()), "mean_interval": [None, None]}
    results = {"kind": kind, "model": f"{task}-{seed}", "task": task, "split": split, "outputs": "logits"}
    results |= {"layers": LAYERS, "heads": HEADS, "names": NAMES[: len(effects)], "metric": "accuracy", "positive": 1}
    results |= {"base": {"accuracy": float(right[0].mean())}, "effects": {"accuracy": {"uniform": part}}}
    directory.mkdir(parents=True)
    (directory / "numbers.json").write_text(json.dumps({"results": results}))
    np.savez(directory / "values.npz", uniform=outputs, labels=labels, ids=np.arange(examples))
    return str(directory)


@pytest.fixture
def shared():
    """Losses that two tasks share."""
    return np.random.default_rng(5).uniform(0, 0.5, PLACES)


def run_main(output, *runs):
    few = ["--resamples", "60", "--permutations", "500"]
    return across_tasks.main([*map(str, runs), *few, "--output", str(output)])


def test_orders_change_places_within_their_group_alone():
    groups = np.array([2, 0, 0, 1, 2, 1, 0])
    orders = draw_orders(groups, 200, 0)
    assert (np.sort(orders, axis=1) == np.arange(7)).all()
    assert (groups[orders] == groups).all()
    assert {tuple(row[[1, 2, 6]]) for row in orders} == {
        *((1, 2, 6), (1, 6, 2), (2, 1, 6), (2, 6, 1), (6, 1, 2), (6, 2, 1)),
    }


def test_what_layers_have_in_common_counts_not_within_layers():
    rng = np.random.default_rng(2)
    first, second = (10.0 * LAYER_OF + rng.normal(size=PLACES) for _ in range(2))
    assert permute(first, second, np.zeros(PLACES, int), 2000, 0) < 0.002
    assert permute(first, second, LAYER_OF, 2000, 0) > 0.05
    same = 10.0 * LAYER_OF + rng.normal(size=PLACES)
    assert permute(same, same + 0.1 * rng.normal(size=PLACES), LAYER_OF, 2000, 0) < 0.002
    turned = 20.0 * LAYER_OF - same  # the same order of layers, the opposite one within each
    assert permute(same, turned, LAYER_OF, 2000, 0) < 0.002


@pytest.mark.parametrize("groups", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]])
def test_random_orders_give_the_share_that_all_orders_give(rng, groups):
    groups, first, second = np.array(groups), rng.normal(size=6), rng.normal(size=6)
    orders = [list(one) for one in permutations(range(6)) if (groups[list(one)] == groups).all()]
    null = np.array([scipy.stats.spearmanr(first, second[order]).statistic for order in orders])
    far = np.abs(scipy.stats.spearmanr(first, second).statistic - null.mean())
    exact = (np.abs(null - null.mean()) >= far - 1e-9).mean()
    assert abs(permute(first, second, groups, 20000, 0) - exact) < 4 * 0.5 / np.sqrt(20000)
    up = np.arange(4.0)
    for seed in range(5):  # the order and its opposite, 2 of 24, whichever way chance leans
        assert permute(up, up, np.zeros(4, int), 20000, seed) == pytest.approx(1 / 12, abs=0.01)


def test_the_interval_of_a_correlation_contains_it():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=PLACES)
    noisy = [(truth + 0.5 * rng.normal(size=PLACES), truth + 0.5 * rng.normal(size=PLACES)) for _ in range(200)]
    assert correlate(truth + 0.2, truth**3, LAYER_OF, noisy, 500, 0)["spearman"] == 1
    half = correlate(truth, truth + rng.normal(size=PLACES), LAYER_OF, noisy, 500, 0)
    assert abs(np.arctanh(half["interval"]).mean() - np.arctanh(half["spearman"])) < 1e-3
    assert half["interval"][1] - half["interval"][0] > 0.05
    assert correlate(truth, np.ones(PLACES), LAYER_OF, noisy, 500, 0)["spearman"] is None


def test_how_far_an_order_is_more_than_noise():
    rng = np.random.default_rng(4)
    truth = rng.normal(size=PLACES)
    kept = truth + 0.1 * rng.normal(size=(50, 2, PLACES))
    noise = rng.normal(size=(50, 2, PLACES))
    assert reliability(kept) > 0.97
    assert abs(reliability(noise)) < 0.15
    seeds = np.stack([kept, kept[:, ::-1]], axis=2)
    assert between_seeds(seeds) > 0.97
    assert np.isnan(between_seeds(seeds[:, :, :1]))


def test_noise_of_examples_that_two_seeds_share_is_no_agreement():
    """Both seeds have the noise of each half in common, and nothing else."""
    noise = np.random.default_rng(6).normal(size=(80, 2, 1, PLACES))
    assert abs(between_seeds(np.repeat(noise, 2, axis=2))) < 0.15


def test_the_largest_that_two_share():
    values = np.arange(30.0)
    found = share_top(values, values, [str(place) for place in range(30)])
    assert (found["of"], found["shared"]) == (3, ["27", "28", "29"])
    assert abs(found["chance"] - 1 / 4060) < 1e-6
    assert share_top(values, -values, [str(place) for place in range(30)])["chance"] == 1


def test_marked_heads_against_the_others():
    values = np.zeros(PLACES)
    values[[0, 7, 14]] = 1
    marked = np.isin(np.arange(PLACES), [0, 7, 14])
    found = compare_marked(values, marked, LAYER_OF, 2000, 0)
    assert (found["marked"], found["mean_of_marked"], found["mean_of_others"]) == (3, 1, 0)
    assert found["p"] < 0.01
    assert compare_marked(values, np.roll(marked, 1), LAYER_OF, 2000, 0)["p"] > 0.2
    assert compare_marked(values, np.zeros(PLACES, bool), LAYER_OF, 10, 0) is None
    # One of four, and two of four, of which the one that is far the other way counts too; what is NaN is left out.
    for four, share in (([3.0, 0, 0, 0], 1 / 4), ([1.0, 1, 0, 0], 1 / 3)):
        few = compare_marked(np.array([*four, np.nan]), np.array([*four, 9]) > 0, np.zeros(5, int), 20000, 0)
        assert abs(few["p"] - share) < 4 * 0.5 / np.sqrt(20000)
        assert few["marked"] == np.count_nonzero(four)
    by_layer = compare_marked(1.0 * (LAYER_OF == 2), LAYER_OF == 2, LAYER_OF, 500, 0)
    assert by_layer["p"] < 0.01 < by_layer["p_within_layers"] == 1


def test_draws_are_those_of_the_scores(tmp_path, shared):
    """Each draw's changes are the metric's on the drawn examples; halves are of disjoint examples."""
    one = read_tasks([write_run(tmp_path / "a", "mrpc", shared, examples=30)], "uniform", 20, 0)["mrpc"]
    assert (one.drawn.shape, one.halves.shape) == ((20, 1, PLACES), (100, 2, 1, PLACES))
    assert largest_difference(one.halves.mean(1)[:, 0], np.repeat(one.change, 100, 0)) < 1e-9
    assert not np.allclose(one.halves[0], one.halves[1])


def test_tasks_that_need_the_same_heads_and_one_that_does_not(tmp_path, shared):
    other = np.random.default_rng(9).permutation(shared)
    runs = [
        write_run(tmp_path / f"{task}-{seed}", task, effects, seed=seed + 10 * number, labels_seed=number)
        for number, (task, effects) in enumerate((("mrpc", shared), ("rte", shared), ("sst2", other)))
        for seed in range(2)
    ]
    assert run_main(tmp_path / "out", *runs) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    results = numbers["results"]
    pairs = {tuple(pair["tasks"]): pair for pair in results["pairs"]}
    assert list(results["tasks"]) == ["mrpc", "rte", "sst2"]
    same, different = pairs["mrpc", "rte"], pairs["mrpc", "sst2"]
    assert same["spearman"] > 0.9
    assert max(same["p"], same["p_within_layers"]) < 0.01
    assert same["interval"][0] > 0.8
    assert different["p"] > 0.05
    for p, q in TESTS:
        expected = scipy.stats.false_discovery_control([pair[p] for pair in pairs.values()])
        assert largest_difference([pair[q] for pair in pairs.values()], expected) < 1e-3
    assert len(same["largest_losses"]["shared"]) >= 1
    one = results["tasks"]["mrpc"]
    assert (one["seeds"], one["examples"], one["models"]) == (2, 400, ["mrpc-0", "mrpc-1"])
    expected = read_tasks(runs[:2], "uniform", 2, 0)["mrpc"].mean
    assert largest_difference(one["mean"], expected) < 1e-4
    large = [place for place in range(PLACES) if shared[place] > 0.2]
    assert [place for place, seeds in enumerate(one["seeds_that_find_a_loss"]) if seeds == 2] == large
    assert sum(one["seeds_that_find_a_gain"]) == 0
    assert abs(one["random"]["mean"] - expected.mean()) < 1e-4
    assert one["random"]["high"] < 0
    assert one["random"]["p"] < 0.05
    assert one["reliability"] > 0.9
    assert one["between_seeds"] > 0.8
    assert (tmp_path / "out" / "agreement.pdf").read_bytes().startswith(b"%PDF")
    blocks = across_tasks.tables({"": numbers}).split("\n\n")
    assert [len(block.splitlines()) for block in blocks] == [5, 5]
    assert all(len({line.count("|") for line in block.splitlines()}) == 1 for block in blocks)


def test_layers_of_a_single_run_keep_the_statistics_of_that_run(tmp_path):
    run = write_run(tmp_path / "a", "mrpc", [0.4, 0.0, 0.3, 0.0], kind="layer")
    assert run_main(tmp_path / "out", run) == 0
    one = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"]["tasks"]["mrpc"]
    effects = read_tasks([run], "uniform", 2, 0)["mrpc"].effects[0]
    assert (one["p"], one["between_seeds"]) == (effects.p.tolist(), None)
    assert one["low"] == [round(value, 4) for value in effects.low.tolist()]
    assert not (tmp_path / "out" / "agreement.png").exists()


def test_few_layers_have_a_rank_correlation_without_an_interval(tmp_path):
    runs = [
        write_run(tmp_path / task, task, [0.4, 0.0, 0.3, 0.1], kind="layer", seed=number)
        for number, task in enumerate(("mrpc", "rte"))
    ]
    assert run_main(tmp_path / "out", *runs) == 0
    (pair,) = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"]["pairs"]
    assert pair["spearman"] > 0.7
    assert pair["interval"] == [None, None]


def controls_of(square):
    """As `frame_semantics` tells them: forth, heads that lose most are least above other words; back, most."""
    links, others = [square, 3 * square], [2 * square, square]
    return {"same_key": {"links": [one.tolist() for one in links], "others": [one.tolist() for one in others]}}


def check_table_of_measures(numbers, found):
    """A row for each task and measure; two of the three tasks have shares."""
    *_, table = across_tasks.tables({"": numbers}).split("\n\n")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert {len(row) for row in cells} == {5}
    by_name = {(row[0], row[1]): row[2:] for row in cells[2:]}
    assert by_name.keys() == found.keys()
    assert ("rte", "share of diagonal") not in by_name
    marked, draws = found["mrpc", "large"]["marked"], numbers["results"]["permutations"]
    assert marked["p"] <= marked["q"] < 0.05
    assert all(f"q {format_q(marked, draws, test)}" in by_name["mrpc", "large"][-1] for test in TESTS)


def test_other_measures_of_heads(tmp_path, shared):
    """Frames' marked heads are those that lose most; a share by task; a map of all."""
    runs = [write_run(tmp_path / f"mrpc-{seed}", "mrpc", shared, seed=seed) for seed in range(2)]
    runs.append(write_run(tmp_path / "rte-0", "rte", shared, seed=4, labels_seed=2))
    top = np.argsort(-shared)[:4]
    square = shared.reshape(LAYERS, HEADS)
    maps = {"element_to_predicate": square.tolist(), "predicate_to_element": (-square).tolist()}
    left = {"element_to_predicate": [NAMES[place] for place in top], "predicate_to_element": []}
    frames = {"maps": maps | {"as_published": square.tolist()}, "heads_left": left, "controls": controls_of(square)}
    (tmp_path / "frames.json").write_text(json.dumps({"results": frames}))
    by_head = {"mrpc": {"by_head": {"diagonal": square.tolist()}}}
    (tmp_path / "patterns.json").write_text(json.dumps({"results": {"classes": ["diagonal"], "corrected": by_head}}))
    measures = ["--frames", tmp_path / "frames.json", "--patterns", tmp_path / "patterns.json"]
    named = f"mine={tmp_path / 'frames.json'}:maps.predicate_to_element"
    large = f"large={tmp_path / 'patterns.json'}:corrected.{{task}}.by_head.diagonal>{np.sort(shared)[-5]}"
    runs.append(write_run(tmp_path / "mrpc-part", "mrpc", shared, seed=7, split="held-out-9"))
    assert run_main(tmp_path / "out", *runs, *measures, "--map", named, "--map", large) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    found = {(one["task"], one["measure"]): one for one in numbers["results"]["measures"]}
    assert ("rte", "share of diagonal") not in found
    assert ("rte", "large") not in found
    assert len(found) == 3 * (5 + 1) + 2 * 2  # of rte no shares are known
    forth = found["mrpc", "elements to predicate"]
    assert forth["spearman"] > 0.9
    assert forth["p"] < 0.01
    assert forth["q"] < 0.01
    assert forth["marked"]["marked"] == 4
    assert forth["marked"]["p"] < 0.01
    assert forth["marked"]["mean_of_marked"] > forth["marked"]["mean_of_others"] > 0
    assert found["mrpc", "mine"]["spearman"] == found["mrpc", "predicate to elements"]["spearman"] < -0.9
    assert found["mrpc", "predicate to elements"]["marked"] is None
    assert found["mrpc", "elements to predicate, above other words"]["spearman"] == -forth["spearman"]
    assert found["mrpc", "predicate to elements, above other words"]["spearman"] == forth["spearman"]
    either = found["mrpc", "the larger of both, left in either"]
    assert (either["spearman"], either["marked"]) == (forth["spearman"], forth["marked"])
    for task in ("mrpc", "mrpc:held-out-9"):
        forth = found[task, "elements to predicate"]
        assert found[task, "share of diagonal"] == forth | {"measure": "share of diagonal", "marked": None}
        assert found[task, "large"] == forth | {"measure": "large"}
    check_table_of_measures(numbers, found)


def test_splits_and_kinds_of_outputs_are_other_tasks(tmp_path):
    usual = {"task": "mnli", "split": "validation_matched", "outputs": "logits"}
    assert across_tasks.name_task(usual) == "mnli"
    assert across_tasks.name_task(usual | {"split": "validation_mismatched"}) == "mnli:validation_mismatched"
    assert across_tasks.name_task(usual | {"split": "validation", "outputs": "similarity"}) == "mnli, similarity"


def test_a_map_by_task_is_found_for_parts_of_its_data(tmp_path):
    by_task = {"stsb": [[1.0, 2.0]], "qqp:held-out-9": [[3.0, 4.0]]}
    (tmp_path / "maps.json").write_text(json.dumps({"results": by_task}))
    found = read_map(f"mine={tmp_path / 'maps.json'}:{{task}}>1.5")
    assert found.of("stsb:train").tolist() == found.of("stsb, similarity").tolist() == [1, 2]
    assert found.of("qqp:held-out-9").tolist() == [3, 4]
    assert (found.of("rte"), found.least) == (None, 1.5)
