"""Heads that are alike: distances against scipy's, what another text leaves, groups, pairs disabled, a whole run."""

import json
from argparse import Namespace

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

import bertjax
from bertjax.data.tokenizer import Encoding
from bertjax.interventions import overrides
from bertjax.tasks import load_examples
from experiments.beyond import repeated_patterns
from experiments.patterns.maps import sizes_of
from experiments.shared.run import Run
from experiments.similarity import distances
from experiments.similarity.distances import compare_heads, measure_distances, square
from experiments.similarity.groups import group_heads, order_heads, report_groups
from experiments.similarity.pairs import Couples, choose_couples, compare_couples
from experiments.similarity.partners import Partners, draw_partners, fit
from experiments.similarity.parts import means_of, report_parts
from tests.factories import make_embedder, write_pairs
from tests.tiny_models import arrays_of, largest_difference

pytestmark = pytest.mark.integration

PLACES, WIDTH = 6, 8
NAMES = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


def test_distances_are_those_of_scipy_and_padding_never_counts(rng):
    length = 5
    several = np.zeros((2, PLACES, WIDTH, WIDTH), np.float32)
    several[:, :, :length, :length] = rng.dirichlet(np.full(length, 0.3), (2, PLACES, length))
    several[:, 0, 1] = np.eye(WIDTH)[0]  # a row of zeros and a one
    several[:, :, length:, :length] = rng.dirichlet(np.ones(length), (2, PLACES, WIDTH - length))  # queries of padding
    found = compare_heads(several[0], several[1], np.arange(WIDTH) < length)
    exact = several.astype(np.float64)[:, :, :length, :length]
    for one, other in np.ndindex(PLACES, PLACES):
        rows = jensenshannon(exact[0, one], exact[1, other], axis=-1, base=2) ** 2
        assert abs(found[one, other] - np.nanmean(np.nan_to_num(rows))) < 1e-5
    assert 0.1 < np.min(found) < np.max(found) <= 1


def test_partners_have_the_same_size_and_no_text_in_common():
    def text(first, second, start):
        ids = range(start, start + first + second)
        kinds = (0,) * first + (1,) * second
        return Encoding(tuple(ids), kinds, tuple(map(str, ids)), ((0, 0),) * len(kinds), False)

    pool = [text(5, 4, 0), text(5, 4, 100), text(7, 4, 200), text(6, 5, 300), text(4, 9, 400), text(5, 4, 500)]
    word_sets = [frozenset({str(number)}) for number in range(5)] + [frozenset({"0", "other"})]
    for seed in range(5):
        found = draw_partners([(0, pool[0])], pool, word_sets, 2, seed)
        assert found.texts == (0,)
        assert found.cut == ((0, 2),)
        assert found.drawn[0][0].input_ids == pool[1].input_ids  # as it is, before any that must be cut
        assert all(sizes_of(one) == (5, 4) for one in found.drawn[0])
        assert found.drawn[0][1].input_ids in {
            (200, 201, 202, 205, 206, 207, 208, 209, 210),
            (300, 301, 302, 304, 305, 306, 307, 309, 310),
        }
    assert {draw_partners([(0, pool[0])], pool, word_sets, 2, seed).drawn[0][1].input_ids[0] for seed in range(9)} == {
        200,
        300,
    }
    assert draw_partners([(0, pool[0])], pool, word_sets, 4, 0).texts == ()  # three fit
    assert fit(pool[2], (5, 4)).tokens[3:5] == ("205", "206")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An embedder, and pairs in MRPC's layout."""
    folder = tmp_path_factory.mktemp("models")
    make_embedder(folder)
    (folder / "MRPC").mkdir()
    write_pairs(folder / "MRPC" / "dev.tsv", 40)
    return folder


def content(rng):
    """A map that is another one on each text."""
    return rng.dirichlet(np.full(WIDTH, 0.3), WIDTH)


@pytest.fixture
def planted_distances(monkeypatch, folder):
    """Distances of six heads: two change with the text together, one does so by itself, two look one place back with
    noise of their own, one does what it wants about half of that."""
    back = np.eye(WIDTH)[np.maximum(np.arange(WIDTH) - 1, 0)]

    def maps_of(text):
        rng = np.random.default_rng(text.input_ids[0])
        both, alone, mixed = content(rng), content(rng), content(rng)
        noisy = [0.9 * back + 0.1 * content(rng) for _ in range(2)]
        return np.stack([both, both, alone, *noisy, (both + mixed) / 2])

    def reduce_attention(model, texts, statistic, length):
        maps = np.zeros((len(texts), 2, 3, length, length), np.float32)
        maps[..., :WIDTH, :WIDTH] = np.stack([maps_of(one) for one in texts]).reshape(-1, 2, 3, WIDTH, WIDTH)
        return maps

    monkeypatch.setattr(distances, "reduce_attention", reduce_attention)
    texts = [
        Encoding((number,) * WIDTH, (0,) * WIDTH, ("",) * WIDTH, ((0, 0),) * WIDTH, False) for number in range(900)
    ]
    drawn = tuple((texts[300 + number], texts[600 + number]) for number in range(300))
    model = Namespace(config=Namespace(num_hidden_layers=2, num_attention_heads=3))
    run = Run(Namespace(), model)
    return measure_distances(run, texts[:300], Partners(tuple(range(300)), drawn, ((0, 0),) * 300))


def test_other_texts_keep_only_similarity_by_position(planted_distances):
    means = means_of(planted_distances)
    same, other, place, shared = (square(getattr(means, name)) for name in ("same", "other", "place", "shared"))
    assert same[0, 1] == 0
    assert other[0, 1] > 0.4
    assert shared[0, 1] == pytest.approx(1, abs=1e-6)
    assert other[0, 1] == pytest.approx(means.own[0])  # the other is the same head
    assert same[3, 4] == pytest.approx(other[3, 4], abs=0.003)
    assert other[3, 4] < 0.1
    assert abs(shared[3, 4]) < 0.05
    for one, two in ((0, 2), (2, 3), (1, 4)):
        assert abs(shared[one, two]) < 0.05
    assert 0.3 < shared[0, 5] < 0.9
    assert abs(place[0, 2]) < 0.01
    assert abs(place[3, 4]) < 0.01
    assert place[0, 3] > 0.3
    parts = same - place - (means.own[:, None] + means.own) / 2 + (other - same)
    assert largest_difference(parts[np.triu_indices(PLACES, 1)], np.zeros(15)) < 1e-9


def test_parts_have_intervals_over_texts(planted_distances):
    found = report_parts(planted_distances, 0)
    assert found["nearest"][:2] == ["0.1", "0.0"]
    assert found["nearest"][3:5] == ["1.1", "1.0"]
    assert found["pairs"]["half_shared"] == 3  # 0.0, 0.1 and 1.2, which is half the two
    assert found["pairs"]["closer"] >= 3
    means = means_of(planted_distances)
    one = found["summary"]["all: same"]
    error = planted_distances.same.mean(1).std(ddof=1) / np.sqrt(300)
    assert one["mean"] == pytest.approx(means.same.mean(), rel=1e-4)
    assert one["interval"] == pytest.approx([one["mean"] - 1.96 * error, one["mean"] + 1.96 * error], abs=0.4 * error)
    assert 0 < found["summary"]["by_place"]["mean"] < 1


def test_heads_that_are_the_same_merge_first(planted_distances):
    means = means_of(planted_distances)
    assert len(set(group_heads(means.same, 1e-6))) == PLACES - 1
    assert group_heads(means.same, 1e-6)[0] == group_heads(means.same, 1e-6)[1]
    order = order_heads(means.same).tolist()
    assert abs(order.index(0) - order.index(1)) == 1
    found = report_groups(planted_distances)
    assert found["cut"] == pytest.approx(means.own.mean(), rel=1e-5)
    assert found["members"] == [["0.0", "0.1", "1.2"], ["1.0", "1.1"]]
    assert (found["count"], found["alone"]) == (3, 1)


def test_couples_are_nearest_pairs_and_peers_are_far_apart(rng):
    same = rng.random(66)  # 12 heads, 6 of a layer
    couples = choose_couples(same, 12, 6, 4, 0)
    full = square(same)
    assert full[couples.similar[0]] == same.min()
    assert len({head for pair in couples.similar for head in pair}) == 2 * len(couples.similar) == 8
    assert len(set(couples.controls)) == 4
    for pair, control in zip(couples.similar, couples.controls, strict=True):
        layers = [head // 6 for head in pair]
        assert [head // 6 for head in control] == layers
        peers = [full[one, two] for one in range(12) for two in range(one + 1, 12) if [one // 6, two // 6] == layers]
        assert full[control] > np.median(peers)
    for seed in range(50):  # a control is never one of those that are alike
        many = choose_couples(rng.random(66), 12, 6, 6, seed)
        assert not set(many.similar) & set(many.controls)


def test_only_redundant_heads_have_effects_beyond_the_sum(rng):
    couples = Couples([(0, 1), (2, 3)], [(0, 4), (2, 5)])
    places = {(head,): head for head in range(PLACES)}
    places |= {pair: PLACES + number for number, pair in enumerate([*couples.similar, *couples.controls])}
    alone = rng.normal(size=(1 + 400, PLACES))
    together = [alone[:, [one]] + alone[:, [two]] for one, two in [*couples.similar, *couples.controls]]
    sums = np.hstack([alone, *together])
    found = compare_couples(sums[0], sums[1:], couples, NAMES, places, 0)
    for kind in ("alike", "controls"):
        assert np.abs(found[kind]["beyond"] + found[kind]["mean"]).max() < 1e-9
    assert found["difference"]["mean"] == 0
    assert found["difference"]["p"] == 1
    sums[0, PLACES : PLACES + 2] -= 3
    sums[1:, PLACES : PLACES + 2] += rng.normal(-3, 0.5, (400, 2))
    found = compare_couples(sums[0], sums[1:], couples, NAMES, places, 0)
    low, high = found["difference"]["interval"]
    assert -5 < low < found["difference"]["mean"] < high < -1
    assert max(found["alike"]["q"]) < 0.01
    assert found["controls"]["beyond"] == pytest.approx([0, 0])
    assert found["difference"]["p"] == pytest.approx(0.5, abs=0.03)  # two couples: two of four signs
    sums[0, PLACES] = np.nan
    undefined = compare_couples(sums[0], sums[1:], couples, NAMES, places, 0)["difference"]
    assert (undefined["mean"], undefined["p"]) == (None, None)


def run_main(folder, output, *more):
    arguments = ["--model", str(folder), "--task", "mrpc", "--data", str(folder), "--output", str(output)]
    return repeated_patterns.main([*arguments, "--draws", "2", *more])


def test_a_run_writes_numbers_pictures_and_single_run_outputs(folder, tmp_path):
    assert run_main(folder, tmp_path, "--limit", "12", "--disable", "1") == 0
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    results, values = numbers["results"], arrays_of(tmp_path / "values.npz")
    assert results["texts"] == len(values["same"]) == 12 - results["control"]["left_out"]
    assert results["same"] == pytest.approx(values["same"].mean(0), abs=1e-3)
    tokenizer, model = bertjax.Tokenizer.from_pretrained(folder), bertjax.load(folder)
    examples = load_examples("mrpc", data=folder)
    place = list(examples.ids).index(values["ids"][0])
    text = tokenizer.encode([examples.first[place]], [examples.second[place]])
    maps = np.asarray(model(**bertjax.collate(text)).attentions, np.float64)[:, 0].reshape(PLACES, len(text[0]), -1)
    rows = jensenshannon(maps[0], maps[5], axis=-1, base=2) ** 2
    assert abs(values["same"][0, 4] - rows.mean()) < 1e-5
    heads = results["disabled"]["alike"]["pairs"][0]
    number = list(values["disabled_names"]).index("+".join(heads))
    texts = (tokenizer.encode([one[place]]) for one in (examples.first, examples.second))
    without = overrides.uniform(model.config, heads)
    vectors = [np.asarray(model(**bertjax.collate(one), overrides=without).sentence_embedding)[0] for one in texts]
    expected = np.dot(*vectors) / np.prod([np.linalg.norm(one) for one in vectors])
    assert abs(values["disabled"][number, place] - expected) < 1e-5
    pictures = repeated_patterns.figures(numbers)
    assert set(pictures) == {"figure", "disabled"}
    pictures["figure"](tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "figure.png").read_bytes()
    tables = repeated_patterns.tables({"": numbers}).split("\n\n")
    assert len(tables) == 2
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    both = repeated_patterns.tables({"one": numbers, "two": numbers}).split("\n\n")[0]
    assert len(both.splitlines()) == 4
