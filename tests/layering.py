"""Layering: which package may import which, and through which modules. `violations` names what breaks the rules."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Modules outside the packages: utilities, which every package may use, and entry points, which may use every package.
UTILITIES = {
    *("arguments", "atomic_files", "console", "errors", "formatting", "interrupts", "json_files", "machine", "paths"),
    "progress",
}
ENTRY_POINTS = {"__init__", "__main__", "cli", "commands", "programs", "study"}
# The packages that each package may import.
PACKAGES = {
    "checkpoints": set(),
    "data": {"checkpoints"},
    "models": {"checkpoints", "data", "web"},
    "interventions": {"checkpoints", "models"},
    "engine": {"checkpoints", "models", "data", "interventions"},
    "statistics": set(),
    "plots": {"statistics"},
    "web": set(),
    "results": {"data", "statistics", "plots", "web"},
    "tasks": {"checkpoints", "models", "data", "interventions", "engine", "statistics", "attention", "results"},
    "attention": {"checkpoints", "models", "data", "interventions", "statistics", "web"},
    "jobs": {"checkpoints", "models", "data", "interventions", "engine", "statistics", "plots", "results", "tasks"},
    "representations": {"checkpoints", "models", "data", "interventions", "engine", "statistics"},
    "analyses": {
        *("checkpoints", "models", "data", "interventions", "engine", "statistics", "plots", "results", "tasks"),
        *("attention", "jobs", "representations"),
    },
    "explorer": {
        *("checkpoints", "models", "data", "interventions", "engine", "statistics", "plots", "results", "tasks"),
        *("attention", "jobs", "web"),
    },
}
# What a function of a file may import that the file itself may not.
LATE = {"bertjax/results/examples.py": {"analyses", "tasks"}}
WITHOUT_JAX = {"statistics", "plots", "results", "web"}
# The documented packages: what experiments may use besides `import bertjax`.
DOCUMENTED = {
    *(
        "analyses",
        "jobs",
        "data",
        "errors",
        "statistics",
        "interventions",
        "models",
        "plots",
        "attention",
        "results",
        "tasks",
    ),
}
# Modules of parameters, or that split them from compiled programs.
FLAX = {
    *("bertjax/models/encoder.py", "bertjax/models/task_models.py", "bertjax/models/pretrained.py"),
    *("bertjax/models/sentences/embedding.py",),
    *("bertjax/checkpoints/weight_files.py",),
    *("bertjax/engine/reference.py", "bertjax/engine/blocks.py", "bertjax/engine/compiled_steps.py"),
}
NNX = {"Module", "Param", "List", "GraphDef", "split", "merge", "eval_shape"}
# What else of Flax a file may take.
OF_FLAX = {"nnx", "msgpack_restore", "flatten_dict"}
LATE_IMPORTS = {"import_module", "importlib.import_module", "__import__"}
MOST_MODULES = 13
BY_PLACE = 6  # arguments at most; Pallas hands its references to a kernel, and JAX to a custom derivative, by place


@dataclass(frozen=True)
class File:
    """A file of Python.

    Args:
        path: from the root, `bertjax/models/ops.py`.
        source: what it holds.
    """

    path: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return Path(self.path).with_suffix("").parts

    @cached_property
    def package(self) -> str | None:
        """Its package in bertjax; None for modules at the top level and for files outside bertjax."""
        return self.parts[1] if self.parts[0] == "bertjax" and len(self.parts) > 2 else None

    @property
    def is_init(self) -> bool:
        return len(self.parts) == 3 and self.parts[2] == "__init__" and self.package is not None

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """What it imports anywhere: module and name."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                found += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                found += [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in LATE_IMPORTS and node.args:
                found += [(str(one.value), "") for one in node.args[:1] if isinstance(one, ast.Constant)]
        return found

    @cached_property
    def attributes(self) -> list[tuple[str, str]]:
        """What it looks up anywhere: object and name."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        return [(ast.unparse(node.value), node.attr) for node in nodes]

    @cached_property
    def exports(self) -> list[str]:
        """Names in `__all__`."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return list(ast.literal_eval(node.value))
        return []


def read_sources() -> dict[str, File]:
    """All files of bertjax, experiments and benchmarks."""
    paths = (path for folder in ("bertjax", "experiments", "benchmarks") for path in ROOT.glob(f"{folder}/**/*.py"))
    names = {str(path.relative_to(ROOT)): path for path in sorted(paths)}
    return {name: File(name, path.read_text(encoding="utf-8")) for name, path in names.items()}


def violations(files: Mapping[str, File]) -> list[str]:
    """Violations of the layering rules, one line each."""
    found: list[str] = []
    for file in files.values():
        found += [
            f"{file.path}: {line}"
            for line in (
                *_wrong_place(file),
                *_wrong_imports(file, files),
                *_private_names(file),
                *_wrong_libraries(file),
                *_long_signatures(file),
            )
        ]
    return found + _cycles(files) + _shadowed(files) + _crowded(files)


def _wrong_place(file: File) -> Iterator[str]:
    if file.parts[0] != "bertjax":
        return
    if file.package is None and file.parts[1] not in UTILITIES | ENTRY_POINTS:
        yield "is in no package, and is neither a utility nor an entry point"
    elif file.package is not None and file.package not in PACKAGES:
        yield f"{file.package} is not a known package"


def _wrong_imports(file: File, files: Mapping[str, File]) -> Iterator[str]:
    """Imports of another package's modules, of packages that it may not use, and of its package's `__init__`."""
    own_modules = {other.parts[-1] for other in files.values() if other.package == file.package}
    for module, name in file.imports:
        if module.startswith("."):
            yield f"imports by a relative path ({module} {name})"
        head, *rest = module.split(".")
        if head != "bertjax":
            continue
        target = rest[0] if rest else name
        if rest and file.parts[0] == "experiments" and target not in DOCUMENTED:
            yield f"uses {module}, which is not a documented package"
        if target in PACKAGES:
            if target == file.package:
                if len(rest) == 1 and name not in own_modules and not file.is_init:
                    yield f"imports {name} from the `__init__` of its package"
                continue
            if not _may_use(file, target) and target not in LATE.get(file.path, ()):
                yield f"may not use {target} ({module} {name})"
            init = files.get(f"bertjax/{target}/__init__.py")
            if len(rest) != 1 or init is None or name not in init.exports:
                yield f"does not import from the `__init__` of {target} ({module} {name})"
        elif target in ENTRY_POINTS and file.parts[0] == "bertjax" and file.parts[1] not in ENTRY_POINTS:
            yield f"may not use {target}"
        elif (
            target not in UTILITIES | ENTRY_POINTS and not rest and file.parts[0] == "bertjax" and name != "__version__"
        ):
            yield f"imports {name} from `bertjax` itself"


def _may_use(file: File, package: str) -> bool:
    if file.parts[0] != "bertjax":
        return True
    if file.package is None:
        return file.parts[1] in ENTRY_POINTS
    return package in PACKAGES.get(file.package, set())


def _private_names(file: File) -> Iterator[str]:
    """Private names of what was imported from bertjax."""
    imported = {name for module, name in file.imports if module.split(".")[0] == "bertjax" and name}
    for value, name in file.attributes:
        if value in imported and name.startswith("_") and not name.startswith("__"):
            yield f"uses {value}.{name}"


def _wrong_libraries(file: File) -> Iterator[str]:
    libraries = {module.split(".")[0] for module, _ in file.imports}
    if any("_src" in (*module.split("."), name) for module, name in file.imports) or any(
        value.split(".")[0] == "jax" and name == "_src" for value, name in file.attributes
    ):
        yield "uses jax._src"
    if file.parts[0] != "bertjax":
        return
    if file.package in WITHOUT_JAX and (wrong := libraries & {"jax", "jaxlib", "flax"}):
        yield f"imports {', '.join(sorted(wrong))}"
    if "flax" in libraries and file.path not in FLAX:
        yield "imports flax, but holds no parameters"
    if wrong := {name for module, name in file.imports if module.split(".")[0] == "flax"} - OF_FLAX:
        yield f"takes {', '.join(sorted(wrong))} from flax"
    if wrong := {name for value, name in file.attributes if value == "nnx"} - NNX:
        yield f"uses nnx.{', nnx.'.join(sorted(wrong))}"


def _long_signatures(file: File) -> Iterator[str]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef) and not node.name.endswith("_kernel"):
            names = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")]
            derived = any("custom_vjp" in ast.unparse(one) for one in node.decorator_list)
            if len(names) > BY_PLACE and not derived:
                yield f"{node.name} takes {len(names)} arguments by place"


def _cycles(files: Mapping[str, File]) -> list[str]:
    """Modules of one package that import each other in a circle; the utilities count as a package."""
    found = []
    for package in [*PACKAGES, None]:
        graph = {}
        for file in files.values():
            inside = file.package == package if package else file.parts[0] == "bertjax" and file.parts[1] in UTILITIES
            if not inside or file.is_init:
                continue
            here = ".".join(file.parts).removesuffix(".__init__")
            graph[here] = {
                target
                for module, name in file.imports
                for target in (module, f"{module}.{name}")
                if f"{target.replace('.', '/')}.py" in files and target != here
            }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(f"{package or 'utilities'}: a circle of imports, {' -> '.join(error.args[1])}")
    return found


def _shadowed(files: Mapping[str, File]) -> list[str]:
    """An `__init__` that exports a name that is also the name of a module or folder of the package."""
    found = []
    for file in files.values():
        if not (file.is_init or file.path == "bertjax/__init__.py"):
            continue
        folder = file.path.removesuffix("/__init__.py")
        for name in file.exports:
            there = f"{folder}/{name}/__init__.py" in files or f"{folder}/{name}.py" in files
            itself = any(n == name and f"{module.replace('.', '/')}/{n}.py" in files for module, n in file.imports)
            if there and not itself:
                found.append(f"{file.path}: exports {name}, and a module beside it has that name")
    return found


def _crowded(files: Mapping[str, File]) -> list[str]:
    counts = {
        package: sum(file.package == package and len(file.parts) == 3 for file in files.values()) - 1
        for package in PACKAGES
    }
    return [f"{package} holds {count} modules" for package, count in counts.items() if count > MOST_MODULES]
