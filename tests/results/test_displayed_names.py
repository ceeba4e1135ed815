"""Names of sets, labels and paths are shown as they stand: no markup, formula or code of a terminal, in no output."""

import copy
import csv
import io
import json
import re
import warnings
from dataclasses import replace
from xml.dom import minidom

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.atomic_files import encode_json
from bertjax.cli import main
from bertjax.console import PlainConsole
from bertjax.formatting import FORMULA, HIDDEN, count_of, table_name, to_cell, to_json, visible
from bertjax.plots.canvas import save_page
from bertjax.results.directory import Results, read_results
from bertjax.results.page import make_page
from bertjax.results.terminal import show_table, show_text
from tests.result_factories import make_results

# Whatever Unicode has, half characters too, and what others take for commands.
EVIL = [
    "[/x]",
    "[red]x",
    ":smile:",
    "$\\frac{1$",
    "cost $5",
    "a\x1b[31mb",
    "\x9b1m",
    "=cmd|' /C calc'!A0",
    "+1",
    "a|b`*",
]
NAMES = st.text(st.characters(), min_size=1, max_size=12) | st.sampled_from(EVIL)
SEVERAL = st.lists(NAMES, min_size=12, max_size=12, unique=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return read_results(make_results(tmp_path_factory.mktemp("names") / "results", examples=30))


def rename(saved, names):
    """The same results, of sets with these names."""
    summary = copy.deepcopy(saved.summary)
    called = dict(zip(saved.names, names, strict=True))
    for entry in summary["ablations"]:
        entry |= {"name": called[entry["name"]], "layer": None, "head": None}
    rows = [replace(row, name=called[row.name], layer=None, head=None) for row in saved.rows]
    summary["sentence"] = f"the largest gain is for {names[0]}"
    for one in summary["statistics"].values():
        one["sentence"] = summary["sentence"]
    return Results(summary, rows, saved.stored)


def printed(content, console=PlainConsole):
    file = io.StringIO()
    console(file=file, width=200, force_terminal=True, color_system=None).print(content)
    return file.getvalue()


@settings(max_examples=12, deadline=None)
@given(names=SEVERAL)
def test_any_name_is_printed_as_it_stands(saved, names):
    renamed = rename(saved, names)
    entries = renamed.summary["ablations"]
    text = printed(show_table(renamed))
    assert not HIDDEN.search(text.replace("\n", ""))
    for name in (entry["name"] for entry in entries):
        if name.strip() and name.isprintable():  # except tabs of rich and characters of no width
            assert name.strip() in text


def looks_like_a_number(name):
    try:
        float(name)
    except ValueError:
        return False
    return True


@settings(max_examples=30, deadline=None)
@given(names=SEVERAL)
def test_any_name_goes_through_json_csv_and_markdown(saved, names):
    renamed = rename(saved, names)
    found = show_text(renamed, "json")
    assert not HIDDEN.search(found.replace("\n", ""))
    written = [table_name(name, ()) for name in names]
    assert len({*written}) == len(names)
    assert not any(looks_like_a_number(name) for name in written)
    assert sorted({row["name"] for row in json.loads(found.encode())}) == sorted(written)
    cells = list(csv.DictReader(io.StringIO(show_text(renamed, "csv"))))
    assert {row["name"] for row in cells} == {to_cell(name) for name in written}
    assert not any(re.match(FORMULA, row["name"]) for row in cells)
    markdown = show_text(renamed, "md")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(names)
    assert not HIDDEN.search(markdown.replace("\n", ""))


@settings(max_examples=30, deadline=None)
@given(name=NAMES)
def test_json_is_utf_8_and_survives_a_round_trip(name):
    assert json.loads(encode_json({name: [name]})) == {name: [name]}
    assert visible(visible(name)) == visible(name)


@settings(max_examples=4, deadline=None)
@given(names=SEVERAL)
@pytest.mark.parametrize("figure", ["auto", "ranking"])
def test_any_name_can_be_drawn(saved, tmp_path_factory, figure, names):
    names = [EVIL[number % len(EVIL)] + str(number) if number < 6 else name for number, name in enumerate(names)]
    path = tmp_path_factory.mktemp("drawn") / "figure.svg"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # no font has all characters
        warnings.filterwarnings("ignore", "Matplotlib currently does not support")
        save_page(rename(saved, names).plot(figure), path)
    texts = [node.firstChild.data for node in minidom.parse(str(path)).getElementsByTagName("text") if node.firstChild]
    for name in names[:6]:
        assert visible(name) in texts


def test_attention_of_any_tokens_and_names_can_be_drawn(tmp_path):
    from bertjax.plots.attention import make_attention

    tokens = ["[CLS]", "$x^$", "\x1b[0m"]
    path = tmp_path / "attention.svg"
    save_page(make_attention(tokens, [np.eye(3)], ["without set $a$"], "Attention $t$", "/models/$b$\x07"), path)
    texts = {node.firstChild.data for node in minidom.parse(str(path)).getElementsByTagName("text")}
    assert {"$x^$", "\\x1b[0m", "without set $a$", "Attention $t$", "/models/$b$\\x07"} <= texts


def test_a_page_of_any_names_is_utf_8_and_safe_in_spreadsheets(saved):
    names = [*EVIL, "\ud800", "</script>"]
    renamed = rename(saved, names)
    renamed.__dict__["outputs"] = saved.outputs
    renamed.__dict__["attention"] = saved.attention
    page = make_page(renamed).encode().decode()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["names"] == names
    assert data["formula"] == FORMULA
    assert "new RegExp(data.formula)" in page


def test_errors_and_warnings_hold_no_codes_of_a_terminal(capsys, tmp_path):
    assert main(["show", str(tmp_path / "a\x1b[31mb")]) == 2
    assert "a\\x1b[31mb" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["ablate", "--limit", "\x1b]0;title\x07"])
    assert "\x1b" not in capsys.readouterr().err


def test_a_result_with_evil_names_is_shown_and_compared(saved, monkeypatch, capsys):
    renamed = rename(saved, [*EVIL, "[/]", "\\"])
    monkeypatch.setattr("bertjax.results.read_results", lambda directory: renamed)
    for command in (["show", "a"], ["show", "a", "--format", "md"], ["compare", "a", "b"]):
        assert main(command) == 0
        found = capsys.readouterr().out
        assert "\x1b" not in found
        if command[0] == "show":
            assert "a\\x1b[31mb" in found.replace("\\\\", "\\").replace("\\[", "[")


def test_one_thing_is_not_several():
    assert [count_of(number, "head") for number in (0, 1, 2)] == ["0 heads", "1 head", "2 heads"]
    assert to_json({"a": 1}, separators=(",", ":")) == '{"a":1}'
