"""Ablations as values, and the trie that they become."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from bertjax import BertConfig
from bertjax.engine.plan import make_plan
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from tests.tiny_models import tree_equal

BASE = BertConfig()


def paths(plan):
    """For each ablation the changes along its way from the root."""
    found = {}

    def walk(node, way):
        for number in node.ablations:
            found[number] = way
        for layer, children in node.children.items():
            for child in children:
                assert child.layer == layer > node.layer
                walk(child, way + child.changes)

    walk(plan.root, ())
    return found


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: ab.single_heads(BASE), 144),
        (lambda: ab.whole_layers(BASE, "zero"), 12),
        (lambda: ab.head_pairs(BASE), 10296),
        (lambda: ab.all_but_one(BASE), 144),
        (lambda: ab.one_of_layer(BASE), 144),
        (lambda: ab.cumulative(BASE, order=["3.0", "1.7", "11.11"]), 3),
        (lambda: ab.random_subsets(BASE, size=5, count=50, seed=3), 50),
    ],
    ids=["heads", "layers", "pairs", "all but one", "one of layer", "cumulative", "subsets"],
)
def test_every_ablation_is_the_way_to_its_node(make, count):
    several = make()
    plan = make_plan(BASE, several)
    found = paths(plan)
    assert len(several) == count
    assert set(found) == {-1, *range(count)}
    assert all(found[number] == one.changes for number, one in enumerate(several))
    assert found[-1] == ()
    assert plan.duplicates == 0


def test_runs_share_all_that_they_have_in_common():
    plan = make_plan(BASE, ab.head_pairs(BASE))
    for layer, states in enumerate(plan.states()):
        heads = 12 * (layer + 1)
        # The base, pairs complete by now, and heads that wait for a partner above.
        assert states == 1 + heads * (heads - 1) // 2 + (heads if layer < 11 else 0)


def test_states_count_runs_only_while_they_are_needed(small):
    small = replace(small, num_hidden_layers=4)
    several = [ab.ablation(small, ["1.0", "3.2"]), ab.ablation(small, ["1.0", "2.1"])]
    # The base; 1.0 alone after layers 1 and 2, until 3.2 branches off; the pair with 2.1; the pair with 3.2.
    assert make_plan(small, several).states() == [1, 2, 3, 3]


def test_duplicates_run_once():
    several = [ab.ablation(BASE, heads) for heads in (["3.0"], ["3.0", "1.0"], ["1.0", "3.0"], [])]
    several.append(ab.Ablation("nothing", (ab.Change(2, 2, "zero", 0.0),)))
    plan = make_plan(BASE, several)
    assert plan.duplicates == 3
    assert plan.root.ablations == [-1, 3, 4]
    assert sorted(node.ablations for node in plan.nodes()) == [[], [-1, 3, 4], [0], [1, 2]]


def test_kinds_of_overrides_are_distinguished():
    several = [
        ab.Ablation(mode, (ab.Change(1, 2, mode, share),))
        for mode, share in (("zero", 1.0), ("mean", 1.0), ("zero", 0.5))
    ]
    assert len(make_plan(BASE, several).root.children[1]) == 3


def test_overrides_are_those_of_the_constructors(small, rng):
    means = rng.normal(size=(2, 3, 4))
    mixed = ab.Ablation(
        "mixed",
        (
            ab.Change(1, 0, "mean", 0.25),
            ab.Change(0, 1),
            ab.Change(0, 2, "zero", 0.5),
            ab.Change(1, 1, "uniform", 0.75),
        ),
    )
    expected = ov.combine(
        ov.uniform(small, ["0.1"]),
        ov.uniform(small, ["1.1"], 0.25),
        ov.factor(small, ["0.2"], 0.5),
        ov.mean(small, ["1.0"], means, 0.75),
    )
    assert tree_equal(ab.to_overrides(small, mixed, means), expected)
    assert tree_equal(ab.to_overrides(small, ab.Ablation("base", ())), ov.identity(small))


def test_collections_are_what_their_names_say(small):
    every = ov.every_head(small)
    assert [one.name for one in ab.single_heads(small)] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    assert [len(one.changes) for one in ab.whole_layers(small)] == [3, 3]
    assert [one.name for one in ab.head_pairs(small)][:2] == ["0.0+0.1", "0.0+0.2"]
    assert len(ab.head_pairs(small)) == len(list(itertools.combinations(every, 2)))
    left = ab.all_but_one(small)[4]
    assert left.name == "all but 1.1"
    assert {(change.layer, change.head) for change in left.changes} == {*every} - {(1, 1)}
    assert [len(one.changes) for one in ab.cumulative(small, order=["1.0", "0.1"])] == [1, 2]
    drawn = ab.random_subsets(small, size=2, count=6, seed=1)
    again, other = (ab.random_subsets(small, size=2, count=6, seed=seed) for seed in (1, 2))
    assert drawn == again != other
    assert all(len(one.changes) == 2 for one in drawn)


def test_senseless_ablations_are_refused(small):
    with pytest.raises(InputError, match="nothing to ablate"):
        make_plan(small, [])
    with pytest.raises(OverrideError, match=r"no head 2\.0"):
        make_plan(small, [ab.Ablation("x", (ab.Change(2, 0),))])
    with pytest.raises(InputError, match=r"0\.0\+0\.0 names a head, or a site, twice"):
        ab.ablation(small, ["0.0", "0.0"])
    with pytest.raises(InputError, match="mode 'half' is not one of uniform, zero, mean"):
        ab.Change(0, 0, "half")
    with pytest.raises(InputError, match="finite"):
        ab.Change(0, 0, "zero", float(np.nan))
    with pytest.raises(InputError, match="7 heads cannot be drawn: the model has 6"):
        ab.random_subsets(small, size=7, count=1)
    with pytest.raises(OverrideError, match="give means"):
        ab.to_overrides(small, ab.ablation(small, ["0.0"], "mean"))


def test_pairs_of_no_heads_are_none():
    assert ab.head_pairs(BertConfig(), heads=[]) == []
    assert [one.name for one in ab.head_pairs(BertConfig(), heads=["0.1", "2.0", "1.1"])] == [
        "0.1+2.0",
        "0.1+1.1",
        "1.1+2.0",
    ]
