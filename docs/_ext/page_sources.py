"""Prepares the sources of pages: fills marks, and resolves links to files outside docs/.

Marks are comments, so that a page is readable without this extension:

    <!-- reference of bertjax.models -->   the names of a module
    <!-- reference of the commands -->    the command line
    <!-- schema of Summary -->            the JSON Schema of a class in bertjax.results.schema
    <!-- text of ../../CHANGELOG.md -->   another file, without its title

Needs no Sphinx: the tests read the same texts.
"""

import json
import os
import re
from pathlib import Path

import msgspec
from command_pages import commands_text
from public_names import page_text

from bertjax.results import schema

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
MARK = re.compile(r"^<!-- (reference|schema|text) of (\S.*?) -->$", re.MULTILINE)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
# Files of the repository that are pages too.
PAGES = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/RESULTS.md": "project/benchmark-results.md",
    "experiments/README.md": "project/experiments.md",
    "experiments/data/patterns.md": "project/labels-of-patterns.md",
    "experiments/data/small_mlm/README.md": "project/small-mlm.md",
    "experiments/RESULTS.md": "project/experiment-results.md",
}


def expand(page: str, text: str) -> str:
    """The text of a page with its marks filled and its links resolved.

    Args:
        page: its path in docs/, with suffix.
        text: its source.
    """
    place = (DOCS / page).parent

    def fill(mark: re.Match[str]) -> str:
        if mark[1] == "reference":
            return commands_text() if mark[2] == "the commands" else page_text(mark[2])
        if mark[1] == "schema":
            return f"```json\n{json.dumps(msgspec.json.schema(getattr(schema, mark[2])), indent=2)}\n```"
        path = (place / mark[2]).resolve()
        body = re.sub(r"\A# .*\n", "", path.read_text(encoding="utf-8"))
        return relink(body, path.parent, place)

    return MARK.sub(fill, relink(text, place, place))


def relink(text: str, origin: Path, place: Path) -> str:
    """Adapt the links in a text from one folder for a page in another, except in fenced blocks."""

    def change(link: re.Match[str]) -> str:
        start, target, anchor = link[1], link[2], link[3] or ""
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = Path(os.path.normpath(origin / target))
        if not path.exists():
            return link[0]
        named = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            return re.sub(r"^\[(.*)\]\($", r"\1", start)  # a folder has no page: only its name remains
        path = DOCS / PAGES.get(named, "") if named in PAGES else path
        return f"{start}{Path(os.path.relpath(path, place)).as_posix()}{anchor})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(change, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(change, text[end:])])
