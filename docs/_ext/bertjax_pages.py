"""Sphinx extension of the site: passes page sources through `page_sources` when they are read."""

import re
from pathlib import Path
from typing import Any

from page_sources import MARK, expand
from public_names import homes
from pygments.lexers import BashLexer
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

BACK = re.compile(r'(id="([^"]+)">\s*<a class="viewcode-back" href="[^"#]*)#[^"]*')


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill a page's marks and resolve its links."""
    path = Path(app.env.doc2path(docname))
    for mark in MARK.finditer(source[0]):
        if mark[1] == "text":
            app.env.note_dependency(str((path.parent / mark[2]).resolve()))
    source[0] = expand(path.relative_to(app.srcdir).as_posix(), source[0])


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Pages of the reference are always rebuilt, because any file of bertjax may have changed."""
    return [name for name in env.found_docs if name.startswith("reference/")]


def link_back(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Link each name on a page of code to its description; Sphinx has one link for the whole file."""
    if not pagename.startswith("_modules/bertjax"):
        return
    module = pagename.removeprefix("_modules/").replace("/", ".")
    here = {
        home.value.__qualname__: home.path
        for home in homes().values()
        if home.kind in ("function", "class", "exception") and home.value.__module__ == module
    }

    def change(link: re.Match[str]) -> str:
        name, _, method = link[2].partition(".")
        return f"{link[1]}#{here[name]}{method and '.' + method}" if name in here else link[0]

    context["body"] = BACK.sub(change, context["body"])


def forget_files_without_code(app: Sphinx) -> list[Any]:
    """Sphinx lists modules that have no page of code, such as `builtins`, in the index of those that have."""
    modules = getattr(app.env, "_viewcode_modules", {})
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]
    return []


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the events. Commands have no prompt, so use the lexer of Bash."""
    app.add_lexer("console", BashLexer)
    app.connect("source-read", fill)
    app.connect("html-page-context", link_back)
    app.connect("html-collect-pages", forget_files_without_code, priority=400)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
