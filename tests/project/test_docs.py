"""The documentation: its examples run, its commands parse, its links lead somewhere, and no public name is missing.

Needs no Sphinx: `make docs` builds the site, with warnings as errors.
"""

import argparse
import ast
import importlib
import inspect
import json
import re

import pytest

import bertjax
from bertjax.cli import _parser as parser_of_commands
from bertjax.interventions import MODES
from bertjax.statistics import METRICS
from bertjax.tasks import TASKS
from tests.markdown_pages import (
    DOCS,
    ROOT,
    anchors,
    bertjax_commands,
    blocks,
    import_extension,
    links,
    listed,
    parse_command,
    run_snippets,
    snippets,
)

page_sources = import_extension("page_sources")
public_names = import_extension("public_names")
command_pages = import_extension("command_pages")
check_site = import_extension("check_site")

PAGES = sorted(DOCS.glob("**/*.md"))
NOTEBOOKS = sorted(DOCS.glob("**/*.ipynb"))
OTHERS = [ROOT / name for name in page_sources.PAGES]
RUN = [page for page in PAGES if page.parent.name != "coming-from"]  # with numbers that another file checks
MOST_NOT_RUN = 6


def name_of(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.integration
@pytest.mark.parametrize("page", [page for page in RUN if snippets(page.read_text())], ids=name_of)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = [(table, dict(table)) for table in (METRICS, MODES, TASKS)]
    try:
        names = run_snippets(re.sub(r"limit=\d{3}", "limit=20", page.read_text()), name_of(page))
    finally:
        for table, entries in known:
            table.clear()
            table.update(entries)
    assert "bertjax" in names, "no example of the page was run"


def test_few_examples_are_not_run_and_each_has_a_reason():
    found = {(name_of(page), reason) for page in RUN for _, reason in blocks(page.read_text(), "python") if reason}
    assert len(found) <= MOST_NOT_RUN, sorted(found)
    assert all(len(reason) > 10 for _, reason in found)


@pytest.mark.parametrize("page", [page for page in PAGES if bertjax_commands(page.read_text())], ids=name_of)
def test_the_commands_of_a_page_are_commands(page):
    for line in bertjax_commands(page.read_text()):
        _, unknown = parse_command(line)
        assert unknown == [], line


@pytest.mark.parametrize("word", ["quickstart", "install", "Colab", "Jupyter", "cite", "BertViz", "DataFrame"])
def test_a_search_for_a_usual_word_finds_a_page(word):
    guides = [page for page in PAGES if page.parent.name in ("docs", "how-to", "coming-from")]
    assert any(re.search(rf"^#+ .*{word}", page.read_text(), re.IGNORECASE | re.MULTILINE) for page in guides)


def code_lines(page):
    """The lines of code on a page; of a notebook, those of its code cells."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    code = blocks(page.read_text(), "python", "console", "bash", "yaml")
    return [line for block, _ in code for line in block.splitlines()]


def examples_in(path):
    """The lines of the examples in the docstrings of a module, as the reference shows them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from re.findall(r"^(?:>>>|\.\.\.) .*", ast.get_docstring(node) or "", re.M)


def test_code_fits_its_column():
    """At 1,280 pixels, 120 characters fit (docs/_static/site.css); 118 in a notebook and 116 in the reference."""
    pages = [*PAGES, ROOT / "README.md", *NOTEBOOKS]
    lines = [
        (name_of(page), line, 118 if page.suffix == ".ipynb" else 120) for page in pages for line in code_lines(page)
    ]
    lines += [(name_of(path), line, 116) for path in (ROOT / "bertjax").glob("**/*.py") for line in examples_in(path)]
    assert len(lines) > 1000
    assert [(page, line) for page, line, most in lines if len(line) > most] == []


def test_there_are_commands_on_the_pages():
    assert sum(len(bertjax_commands(page.read_text())) for page in DOCS.glob("how-to/*.md")) > 20


def text_of(page):
    """The text of a page; of a notebook, the text of all Markdown cells."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = page.read_text()
    generated = page.is_relative_to(DOCS) and page.relative_to(DOCS).as_posix() in page_sources.PAGES.values()
    return page_sources.expand(page.relative_to(DOCS).as_posix(), text) if generated else text


def problems(page, text):
    """The links of a text that lead nowhere."""
    for picture, target in links(text):
        if target.startswith(("http://", "https://", "mailto:")):
            if picture:
                yield f"a picture from the network: {target}"
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists():
            yield f"no file: {target}"
        elif anchor and place.suffix in (".md", ".ipynb") and anchor not in anchors(source_of(place, text, page)):
            yield f"no heading: {target}"


def source_of(place, text, page):
    return text if place == page else text_of(place)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS, *OTHERS], ids=name_of)
def test_links_lead_somewhere(page):
    assert list(problems(page, text_of(page))) == []


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `thing`, and two\n")
    for good in ("[a](page.md#one-thing-and-two)", "[a](#one-thing-and-two)", "`[a](no.md)`", "```\n[a](no.md)\n```\n"):
        assert list(problems(page, page.read_text() + good)) == []
    for bad in ("[a](no.md)", "[a [b]](page.md#two)", "![a](https://example.org/a.png)", "[a](#thing)"):
        assert len(list(problems(page, page.read_text() + bad))) == 1, bad


def test_every_page_is_in_a_table_of_contents():
    reached, waiting = set(), [(DOCS / "index.md").resolve()]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [] if page.suffix == ".ipynb" else listed(page)
    assert {name_of(page) for page in [*PAGES, *NOTEBOOKS]} - {name_of(page) for page in reached} == set()


def test_pages_from_files_say_what_the_files_say():
    for name, page in page_sources.PAGES.items():
        body = (ROOT / name).read_text().split("\n", 1)[1]
        assert len(text_of(DOCS / page)) > 0.9 * len(body)


def test_links_out_of_the_pages_become_links_to_pages():
    text = "[a](../../README.md#how-fast) [b](../guides/tasks.md) ![c [d]](../heads.png) [e](../../experiments)"
    found = page_sources.expand("how-to/x.md", text)
    assert found == "[a](../project/readme.md#how-fast) [b](../guides/tasks.md) ![c [d]](../heads.png) e"


def public():
    """Every public name, from the packages themselves."""
    pages = ["bertjax", *(f"bertjax.{package}" for package in sorted(bertjax._PACKAGES))]
    for path in [*pages, "bertjax.errors", "bertjax.machine"]:
        module = importlib.import_module(path)
        names = getattr(module, "__all__", None) or defined_in(module)
        for name in names:
            value = getattr(module, name)
            yield f"{path}.{name}", value
            if inspect.ismodule(value) and (path == "bertjax" or name not in public_names.ON_THEIR_OWN):
                inner = getattr(value, "__all__", None) or defined_in(value)
                yield from ((f"{path}.{name}.{one}", getattr(value, one)) for one in inner)


def defined_in(module):
    return [
        name
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__ and callable(value)
        if inspect.isclass(value) or hasattr(value, "__code__") or hasattr(value, "__wrapped__")
    ]


def test_no_public_name_is_missing_in_the_reference():
    pages = public_names.pages(DOCS / "reference")
    assert all(f"<!-- reference of {path} -->" in page.read_text() for path, page in pages.items())
    text = {path: public_names.page_text(path) for path in pages}
    described = {path: home for name, home in public_names.all_names() for path in [name.path]}
    for path, value in public():
        assert path in described, path
        home = described[path]
        assert inspect.ismodule(value) or home.value is value or home.value == value, path
        where = [page for page, words in text.items() if f":: {home.path}\n" in words or is_data(home, words)]
        assert len(where) == 1, (path, home.path, where)


def is_data(home, words):
    package, _, name = home.path.rpartition(".")
    return f".. py:data:: {name}\n   :module: {package}\n" in words


def test_every_public_name_says_what_it_is():
    assert [home.path for _, home in public_names.all_names() if not home.summary] == []


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


def test_every_command_and_option_is_in_the_reference():
    assert "<!-- reference of the commands -->" in (DOCS / "reference" / "commands.md").read_text()
    text = command_pages.commands_text()
    every = list(parsers(parser_of_commands()))[1:]
    assert len(every) > 14
    for parser in every:
        section = text.partition(f"## {parser.prog}\n")[2].partition("\n## ")[0]
        assert section, parser.prog
        options = [] if command_pages.takes_commands(parser) else parser._actions
        for action in [option for option in options if option.help != argparse.SUPPRESS]:
            assert all(f"`{option}`" in section for option in action.option_strings), (parser.prog, action.dest)
    assert "%(" not in text
    assert "%%" not in text
    assert [target for _, target in links(text) if target[1:] not in anchors(text)] == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('<a href="b.html#there">x</a><img src="p.png"><a href="https://example.org">x</a>', None),
        ('<a href="c.html">x</a>', "a.html: no file c.html"),
        ('<a href="b.html#nowhere">x</a>', "a.html: no anchor b.html#nowhere"),
        ('<script src="https://example.org/x.js"></script>', "a.html: loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "a.html: loads //example.org/x.css"),
        ('<img src="q.png">', "a.html: no file q.png"),
    ],
)
def test_a_site_that_does_not_hold_together_is_found(body, line, tmp_path):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "x.css").write_text("p { background: url(p.png) }")
    assert check_site.problems(tmp_path) == ([line] if line else [])
    (tmp_path / "x.css").write_text("p { background: url('https://example.org/p.png') }")
    assert "x.css: loads from the network" in check_site.problems(tmp_path)
