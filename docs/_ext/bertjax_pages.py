"""The part of the site that knows Sphinx: it hands sources through `page_sources` as they are read."""

from pathlib import Path
from typing import Any

from page_sources import MARK, expand
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill a page's marks and resolve its links."""
    path = Path(app.env.doc2path(docname))
    for mark in MARK.finditer(source[0]):
        if mark[1] == "text":
            app.env.note_dependency(str((path.parent / mark[2]).resolve()))
    source[0] = expand(path.relative_to(app.srcdir).as_posix(), source[0])


def outdated(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Pages of the reference are made anew each time: any file of bertjax may have changed them."""
    return [name for name in env.found_docs if name.startswith("reference/")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect."""
    app.connect("source-read", fill)
    app.connect("env-get-outdated", outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
