"""Pages of text as tests read them: their snippets, commands, links and headings."""

import re
import shlex
import sys
from argparse import Namespace
from pathlib import Path

from bertjax.cli import _parser as parser_of_commands

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\n\Z")
FENCE = re.compile(r"^( *)(```+)(\S*)[^\n]*\n(.*?)^\1\2[ ]*$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)

NAMES = ("ablate", "plan", "importance", "interactions", "shapley", "prune", "remove-heads", "roles", "patch")
NAMES += ("explore", "report", "show", "compare", "plot", "parity", "data")


def import_extension(name):
    """A module of docs/_ext that needs no Sphinx."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def blocks(text, *languages):
    """The fenced blocks in a language, each with the reason why it is not run, or None."""
    return [
        (found[4], reason[1] if (reason := NOT_RUN.search(text[: found.start()])) else None)
        for found in FENCE.finditer(text)
        if found[3] in languages
    ]


def snippets(text):
    """The Python of a page that is run."""
    return [code for code, reason in blocks(text, "python") if reason is None]


def run_snippets(text, path="<page>"):
    """Run a page's Python in one namespace, which is returned."""
    names = {"__name__": "page"}
    for number, code in enumerate(snippets(text), 1):
        exec(compile(code, f"{path}, block {number}", "exec"), names)
    return names


def commands(text, *languages):
    """The lines of a page's console blocks, continued lines joined."""
    code = [block for block, _ in blocks(text, *(languages or ("console",)))]
    return [line for block in code for line in block.replace("\\\n", " ").splitlines()]


def bertjax_commands(text):
    """The calls of the `bertjax` command in blocks of shell, fenced or indented, also as arguments of other commands.

    As in `srun bertjax ablate ...` or `ssh host "bertjax ablate ..."`.
    """
    found = []
    indented = [line.strip() for line in re.findall(r"^    (?:bertjax .*)$", text, re.MULTILINE) if " ... " not in line]
    for line in [*commands(text, "console", "bash", "sh", "shell"), *indented]:
        line = line.partition(" #")[0]
        if line.startswith("bertjax "):
            found.append(line.partition(" ")[2])
        elif inner := re.search(rf"""[\s"'(]bertjax ((?:{"|".join(NAMES)})\b[^"')]*)""", line):
            found.append(inner[1])
    return found


def parse_command(line) -> tuple[Namespace, list[str]]:
    """The options of a call of `bertjax` without its first word, and what the parser did not know."""
    return parser_of_commands().parse_known_args(shlex.split(line))


def without_code(text):
    """A page's text without fenced blocks and inline code."""
    return re.sub(r"(`+)[^`]+\1", lambda code: "x" * len(code[0]), FENCE.sub("", text))


def links(text):
    """The targets of all links and pictures of a page, as (is a picture, target)."""
    return [(mark == "!", target) for mark, _, target in LINK.findall(without_code(text))]


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    slugs = []
    for title in HEADING.findall(FENCE.sub("", text)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        slugs.append(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return slugs


def listed(page):
    """The pages that a page's toctrees list."""
    text = page.read_text()
    found = []
    for block, _ in blocks(text, "{toctree}"):
        names = [line for line in block.splitlines() if line.strip() and not line.startswith(":")]
        for name in names:
            if ":glob:" in block:
                found += sorted(path for path in page.parent.glob(name + ".*") if path.suffix in (".md", ".ipynb"))
            else:
                found += [path for ending in (".md", ".ipynb") if (path := page.parent / (name + ending)).exists()]
    return [path.resolve() for path in found if path != page]
