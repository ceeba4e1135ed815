"""Damaged and foreign results are refused in a line with the path; results of earlier versions are read."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertjax.cli import main
from bertjax.errors import InputError
from bertjax.results.directory import WithoutHashesWarning, read_results
from tests.result_factories import make_results

OLD = Path(__file__).parents[1] / "old_results"
HASHED = ("results.parquet", "outputs.npz", "examples.jsonl", "attention.npz")
warned = pytest.mark.filterwarnings("always::bertjax.results.directory.WithoutHashesWarning")
# Half a character, an escape sequence, and what rich, Markdown and mathtext would obey.
ODD = "\ud800 \x1b[31m [/x] $x^$ <b>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("whole") / "results", examples=30)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Results of as many ablations and examples."""
    return make_results(tmp_path_factory.mktemp("foreign") / "results", examples=30, seed=9)


@pytest.fixture
def some(whole, tmp_path):
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "some")


def old_results(version, directory):
    """Results that the last bertjax with this schema version wrote."""
    with zipfile.ZipFile(OLD / f"schema{version}.zip") as archive:
        archive.extractall(directory)
    return directory


@pytest.fixture
def unhashed(tmp_path):
    """Results of version 1, where no hash reveals damage."""
    return old_results(1, tmp_path / "old")


def refusal(command, directory, capsys):
    """The one line that a command prints for these results, apart from warnings."""
    assert main([command, str(directory)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning: " not in line]
    assert "internal error" not in line
    assert not (directory / "report.html").exists()
    return line


def edit_summary(directory, change):
    path = directory / "summary.json"
    summary = json.loads(path.read_text())
    change(summary)
    path.write_text(json.dumps(summary))


@pytest.mark.filterwarnings("always:.*lacks attention.npz")
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign", "missing"])
@pytest.mark.parametrize("name", HASHED)
def test_a_damaged_file_is_named_in_a_line(some, foreign, capsys, name, damage):
    path = some / name
    content = path.read_bytes()
    middle = len(content) // 2
    if damage == "missing":
        path.unlink()
        if name == "attention.npz":  # a page does without it
            assert main(["report", str(some)]) == 0
            warning = f"bertjax: warning: {some} lacks attention.npz, so the page shows no attention: copy"
            assert capsys.readouterr().err.startswith(warning)
            return
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        other = (foreign / name).read_bytes()
        path.write_bytes({"empty": b"", "cut": content[:middle], "flipped": flipped, "foreign": other}[damage])
    line = refusal("report", some, capsys)
    assert str(path) in line
    if damage != "missing":
        found = path.stat().st_size
        sizes = f"it has {found:,} bytes, not {len(content):,}"
        reason = "its SHA-256 differs" if found == len(content) else sizes
        assert f"is not the file that summary.json describes ({reason})" in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"schema": 4', "Expecting ',' delimiter"),
        (b"[1]", "'list' object has no attribute"),
        (b"[" * 100_000, "recursion"),
        (b'{"schema": 4, "metric": "\xff"}', "invalid start byte"),
        (b'{"schema": 4}', "missing required field `command`"),
    ],
)
def test_a_damaged_summary_is_refused_in_a_line(some, capsys, content, reason):
    (some / "summary.json").write_bytes(content)
    line = refusal("show", some, capsys)
    before, _, after = line.partition(reason)
    assert f"{some / 'summary.json'} is damaged (" in before
    assert ": copy the results again" in after


def test_a_wrong_value_in_the_summary_is_located(some, capsys):
    edit_summary(some, lambda summary: summary["ablations"][3].update(layer="3"))
    assert "Expected `int | null`, got `str` - at `$.ablations[3].layer`" in refusal("show", some, capsys)


def test_keys_that_a_later_version_added_are_ignored(some, whole):
    edit_summary(some, lambda summary: summary.update(new=1) or summary["model"].update(new=2))
    assert read_results(some).rows == read_results(whole).rows


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 5}, "has schema 5, this bertjax reads 1 to 4"),
        ({"schema": None}, "has schema None, this bertjax reads 1 to 4"),
        ({"metrics": ["f1", "bleu"]}, r"has metrics that this bertjax lacks \(bleu\)"),
    ],
)
def test_results_of_a_newer_bertjax_are_refused(some, change, reason):
    edit_summary(some, lambda summary: summary.update(change, versions={"bertjax": "9.1"}))
    with pytest.raises(InputError, match=f"{reason}: read it with the version that wrote it \\(9.1\\)"):
        read_results(some)


@warned
@pytest.mark.parametrize("version", [1, 2, 3])
def test_results_of_earlier_versions_are_read(version, tmp_path, recwarn, capsys):
    """Summaries of these versions repeat the numbers of the main metric, which the table must have too."""
    directory = old_results(version, tmp_path / "old")
    results = read_results(directory)
    assert [warning.category for warning in recwarn] == [WithoutHashesWarning] * (version == 1)
    entries = json.loads((directory / "summary.json").read_text())["ablations"]
    assert results.names == ["0.0", "0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3", "2.0", "2.1", "2.2", "2.3"]
    for row, entry in zip(results.rows_of("f1"), entries, strict=True):
        assert (row.name, row.heads, row.score, row.difference) == (
            entry["name"],
            entry["heads"],
            entry["score"],
            entry["delta"],
        )
        assert {name: getattr(row, name) for name in entry["evidence"]} == entry["evidence"]
    assert [row.score for row in results.rows_of("accuracy")] == [entry["scores"]["accuracy"] for entry in entries]
    assert results.outputs["outputs"].shape == (12, 12, 2)
    assert results.attention["runs"][0] == "base"
    assert [example["id"] for example in results.examples] == list(range(12))
    assert results.positive_of("f1") == "equivalent"
    assert main(["show", str(directory)]) == 0
    assert main(["report", str(directory)]) == 0
    assert main(["compare", str(directory), str(directory)]) == 0


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@warned
@pytest.mark.parametrize("name", ["outputs.npz", "attention.npz"])
def test_nothing_in_an_array_file_is_executed(unhashed, tmp_path, capsys, name):
    harmful = np.array([Bomb(tmp_path / "executed")], object)
    for write in (lambda path: np.savez(path, base=harmful), lambda path: path.write_bytes(pickle.dumps(harmful))):
        write(unhashed / name)
        assert str(unhashed / name) in refusal("report", unhashed, capsys)
        assert not (tmp_path / "executed").exists()


ARRAYS = {
    "base": ("outputs.npz", None),
    "outputs": ("outputs.npz", np.zeros((12, 12, 5), np.float32)),
    "labels": ("outputs.npz", np.zeros(11)),
    "ids": ("outputs.npz", np.arange(11)),
    "names": ("outputs.npz", np.array(["x"] * 12)),
    "runs": ("attention.npz", None),
    "weights_0_0": ("attention.npz", np.zeros((3, 3, 4, 5, 6))),
    "examples": ("attention.npz", np.array([0, 12])),
}


@warned
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_other_shapes_or_names_are_refused(unhashed, capsys, array):
    name, changed = ARRAYS[array]
    with np.load(unhashed / name) as arrays:
        kept = {**arrays, array: changed}
    np.savez(unhashed / name, **{one: value for one, value in kept.items() if value is not None})
    line = refusal("report", unhashed, capsys)
    assert str(unhashed / name) in line
    assert "are of different results" in line or f"(KeyError: '{array}')" in line


@warned
def test_a_table_with_fewer_rows_or_columns_is_refused(unhashed, capsys):
    path = unhashed / "results.parquet"
    table = pq.read_table(path)
    fewer = "has 23 rows, summary.json has 24"
    for changed, reason in ((table.slice(1), fewer), (table.drop_columns(["metric"]), "field `metric`")):
        pq.write_table(changed, path)
        assert reason in refusal("show", unhashed, capsys)


@warned
def test_a_line_of_examples_that_does_not_fit_is_refused(unhashed, capsys):
    path = unhashed / "examples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for line, reason in (
        ("no\n", "Expecting value"),
        ('{"id": 2, "label": 1, "first": 3}\n', "`$[2].first`"),
        ("", "has 11 examples, the results 12"),
    ):
        path.write_text("".join([*lines[:2], line, *lines[3:]]))
        shown = refusal("report", unhashed, capsys)
        assert str(path) in shown
        assert reason in shown


def test_whatever_text_is_in_the_summary_is_shown(some, capsys):
    edit_summary(some, lambda summary: summary["model"].update(name=ODD))
    edit_summary(some, lambda summary: summary["data"].update(label_names=["no", ODD]))
    for command in (["show"], ["show", "--format", "md"], ["compare", str(some)], ["report"]):
        assert main([*command, str(some)]) == 0
        assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda summary: summary.pop("files"), "lacks the hashes of the other files"),
        (lambda summary: summary["ablations"].insert(0, summary["ablations"].pop(1)), "name other ablations"),
        (lambda summary: summary["base"].update(score=float("nan")), "NaN is not JSON"),
    ],
)
def test_a_changed_summary_is_refused(some, capsys, change, message):
    edit_summary(some, change)
    assert message in refusal("show", some, capsys)
