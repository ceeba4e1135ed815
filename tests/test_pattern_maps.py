"""Maps for labelling by eye: how they are drawn and kept, the tool, and the labels that are shipped."""

import io
import json
import re
from argparse import Namespace
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.checkpoints.weight_files import hash_weights, read_weights
from bertjax.errors import DataError
from bertjax.machine import package_version
from bertjax.tasks import load_examples
from experiments.label_maps import label_order, main, make_parser, take_letters
from experiments.patterns.maps import (
    CLASSES,
    DATA,
    NAMES,
    MapRow,
    MapSet,
    draw_heads,
    export_maps,
    quantise,
    read_maps,
    sizes_of,
    weights_of,
    with_label,
    write_maps,
)
from experiments.patterns.scores import bootstrap, score_agreement
from tests.factories import write_pairs
from tests.tiny_models import largest_difference

pytestmark = pytest.mark.integration


@pytest.fixture
def some(rng):
    """Five random maps of different sizes."""
    sizes = [(3, 0), (2, 3), (4, 2), (3, 3), (5, 4)]
    rows = tuple(MapRow("mrpc", str(7 * n), n % 2, n % 3, *size) for n, size in enumerate(sizes))
    return MapSet(rows, tuple(rng.integers(0, 256, (row.tokens, row.tokens), np.uint8) for row in rows))


def test_bytes_keep_weights_to_half_a_step_of_their_root(rng):
    weights = rng.dirichlet(np.full(17, 0.3), (4, 17)).astype(np.float32)
    found = np.asarray(quantise(jnp.asarray(weights)))
    assert largest_difference(np.sqrt(weights), found / 255.0) <= 0.5 / 255 + 1e-6
    assert largest_difference(weights_of(found[0]).sum(-1), np.ones(17)) < 1e-6
    assert largest_difference(weights_of(found[0]), weights[0]) < 0.01


def test_export_crops_the_wanted_heads_of_each_example(embedder, rng):
    model, tokenizer = bertjax.load(embedder), bertjax.Tokenizer.from_pretrained(embedder)
    texts = tokenizer.encode(
        ["a dog ran", "the cat sat on the mat", "he ran home"], ["cats sleep", "a dog ran", "he ran"]
    )
    wanted = draw_heads(3, [(0, 1), (1, 0), (1, 2)], 2, seed=int(rng.integers(1000)))
    found = export_maps(model, "mrpc", ["4", "9", "2"], texts, wanted, lambda done, total: None)
    assert len(found) == 6
    for number, (row, one) in enumerate(zip(found.rows, found.maps, strict=True)):
        text = texts[number // 2]
        assert (row.example, row.layer, row.head) == (["4", "9", "2"][number // 2], *wanted[number // 2, number % 2])
        assert (row.first, row.second) == sizes_of(text)
        assert row.tokens == len(text)
        weights = model(**bertjax.collate([text])).attentions[row.layer, 0, row.head]
        assert largest_difference(np.sqrt(weights), one / 255.0) <= 0.5 / 255 + 1e-5


def test_heads_are_drawn_without_repetition_among_those_named():
    among = [(0, 2), (3, 1), (4, 4)]
    drawn = draw_heads(40, among, 2, seed=5)
    assert drawn.shape == (40, 2, 2)
    assert {tuple(head) for one in drawn.tolist() for head in one} == set(among)
    assert all(one[0] != one[1] for one in drawn.tolist())
    assert draw_heads(2, among, 9, seed=5).shape == (2, 3, 2)


def test_files_come_back_as_they_were_written(some, tmp_path):
    write_maps(tmp_path / "mine", some)
    back = read_maps(tmp_path / "mine")
    assert back.rows == some.rows
    assert all(np.array_equal(one, other) for one, other in zip(back.maps, some.maps, strict=True))


@pytest.mark.parametrize("damage", ["no maps", "a row less", "a class of another name", "no column", "no rows"])
def test_damaged_files_are_refused(some, tmp_path, damage):
    write_maps(tmp_path / "mine", some)
    table = (tmp_path / "mine.tsv").read_text()
    lines = table.splitlines(keepends=True)
    changed = {
        "no maps": table,
        "a row less": "".join(lines[:-1]),
        "a class of another name": lines[0] + lines[1].rstrip("\n") + "wavy\n",
        "no column": table.replace("layer", "depth"),
        "no rows": lines[0],
    }[damage]
    (tmp_path / "mine.tsv").write_text(changed)
    if damage == "no maps":
        (tmp_path / "mine.npz").unlink()
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        read_maps(tmp_path / "mine")


def test_letters_label_in_order_and_u_takes_back(some, capsys):
    rows, order = list(some.rows), [3, 0, 4, 1, 2]
    take_letters(rows, order, "vdub", again=False)
    assert [row.label for row in rows] == ["block", "", "", "vertical", ""]
    take_letters(rows, order, "mxh", again=False)
    assert rows[4].label == "vertical+diagonal"
    assert rows[1].label == ""
    assert "'x' is left out" in capsys.readouterr().out
    assert [replace(row, label="") for row in rows] == list(some.rows)
    take_letters(rows, order, "h", again=True)
    assert rows[3].again == "heterogeneous"
    assert rows[3].label == "vertical"


def test_labelling_goes_on_where_it_stopped(some, tmp_path, monkeypatch, capsys):
    name = str(tmp_path / "mine")
    write_maps(tmp_path / "mine", some)
    order = label_order(5, again=False, seed=0)
    monkeypatch.setattr("sys.stdin", io.StringIO("vd\n\n"))
    assert main(["label", name]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("m b\nh\n"))
    assert main(["label", name]) == 0
    assert "5 of 5 maps are labelled" in capsys.readouterr().out
    labels = [row.label for row in read_maps(tmp_path / "mine").rows]
    assert [labels[place] for place in order] == list(CLASSES.values())
    assert main(["agreement", name]) == 2
    assert "no map has two labels" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("vvvvv\n"))
    assert main(["label", name, "--again"]) == 0
    assert main(["agreement", name]) == 0
    assert "5 maps labelled twice: Cohen's kappa 0.00" in capsys.readouterr().out


def test_labels_of_one_class_have_no_kappa(some, tmp_path, capsys):
    rows = [with_label(with_label(row, "vertical", again=False), "vertical", again=True) for row in some.rows]
    write_maps(tmp_path / "mine", MapSet(tuple(rows), some.maps))
    assert main(["agreement", str(tmp_path / "mine")]) == 2
    assert "all 5 maps labelled twice are of one class, so kappa is undefined" in capsys.readouterr().err


def test_sheets_are_pictures_beside_the_maps_or_where_one_says(some, tmp_path):
    write_maps(tmp_path / "mine", some)
    for more in ([], ["--again"], ["--output", str(tmp_path / "other")]):
        assert main(["sheets", str(tmp_path / "mine"), *more]) == 0
    for name in ("mine-sheet-01.png", "mine-again-01.png", "other/mine-sheet-01.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_sheets_of_maps_that_are_not_there_say_what_makes_them(tmp_path, capsys):
    assert main(["sheets", str(tmp_path / "mine")]) == 2
    assert "mine.tsv: no such file or directory; `export` makes one" in (said := capsys.readouterr().err)
    assert "`export` makes one" in said


def test_the_second_round_has_another_order():
    assert label_order(400, False, 0) != label_order(400, True, 0)
    assert sorted(label_order(400, False, 0)) == list(range(400))
    assert len(set(label_order(400, True, 0))) == 120


def test_the_command_exports_and_keeps_what_is_there(embedder, tmp_path, capsys):
    data = write_pairs(tmp_path / "dev.tsv", 9)
    name = str(tmp_path / "mine")
    arguments = ["export", name, "--model", str(embedder), "--task", "mrpc", "--data", str(data)]
    assert main([*arguments, "--only", "1.3"]) == 2
    assert "has no head 1.3; its last is 1.2" in capsys.readouterr().err
    assert main([*arguments, "--limit", "4", "--heads", "3"]) == 0
    found = read_maps(tmp_path / "mine")
    assert len(found) == 12
    assert len({row.example for row in found.rows}) == 4
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_export_says_what_made_it(embedder, tmp_path):
    data = write_pairs(tmp_path / "dev.tsv", 9)
    arguments = ["export", str(tmp_path / "mine"), "--model", str(embedder), "--task", "mrpc", "--data", str(data)]
    assert main([*arguments, "--limit", "4", "--heads", "2", "--seed", "3", "--only", "0.1", "1.0", "1.2"]) == 0
    facts = json.loads((tmp_path / "mine.json").read_text())
    assert facts["model"]["name"] == str(embedder)
    assert facts["model"]["weights_sha256"] == hash_weights(read_weights(embedder))
    assert facts["versions"]["jax"] == package_version("jax")
    (task,) = facts["data"]
    assert (task["task"], task["split"], task["examples"]) == ("mrpc", "validation", 4)
    assert task["sha256"] == load_examples("mrpc", data=str(data)).sha256
    assert (facts["seed"], facts["maps"], facts["heads_of_each"]) == (3, 8, 2)
    assert facts["only"] == [[0, 1], [1, 0], [1, 2]]
    assert facts["crop"] == "real tokens only"


def test_the_commands_of_the_shipped_maps_are_valid():
    lines = (DATA / "patterns.md").read_text().replace("\\\n", " ").splitlines()
    commands = [line.split()[3:] for line in lines if line.strip().startswith("python -m experiments.label_maps")]
    assert [make_parser().parse_args(command).maps for command in commands] == ["patterns", "patterns_rare"]
    for command in commands:
        facts = json.loads((DATA / f"{command[1]}.json").read_text())
        assert facts["command"].split()[3:] == command
        assert facts["maps"] == len(read_maps(DATA / command[1]))


def test_an_export_takes_parts_of_a_task_apart(embedder, tmp_path):
    (tmp_path / "MRPC").mkdir()
    for name in ("train", "dev"):
        write_pairs(tmp_path / "MRPC" / f"{name}.tsv", 5)
    arguments = ["export", str(tmp_path / "mine"), "--model", str(embedder), "--data", str(tmp_path)]
    assert main([*arguments, "--task", "mrpc", "mrpc:train", "--limit", "3", "--heads", "1"]) == 0
    assert [row.task for row in read_maps(tmp_path / "mine").rows] == ["mrpc"] * 3 + ["mrpc:train"] * 3
    facts = json.loads((tmp_path / "mine.json").read_text())
    assert [(one["task"], one["split"]) for one in facts["data"]] == [("mrpc", "validation"), ("mrpc", "train")]


@pytest.mark.parametrize("suffix", [".tsv", ".npz", ".json"])
def test_an_export_replaces_no_file(embedder, tmp_path, capsys, suffix):
    (tmp_path / f"mine{suffix}").write_text("kept")
    arguments = ["export", str(tmp_path / "mine"), "--model", str(embedder), "--task", "qnli-sample"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.read_text() for path in tmp_path.glob("mine*")] == ["kept"]


@pytest.mark.parametrize("action", ["export", "sheets", "label", "agreement"])
def test_a_seed_is_no_negative_number(action, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([action, str(tmp_path / "mine"), "--seed", "-1"])
    error = capsys.readouterr().err
    assert "not a whole number of at least 0" in error
    assert error.count("\n") == 1


def test_kappa_is_chance_corrected_agreement():
    first, second = ["v"] * 6 + ["d"] * 4, ["v"] * 5 + ["d"] * 5
    found = score_agreement(first, second, [str(n) for n in range(10)])
    chance = 0.6 * 0.5 + 0.4 * 0.5
    assert found["kappa"] == pytest.approx((0.9 - chance) / (1 - chance))
    assert found["interval"][0] < found["kappa"] <= found["interval"][1]


def test_intervals_draw_whole_examples():
    """Ten equal rows of two examples: the mean of a draw is that of 0, 1 or both."""
    values = np.repeat([0.0, 1.0], 5)
    low, high = bootstrap(lambda rows: float(values[rows].mean()), ["a"] * 5 + ["b"] * 5)
    assert (low, high) == (0.0, 1.0)


@pytest.mark.parametrize(("name", "count"), [("patterns", 540), ("patterns_rare", 120)])
def test_shipped_labels_are_whole(name, count):
    found = read_maps(DATA / name)
    assert len(found) == count == len({(row.task, row.example, row.layer, row.head) for row in found.rows})
    assert {row.label for row in found.rows} == set(NAMES)
    assert sum(bool(row.again) for row in found.rows) >= 100
    for row, one in zip(found.rows, found.maps, strict=True):
        rows = ((one / 255.0) ** 2).sum(-1)
        assert np.abs(rows - 1).max() < 0.15, row  # what rounding of at most 128 roots can add up to
        assert row.second or row.task == "sst2"


def test_the_guide_states_the_agreement_that_the_labels_have():
    text = (DATA / "patterns.md").read_text()
    for name in ("patterns", "patterns_rare"):
        rows = [row for row in read_maps(DATA / name).rows if row.again]
        groups = [f"{row.task} {row.example}" for row in rows]
        found = score_agreement([row.label for row in rows], [row.again for row in rows], groups)
        low, high = found["interval"]
        assert f"| `{name}` | {len(rows)} | {found['kappa']:.2f} | {low:.2f} to {high:.2f} |" in text


def test_shipped_maps_of_qnli_are_what_the_model_makes():
    """The real model's package is there after `make test`'s installation; the texts come with bertjax."""
    from bertjax.checkpoints.location import DEFAULT_MODEL, locate

    model = bertjax.load(locate(DEFAULT_MODEL))
    tokenizer = bertjax.Tokenizer.from_pretrained(locate(DEFAULT_MODEL))
    examples = load_examples("qnli-sample")
    shipped = read_maps(DATA / "patterns")
    places = [place for place, row in enumerate(shipped.rows) if row.task == "qnli-sample"][:12]
    for place in places:
        row = shipped.rows[place]
        number = [str(one) for one in examples.ids].index(row.example)
        (text,) = tokenizer.encode([examples.first[number]], [examples.second[number]])
        weights = model(**bertjax.collate([text])).attentions[row.layer, 0, row.head]
        again = np.asarray(quantise(jnp.asarray(weights))).astype(int)
        assert np.abs(again - shipped.maps[place].astype(int)).max() <= 1, Namespace(**vars(row))
