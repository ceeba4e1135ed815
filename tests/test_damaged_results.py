"""Damaged, forged and foreign results: refused in a line before anything is shown of them, or shown as they were."""

import json
import re
import shutil
import zipfile
from collections import Counter

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from bertjax.cli import main
from bertjax.errors import InputError
from bertjax.results import arrays
from bertjax.results.directory import UnsealedWarning, read_results
from bertjax.results.schema import load_schema, mismatch
from bertjax.results.summary import seal
from tests.result_factories import make_results, unseal

pytestmark = pytest.mark.integration

warned = pytest.mark.filterwarnings("always::bertjax.results.directory.UnsealedWarning")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("whole") / "results", examples=30)


@pytest.fixture
def some(whole, tmp_path):
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "some")


@pytest.fixture
def older(some):
    """The same without hashes, as version 1 was."""
    unseal(some)
    return some


def refusal(command, directory, capsys):
    """The one line that a command prints for these results."""
    assert main([command, str(directory)]) == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert not (directory / "report.html").exists()
    return line


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", b"{", "summary.json is damaged, not valid JSON"),
        ("summary.json", b"[1]", "summary.json is damaged, it must hold an object, found [1]"),
        ("summary.json", b"{}", "has schema None, this bertjax reads 1 to 3"),
        ("summary.json", b'{"schema": 2}', "is damaged, it lacks command, model, versions"),
        ("summary.json", b"[" * 100_000, "not valid JSON: maximum recursion"),
        ("summary.json", b'{"schema": NaN}', "NaN is not JSON"),
        ("summary.json", b"\xff", "can't decode byte"),
        ("results.parquet", b"no", r"results.parquet is not the file that summary.json was written with (2 bytes, not"),
        ("outputs.npz", b"no", "outputs.npz is not the file that summary.json was written with"),
        ("attention.npz", b"no", "attention.npz is not the file that summary.json was written with"),
        ("examples.jsonl", b"no\n", "examples.jsonl is not the file that summary.json was written with"),
        ("summary.json", None, "holds no results of `bertjax ablate`"),
        ("results.parquet", None, "results.parquet is missing"),
        ("outputs.npz", None, "outputs.npz is missing"),
        ("examples.jsonl", None, "examples.jsonl is missing"),
    ],
)
def test_a_damaged_file_is_named_in_a_line(some, capsys, name, content, message):
    (some / name).unlink()
    if content is not None:
        (some / name).write_bytes(content)
    assert message in refusal("report", some, capsys)


@pytest.mark.parametrize("level", ["as written", "forged"])
def test_a_number_that_was_changed_in_the_summary_is_not_shown(some, capsys, level):
    path = some / "summary.json"
    summary = json.loads(path.read_text())
    summary["ablations"][3]["evidence"]["q"] = 0.01
    path.write_text(json.dumps(summary if level == "as written" else seal(summary)))
    line = refusal("show", some, capsys)
    expected = {"as written": "was changed after it was written", "forged": "are of different results"}
    assert expected[level] in line


def test_spaces_in_the_summary_change_nothing(some, whole):
    summary = json.loads((some / "summary.json").read_text())
    (some / "summary.json").write_text(json.dumps(summary, indent=7))
    assert read_results(some).rows == read_results(whole).rows


@warned
def test_results_without_hashes_are_read_with_a_warning(older, whole, capsys):
    with pytest.warns(UnsealedWarning, match="numbers changed since then cannot be detected"):
        saved = read_results(older)
    assert saved.rows == read_results(whole).rows
    assert saved.positive_of() == "equivalent"
    assert main(["show", str(older)]) == 0
    assert "bertjax: warning: " in capsys.readouterr().err


def test_one_edit_does_not_make_results_unsealed(some):
    summary = json.loads((some / "summary.json").read_text())
    for changed in (summary | {"schema": 1}, {name: summary[name] for name in summary if name != "files"}):
        (some / "summary.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"summary\.json is damaged, (sha256 must not be there|it lacks files)"):
            read_results(some)


def edit_arrays(path, **changes):
    with np.load(path) as file:
        kept = {**file, **changes}
    np.savez_compressed(path, **{name: array for name, array in kept.items() if array is not None})


EDITS = {
    "its array outputs is float32": ("outputs.npz", {"outputs": np.zeros((12, 30, 5), np.float32)}),
    "its array ids is int64": ("outputs.npz", {"ids": np.arange(29)}),
    "it lacks names": ("outputs.npz", {"names": None}),
    "is damaged (the output": ("outputs.npz", {"base": np.full((30, 2), np.nan, np.float32)}),
    "it is damaged": ("outputs.npz", {"names": np.array([{}] * 12, object)}),
    "summary.json and outputs.npz are of different results": ("outputs.npz", {"names": np.array(["x"] * 12)}),
    "it lacks examples and runs": ("attention.npz", {"runs": None}),
    "or has some that are of none": ("attention.npz", {"tokens_9_0": np.array(["a"])}),
    "its array tokens_0_0 is": ("attention.npz", {"tokens_0_0": np.zeros(6)}),
    "summary.json and attention.npz are of different": ("attention.npz", {"runs": np.array(["base", "1.1", "1.2"])}),
    "attention.npz is damaged": ("attention.npz", {"examples": np.array([0, 30])}),
}


@warned
@pytest.mark.parametrize("message", EDITS)
def test_arrays_of_other_results_are_refused_without_hashes_too(older, capsys, message):
    name, changes = EDITS[message]
    edit_arrays(older / name, **changes)
    assert main(["report", str(older)]) == 2
    assert message in capsys.readouterr().err.strip().split("\n")[-1]


def test_shapes_are_looked_at_before_values(older, monkeypatch):
    path = older / "outputs.npz"
    monkeypatch.setattr(arrays, "free_memory", lambda: 1000)
    with pytest.warns(UnsealedWarning):
        saved = read_results(older)
    with pytest.raises(InputError, match=r"outputs\.npz cannot be read, it unpacks to .* kB, and 1 kB are free"):
        saved.outputs  # noqa: B018
    monkeypatch.undo()
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["base.npy"] = members["base.npy"].replace(b"(30, 2)", b"(30, 9999999999)")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=r"outputs\.npz cannot be read, it is damaged"):
        saved.outputs  # noqa: B018


TABLES = {
    "it has 23 rows, not 24": lambda table: table.slice(1),
    "it has no column q": lambda table: table.drop_columns(["q"]),
    "its column layer is of the type string, not int32": lambda table: table.set_column(
        1, "layer", table.column("name")
    ),
    "its column heads is of the type string, not list<string>": lambda table: table.set_column(
        3, "heads", table.column("name")
    ),
    "summary.json and results.parquet are of different results": lambda table: table.take(list(range(24))[::-1]),
}


@warned
@pytest.mark.parametrize("message", TABLES)
def test_tables_of_other_results_are_refused_without_hashes_too(older, capsys, message):
    path = older / "results.parquet"
    pq.write_table(TABLES[message](pq.read_table(path)), path)
    assert main(["show", str(older)]) == 2
    assert message in capsys.readouterr().err.strip().split("\n")[-1]


LINES = {
    "line 3: not valid JSON": "no",
    "line 3: it must be an object, found []": "[]",
    "line 3: it lacks label, first": '{"id": 2}',
    "line 3: first must be a text, found 3": '{"id": 2, "label": 1, "first": 3}',
    "line 3: label must be the number of a class": '{"id": 2, "label": 0.5, "first": "a"}',
    "line 3: not valid JSON: maximum": "[" * 100_000,
}


@warned
@pytest.mark.parametrize("message", LINES)
def test_lines_of_examples_are_checked(older, capsys, message):
    lines = (older / "examples.jsonl").read_text().splitlines()
    lines[2] = LINES[message]
    (older / "examples.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert main(["report", str(older)]) == 2
    assert message in capsys.readouterr().err.strip().split("\n")[-1]


def test_our_reader_of_schemas_agrees_with_another(whole):
    """On a summary with one value changed at each place; ours alone wants integers to be written without a point."""
    summary = json.loads((whole / "summary.json").read_text())
    summary["ablations"] = summary["ablations"][:1]
    schema = load_schema("summary")
    theirs = jsonschema.Draft202012Validator(schema)
    assert mismatch(summary, schema) is None
    found = Counter()
    values: tuple = (None, True, 0, -1, 2**63, 0.5, "x", [], {}, [1, 2, 3])
    for number, (inner, key) in enumerate(list(places(summary))):
        before = inner[key]
        for value in (values * 2)[number % 10 : number % 10 + 3]:
            inner[key] = value
            ours = mismatch(summary, schema)
            large = value == 2**63 and ours is not None and "integer" in ours
            assert (ours is None) == theirs.is_valid(summary) or large, (key, value, ours)
            found[ours is None] += 1
        inner[key] = before
    assert min(found[True], found[False]) > 50
    assert mismatch({"layer": 1.0}, {"properties": {"layer": {"type": "integer"}}}) is not None


def places(value):
    for key in list(value if isinstance(value, dict) else range(len(value))):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_a_summary_that_contradicts_itself_is_refused(some):
    path = some / "summary.json"
    summary = json.loads(path.read_text())
    first, *rest = summary["ablations"]
    for changes, message in (
        ({"metrics": ["f1", "bleu"]}, "'bleu', which bertjax does not have"),
        ({"metrics": ["accuracy", "f1"]}, "first that of metric"),
        ({"base": summary["base"] | {"score": 0.5}}, "base does not fit metrics"),
        ({"statistics": {}}, r"ablations\[0\] does not fit statistics"),
        ({"ablations": [first | {"layer": 3}, *rest]}, r"ablations\[0\] has no layer 3"),
        ({"ablations": [first | {"heads": []}, *rest]}, r"ablations\[0\] has heads that"),
        ({"ablations": [first | {"delta": 0.5}, *rest]}, r"ablations\[0\] has a delta that is not"),
    ):
        path.write_text(json.dumps(seal(summary | changes)))
        with pytest.raises(InputError, match=f"^{re.escape(str(path))} is damaged, .*{message}"):
            read_results(some)


def test_whatever_stands_in_the_summary_is_shown_or_refused(some, capsys):
    """Texts with control characters, markup and half characters, in names that are printed."""
    path = some / "summary.json"
    summary = json.loads(path.read_text())
    text = "\ud800 \x1b[31m [/x] $x^^$ <script> nan"
    summary["model"]["name"] = text
    summary["data"]["label_names"] = ["no", text]
    path.write_text(json.dumps(seal(summary)))
    for command in (["show"], ["show", "--format", "md"], ["compare", str(some)], ["report"]):
        assert main([*command, str(some)]) == 0
        assert "\x1b" not in capsys.readouterr().out
