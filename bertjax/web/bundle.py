"""One HTML file from JavaScript modules: imports are removed, and modules are joined in order of dependency.

The modules in `assets/` are ES modules in a small subset of the syntax, so that no bundler is needed. Each import is
`import { name, other } from "../shared/file.js";`. Each export is a declaration with `export` in front. Names at the
top level are unique over the modules of a page. A module outside this subset is an error.
"""

import base64
import hashlib
import html
import importlib.resources
import posixpath
import re
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any

from bertjax.formatting import finite, to_json

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)
DECLARED = re.compile(r"^(export )?(?:async )?(?:function\*?|const|let|var|class) ([\w$]+)", re.MULTILINE)
UNREAD = re.compile(r"^(?:import|export)\b.*|^(?:const|let|var) [\[{].*", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_$][\w$]*")
# Texts that would end the HTML element of the code.
ENDS = re.compile(r"</script|</style|<!--", re.IGNORECASE)
THEME = "shared/theme.css"
FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style{nonce}>{style}</style>
</head>
<body>
{body}
{elements}
<script{nonce}>{script}</script>
</body>
</html>
"""


def make_page(
    entry: str,
    data: Any,
    *,
    title: str = "bertjax",
    extra: Mapping[str, str] | None = None,
    nonce: str | None = None,
    assets: Traversable | None = None,
) -> str:
    """One self-contained HTML file.

    The entry module and all modules that it imports become one script. The stylesheet of a module has the name of the
    module with the suffix `.css`; `shared/theme.css` comes first. The body of the page is the file with the name of the
    entry module and the suffix `.html`, if there is one. A content security policy allows only this script and style,
    and images in `data:` and `blob:` addresses.

    Args:
        entry: the entry module without its suffix, such as 'notebook/page'.
        data: the data of the page, written as JSON into the element with the id 'data'; NaN becomes null.
        title: the title of the page.
        extra: further texts by id, each in its element, such as a compressed program in base64.
        nonce: a random text that marks script and style of a page from a server, and allows the page to send requests
            to that server; None to mark script and style by their hashes.
        assets: the folder of the modules; None for `assets` in this package.

    Raises:
        ValueError: a module is outside the subset of the syntax, or two modules define the same name.
    """
    folder = importlib.resources.files("bertjax.web") / "assets" if assets is None else assets
    modules = _in_order(folder, f"{entry}.js")
    _check_unique(modules)
    script = f'"use strict";\n(() => {{\n{"".join(map(_without_imports, modules.values()))}}})();\n'
    styles = [THEME, *(name.removesuffix(".js") + ".css" for name in modules)]
    style = "".join(_read(folder, name) for name in dict.fromkeys(styles) if _is_file(folder, name))
    for name, text in {entry: script, **(extra or {}), "style": style}.items():
        if found := ENDS.search(text):
            raise ValueError(f"{name} has {found[0]!r}, which ends an element of HTML")
    elements = {"data": ("application/json", to_json(finite(data), separators=(",", ":")).replace("<", "\\u003c"))}
    elements |= {name: ("text/plain", text) for name, text in (extra or {}).items()}
    body = f"{entry}.html"
    policy = _policy(nonce) if nonce else _policy(script=_hash(script), style=_hash(style))
    return FRAME.format(
        policy=html.escape(policy, quote=False),
        title=html.escape(title),
        nonce=f' nonce="{html.escape(nonce)}"' if nonce else "",
        style=style,
        body=_read(folder, body).rstrip("\n") if _is_file(folder, body) else "",
        elements="\n".join(
            f'<script type="{kind}" id="{html.escape(name)}">{text}</script>' for name, (kind, text) in elements.items()
        ),
        script=script,
    )


def security_policy(nonce: str) -> str:
    """The content security policy of a page with a nonce, as a header of a server's response."""
    return f"{_policy(nonce)}; frame-ancestors 'none'"


def _policy(nonce: str | None = None, *, script: str = "", style: str = "") -> str:
    script, style = (f"nonce-{nonce}",) * 2 if nonce else (script, style)
    allowed = f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data: blob:"
    server = "; connect-src 'self'" if nonce else ""
    return f"{allowed}{server}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(folder: Traversable, name: str) -> str:
    return folder.joinpath(*name.split("/")).read_text(encoding="utf-8")


def _is_file(folder: Traversable, name: str) -> bool:
    return folder.joinpath(*name.split("/")).is_file()


def _in_order(folder: Traversable, entry: str) -> dict[str, str]:
    """The source of a module and of all modules that it imports; each source comes after its imports."""
    sources: dict[str, str] = {}
    found: dict[str, str] = {}

    def visit(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"modules import each other in a circle: {' -> '.join([*importers, name])}")
        if name in found:
            return
        sources[name] = _read(folder, name)
        for names, path in IMPORT.findall(sources[name]):
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            visit(imported, (*importers, name))
            _check_exported(name, names, imported, sources[imported])
        found[name] = sources[name]

    visit(entry, ())
    return found


def _check_exported(importer: str, names: str, imported: str, source: str) -> None:
    exported = {name for mark, name in DECLARED.findall(source) if mark}
    for name in filter(None, (one.strip() for one in names.split(","))):
        if not NAME.fullmatch(name):
            raise ValueError(f"{importer}: cannot read the import {name!r}")
        if name not in exported:
            raise ValueError(f"{importer}: {imported} does not export {name}")


def _check_unique(modules: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for module, source in modules.items():
        for _, name in DECLARED.findall(source):
            if name in owners:
                raise ValueError(f"{owners[name]} and {module} both declare {name} at their top level")
            owners[name] = module


def _without_imports(source: str) -> str:
    source = EXPORT.sub("", IMPORT.sub("", source))
    if found := UNREAD.search(source):
        raise ValueError(f"cannot read {found[0]!r}")
    return source if source.endswith("\n") else f"{source}\n"
