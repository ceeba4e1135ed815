"""The public names of bertjax and the text of the reference pages, generated from the modules.

A name that several modules export is described once, on the page of the first, and linked from the others. Needs no
Sphinx: the tests compare these pages with the modules.
"""

import ast
import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = (
    "analyses",
    "checkpoints",
    "data",
    "engine",
    "errors",
    "explorer",
    "statistics",
    "interventions",
    "jobs",
    "machine",
    "models",
    "plots",
    "representations",
    "attention",
    "results",
    "study",
    "tasks",
    "web",
)
# Modules that are exported by `bertjax`: each has a page.
ON_THEIR_OWN = ("ablations", "overrides", "patching", "readouts", "reference")
LONGEST_VALUE = 60  # characters of a value that is shown


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        path: its documented path, such as `bertjax.load`.
        kind: 'function', 'class', 'exception', 'data' or 'module'.
        value: the object.
        module: the module that exports it.
    """

    path: str
    kind: str
    value: Any
    module: ModuleType

    @property
    def short(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        text = comment_of(self.module, self.short) if self.kind == "data" else inspect.getdoc(self.value) or ""
        return text.split("\n\n")[0].replace("\n", " ").strip()


def public_modules() -> dict[str, ModuleType]:
    """Each module that has a page, by its public path; a name is described by the first module that exports it."""
    paths = ["bertjax", *(f"bertjax.{name}" for name in (*ON_THEIR_OWN, *PACKAGES))]
    return {path: import_path(path) for path in paths}


def import_path(path: str) -> ModuleType:
    """The module at a path that may begin with a name of `bertjax` itself."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        package, _, name = path.rpartition(".")
        return getattr(import_module(package), name)


def names_of(module: ModuleType) -> list[str]:
    """What a module offers: its `__all__`, or else the functions and classes of its top level without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = definitions(module).items()
    return [name for name, node in defined if isinstance(node, ast.FunctionDef | ast.ClassDef) and name[0] != "_"]


@cache
def parsed(module: ModuleType) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(inspect.getsource(module))


@cache
def definitions(module: ModuleType) -> dict[str, ast.stmt]:
    """The statements at a module's top level that define a name, without type variables."""
    found: dict[str, ast.stmt] = {}
    for node in parsed(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            called = node.value.func if isinstance(node.value, ast.Call) else None
            if isinstance(called, ast.Name) and called.id == "TypeVar":
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                found |= {part.id: node for part in parts if isinstance(part, ast.Name)}
    return found


def comment_of(module: ModuleType, name: str) -> str:
    """The str below a value, or the comment above or behind it, in the module that defines it."""
    home, name = follow(module, name)
    node = definitions(home).get(name)
    if node is None:
        return ""
    if found := docstring_below(home, node):
        return found
    lines = inspect.getsource(home).splitlines()
    last = lines[node.lineno - 1]
    if node.lineno == node.end_lineno and "  # " in last and "type: ignore" not in last:
        return sentence(last.rpartition("  # ")[2])
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.startswith("# "):
            break
        above.insert(0, line[2:])
    return sentence(" ".join(above))


def docstring_below(module: ModuleType, node: ast.stmt) -> str:
    """The str expression that follows an assignment, as one line; empty if there is none."""
    for statement, following in itertools.pairwise(parsed(module).body):
        if statement is node and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return " ".join(str(following.value.value).split())
    return ""


def sentence(text: str) -> str:
    """Words of a comment as a sentence, code quoted as in docstrings."""
    text = text.strip()
    return text if not text or text.endswith((".", ":")) else f"{text}."


def follow(module: ModuleType, name: str) -> tuple[ModuleType, str]:
    """The module that defines a name which another one imports, and the name there."""
    origin = None if name in definitions(module) else imports(module).get(name)
    return (module, name) if origin is None else follow(import_module(origin[0]), origin[1])


@cache
def imports(module: ModuleType) -> dict[str, tuple[str, str]]:
    """What a module imports from bertjax, for type checkers too: the module and the name there of each name."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertjax")
        for alias in node.names
    }


def kind_of(value: Any) -> str:
    """The kind of an object."""
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value) and value.__module__.startswith("bertjax"):
        return "exception" if issubclass(value, BaseException) else "class"
    if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")):
        return "function"
    return "data"


def names_in(path: str, module: ModuleType) -> Iterator[Name]:
    """The public names of a module, and of its exported modules that have no page."""
    for name in names_of(module):
        value = module.__dict__[name] if name in module.__dict__ else getattr(module, name)
        found = Name(f"{path}.{name}", kind_of(value), value, module)
        yield found
        if found.kind == "module" and value not in public_modules().values():
            yield from names_in(found.path, value)


def identity(name: Name) -> object:
    """A key that is equal for two names of one object: its id, or for values the location of the definition."""
    if name.kind != "data":
        return id(name.value)
    home, called = follow(name.module, name.short)
    if called in definitions(home):
        return home.__name__, called
    return name.path


@cache
def homes() -> Mapping[object, Name]:
    """Each object with its documented name."""
    found: dict[object, Name] = {}
    for path, module in public_modules().items():
        for name in names_in(path, module):
            if name.kind == "module" and name.value in public_modules().values():
                continue
            found.setdefault(identity(name), name)
    return found


def all_names() -> Iterator[tuple[Name, Name]]:
    """Every public name with the documented name of its object."""
    pages = {id(module): path for path, module in public_modules().items()}
    for path, module in public_modules().items():
        for name in names_in(path, module):
            if id(name.value) in pages:
                yield name, Name(pages[id(name.value)], "module", name.value, name.module)
            else:
                yield name, homes()[identity(name)]


def page_text(path: str) -> str:
    """The text of a module's page, below its title, in MyST Markdown."""
    module = public_modules()[path]
    pairs = [(name, home) for name, home in all_names() if name.path.rpartition(".")[0] == path]
    inner = [name for name, _ in pairs if name.kind == "module" and name.value not in public_modules().values()]
    parts = [docstring_block(path, module), table_of(pairs), *describe(pairs)]
    for name in inner:
        pairs = [(one, home) for one, home in all_names() if one.path.rpartition(".")[0] == name.path]
        parts += [f"## {name.path}", docstring_block(name.path, name.value), table_of(pairs), *describe(pairs, "###")]
    return "\n\n".join(part for part in parts if part)


def docstring_block(path: str, module: ModuleType) -> str:
    """The docstring of a module, as the target of links to it."""
    return rst(f".. py:module:: {path}\n\n{inspect.getdoc(module) or ''}")


def rst(text: str) -> str:
    """A block of reStructuredText for a Markdown page."""
    return f"```{{eval-rst}}\n{text}\n```"


def table_of(pairs: list[tuple[Name, Name]]) -> str:
    """A table of all names with their first sentences, linked to their descriptions."""
    if not pairs:
        return ""
    rows = ["   * - Name", "     - Is"]
    for name, home in sorted(pairs, key=lambda pair: (pair[0].short.lower(), pair[0].short)):
        role = "py:mod" if home.kind == "module" else "py:obj"
        rows += [f"   * - :{role}:`{name.short} <{home.path}>`", f"     - {home.summary}".rstrip()]
    return rst(".. list-table::\n   :widths: 30 70\n   :header-rows: 1\n\n" + "\n".join(rows))


TITLES = {
    "function": "Functions",
    "class": "Classes",
    "exception": "Errors",
    "data": "Values",
}


def describe(pairs: list[tuple[Name, Name]], mark: str = "##") -> Iterator[str]:
    """The descriptions of the names that are documented on this page, by kind."""
    here = [name for name, home in pairs if name.path == home.path]
    for kind, title in TITLES.items():
        if names := sorted((name for name in here if name.kind == kind), key=lambda name: name.short.lower()):
            yield f"{mark} {title}"
            yield from (rst(directive(name)) for name in names)


def directive(name: Name) -> str:
    """The directive that describes one name."""
    if name.kind == "data":
        return describe_value(name)
    if name.kind == "function":
        return f".. autofunction:: {name.path}"
    lines = [f".. auto{name.kind}:: {name.path}", "   :members:"]
    if any(base.__module__.startswith("bertjax") for base in name.value.__bases__):
        lines.append("   :show-inheritance:")
    return "\n".join([*lines, "   :special-members: __call__"] if "__call__" in vars(name.value) else lines)


def describe_value(name: Name) -> str:
    """The type of a value, the value if it is short, its keys if it is a mapping, and its comment."""
    lines = [f".. py:data:: {name.short}", f"   :module: {name.path.rpartition('.')[0]}"]
    plain = isinstance(name.value, int | float | str | tuple | frozenset | Mapping)
    if plain:
        lines.append(f"   :type: {type(name.value).__name__}")
    shown = repr(name.value)
    short = len(shown) <= LONGEST_VALUE and "\n" not in shown and " at 0x" not in shown
    if short and not isinstance(name.value, Mapping):
        lines.append(f"   :value: {shown}")
    lines += ["", f"   {name.summary}"]
    if isinstance(name.value, Mapping):
        lines += ["", "   Keys: " + ", ".join(f"``{key}``" for key in name.value) + "."]
    return "\n".join(lines)


def pages(folder: Path) -> dict[str, Path]:
    """The page of each module: `reference/models.md` is that of `bertjax.models`."""
    names = {path: path.partition(".")[2] or "bertjax" for path in public_modules()}
    return {path: folder / f"{name}.md" for path, name in names.items()}
