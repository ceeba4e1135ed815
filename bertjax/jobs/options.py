"""Options: each is declared once, as a field of a frozen dataclass with its sentence in the docstring.

Signatures, checks of values, the command line and its help, and the reference documentation are made of these fields.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache, wraps
from inspect import Parameter, Signature, cleandoc, getdoc
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from bertjax import arguments
from bertjax.arguments import LARGEST_INTEGER
from bertjax.checkpoints import DEFAULT_MODEL
from bertjax.data import CUSTOM
from bertjax.errors import InputError, some_of
from bertjax.interventions import MODES
from bertjax.tasks import SAMPLE, MaskedWordsOptions, MinimalPairsOptions, QuestionAnsweringOptions, RankingOptions

P = ParamSpec("P")
C = TypeVar("C", bound="Options")
R = TypeVar("R")
# Called with a line for people.
Say = Callable[[str], None]
# Integers from 0.
Natural = Annotated[int, 0]
# Integers from 1.
Positive = Annotated[int, 1]
# A path, which becomes a str.
PathLike = Annotated[str, Path]
HEADS = "heads, each as '3.10', 'L3H10' or (3, 10)"
# Names of heads, in any spelling.
Heads = Annotated[tuple[str, ...], HEADS]
Names = Annotated[tuple[str, ...], "str"]


@dataclass(frozen=True)
class Choices:
    """The values of an option of type `Annotated[str, Choices(...)]`.

    Args:
        values: all values, or a function that returns them.
    """

    values: Sequence[str] | Callable[[], Sequence[str]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values() if callable(self.values) else self.values)


def available_modes() -> list[str]:
    """The modes that need no sources: examples have none."""
    return [name for name, mode in MODES.items() if mode.replacement != "source"]


# What replaces a head.
Mode = Annotated[str, Choices(available_modes)]


def option(
    default: Any,
    metavar: str = "",
    *,
    on_command_line: bool = True,
    positional: bool = False,
    flag: str = "",
    nargs: str = "+",
    recorded: bool = True,
) -> Any:
    """A field of options.

    Args:
        metavar: what stands for a value in `--help`.
        on_command_line: whether the command line has it.
        positional: whether a call may pass it without its name.
        flag: another name on the command line.
        nargs: of a list on the command line.
        recorded: whether `summary.json` has it.
    """
    metadata = {"metavar": metavar, "on_command_line": on_command_line, "flag": flag, "nargs": nargs}
    metadata["recorded"] = recorded
    return field(default=default, kw_only=not positional, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options. Values are checked when they are set: lists become tuples, paths become str.

    Raises:
        InputError: a value of the wrong type, or out of range.
    """

    def __post_init__(self) -> None:
        for name, kind in kinds(cast(Any, type(self))).items():
            object.__setattr__(self, name, check_option(getattr(self, name), name, kind))


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Model.

    Args:
        model: a hub id, a directory (also of an adapter of peft), 'package:NAME', or a model of bertjax in memory.
        readout: 'auto' for what the checkpoint is made for, or 'similarity' for any encoder as a sentence embedder.
        prompts: text before the first and the second text of each pair: names of the model's prompts, or texts that
            contain a space, such as 'query: '. One for both, or two.
        max_length: cut texts after this number of tokens; by default the model's limit, for classifiers at most 128.
        allow_new_head: score a task although the checkpoint lacks parameters that it needs, which are then random.
    """

    model: Any = option(DEFAULT_MODEL, "M", positional=True)
    readout: Annotated[str, Choices(["auto", "similarity"])] = "auto"
    prompts: Names | None = option(None, "PROMPT")
    max_length: Positive | None = option(None, "N")
    allow_new_head: bool = False


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Examples.

    Args:
        task: a task of GLUE (mrpc, stsb, sst2, qqp, rte, qnli, mnli, mnli-mm, cola), qnli-sample, mlm (masked words),
            minimal-pairs, agreement, token-classification, question-answering, multiple-choice, multi-label, ranking,
            or custom for labelled texts of your data. By default custom if there are data, else qnli-sample.
        data: a GLUE directory, a .tsv, .csv, .jsonl or .parquet file (for mlm also .txt), or a directory that datasets
            saved. In Python also a DataFrame of pandas or polars, an Arrow table, a `datasets.Dataset`, or a list of
            dicts.
        data_dir: read the task from this directory of TensorFlow Datasets. Without it and without data, a task of GLUE
            is read from TensorFlow Datasets' own directory, or through datasets from the Hugging Face hub.
        split: the part of the data.
        text_columns: the columns with the first and, for pairs, the second texts; by default those with usual names.
        label_column: the column with the labels; by default the one with a usual name.
        label_names: the labels in the order of their numbers; an empty list makes labels ratings (a regression).
        limit: use at most this number of examples, drawn with the seed.
        seed: seed of all random draws: of examples, subsets, masked words, and of the statistics.
    """

    task: str = option("", "T", positional=True)
    data: Any = option(None, "PATH")
    data_dir: PathLike | None = option(None, "DIR")
    split: str = option("validation", "NAME")
    text_columns: Names | None = option(None, "COLUMN")
    label_column: str | None = option(None, "COLUMN")
    label_names: Names | None = option(None, "NAME", nargs="*")
    limit: Positive | None = option(None, "N")
    seed: Natural = option(0, "S")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.task:
            has_data = self.data is not None or getattr(self, "texts", None) is not None
            object.__setattr__(self, "task", CUSTOM if has_data else SAMPLE)


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Options, MaskedWordsOptions, MinimalPairsOptions, QuestionAnsweringOptions, RankingOptions):
    """Options of single tasks."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Options):
    """Computation.

    Args:
        precision: the number format; 'auto' is bfloat16 on a TPU, float32 elsewhere.
        attention: the implementation of attention; 'auto' is the fastest on this device.
        memory: memory to stay within, such as '8GB'; by default most of what is free.
    """

    precision: Annotated[str, Choices(["auto", "float32", "bfloat16"])] = "auto"
    attention: Annotated[str, Choices(["auto", "explicit", "fused", "pallas"])] = "auto"
    memory: str | None = option(None, "SIZE")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """Results.

    Args:
        output: the directory for the results, in which an interrupted run resumes; by default named after the job. In
            Python None writes nothing.
        overwrite: replace results that are in the directory, and discard an unfinished run.
        progress: True shows a bar; or a function that is called with the work done and the total work.
    """

    output: PathLike | None = option(None, "DIR")
    overwrite: bool = False
    progress: Any = option(True, on_command_line=False, recorded=False)


@cache
def kinds(options: Any) -> Mapping[str, Any]:
    """The type of each option of a class by name, with annotations."""
    hints = get_type_hints(options, include_extras=True)
    return {one.name: hints[one.name] for one in fields(options)}


def base_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without None and annotations, and the annotations.

    >>> base_of(Positive | None)
    (<class 'int'>, (1,))
    """
    kind = next((part for part in get_args(kind) if part is not NoneType), kind) if is_optional(kind) else kind
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


def choices_of(kind: Any) -> list[str] | None:
    """The values that an option of a type may have; None if they are not listed."""
    base, notes = base_of(kind)
    if get_origin(base) is Literal:
        return list(get_args(base))
    return [*notes[0]] if notes and isinstance(notes[0], Choices) else None


def is_optional(kind: Any) -> bool:
    """Whether None is a value of a type."""
    return NoneType in get_args(kind)


def summary_of(options: type) -> tuple[str, str]:
    """The first line of the docstring of options, without its full stop, and the paragraphs between it and `Args`."""
    first, _, rest = cleandoc(options.__doc__ or "").partition("\n\n")
    text = re.split(r"(?:^|\n\n)(?:Args|Raises|Attributes):", rest)[0]
    return first.removesuffix("."), " ".join(text.split())


def check_option(value: Any, name: str, kind: Any) -> Any:
    """A value of an option's type, as the option keeps it.

    Raises:
        InputError: it is of another type, or out of range.
    """
    base, notes = base_of(kind)
    if base is Any or (value is None and is_optional(kind)) or get_origin(base) not in (None, tuple, Literal):
        return value
    if get_origin(base) is tuple:
        of_heads = bool(notes) and notes[0] == HEADS
        item = get_args(base)[0]
        allowed = {str: (str, tuple) if of_heads else str, float: Real}[item]
        what = notes[0] if notes else item.__name__
        items = arguments.check_sequence(value, name, f"a list of {what}", allowed)
        items = tuple(map(float, items)) if item is float else items
        return tuple(_head(item, name) for item in items) if of_heads else items
    choices = choices_of(kind)
    if choices is not None:
        return arguments.check_choice(value, name, choices)
    if base is bool:
        return arguments.check_bool(value, name)
    if base is int:
        return _check_integer(value, name, notes[0] if notes else None)
    if base is float:
        return float(value) if isinstance(value, Real) else arguments.refuse(name, "a number", value)
    if Path in notes and isinstance(value, Path):
        return str(value)
    expected = {str: "a path" if Path in notes else "a str"}.get(base, f"a {base.__name__}")
    return arguments.check_instance(value, name, base, expected)


def _head(head: Any, name: str) -> str:
    """A head's name; one that names no head of any model stays, for the model to refuse."""
    plain = arguments.plain_head_name(head)
    return plain if isinstance(plain, str) else arguments.refuse(name, f"a list of {HEADS}", head)


def _check_integer(value: Any, name: str, least: int | None) -> int:
    number = arguments.check_int(value, name, least)
    if number > LARGEST_INTEGER:  # a summary could not hold it
        arguments.refuse(name, f"at most {LARGEST_INTEGER}", value)
    return number


def descriptions(options: type) -> dict[str, str]:
    """The sentence of each option, from the `Args` of the class's docstring and of its bases."""
    found: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        _, _, section = cleandoc(cls.__doc__ or "").partition("Args:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return {one.name: found[one.name] for one in in_order(options) if one.name in found}


def takes(options: Callable[P, C]) -> Callable[[Callable[[Any, C], R]], Callable[Concatenate[Any, P], R]]:
    """Make a method of options a method of their values: `study.shapley(orders=40)` calls it with `Shapley(orders=40)`.

    The method's signature and the section `Args` of its docstring are those of the options.

    Args:
        options: a class of `Options`.
    """

    def decorate(method: Callable[[Any, C], R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(method)
        def call(self: Any, /, *positional: P.args, **named: P.kwargs) -> R:
            return method(self, make_options(options, positional, named))

        cls: Any = options
        own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = Signature([own, *parameters(cls)])  # type: ignore[attr-defined]
        call.__doc__ = with_options(getdoc(method) or "", cls)
        return call

    return decorate


def parameters(options: type[Options]) -> list[Parameter]:
    """The parameters of a call that takes options: positional ones first, those of results last."""
    hints: Mapping[str, Any] = kinds(cast(Any, options))
    found = []
    for one in in_order(options):
        how = Parameter.KEYWORD_ONLY if one.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        base, optional = base_of(hints[one.name])[0], is_optional(hints[one.name])
        found.append(Parameter(one.name, how, default=one.default, annotation=base | None if optional else base))
    return sorted(found, key=lambda parameter: parameter.kind)


def in_order(options: Any) -> list["Field[Any]"]:
    """The fields of options; of an analysis first those that its class declares, those of `OutputOptions` last."""
    if not issubclass(options, OutputOptions):
        return list(fields(options))
    classes = [cls for cls in options.__mro__ if issubclass(cls, Options)]
    first = {one.name: max(n for n, cls in enumerate(classes) if one.name in fields_of(cls)) for one in fields(options)}
    return sorted(fields(options), key=lambda one: first[one.name])


def fields_of(cls: Any) -> frozenset[str]:
    """The names of the fields that a class itself declares."""
    return frozenset(vars(cls).get("__annotations__", {}))


def with_options(text: str, *options: type[Options], only: Collection[str] | None = None) -> str:
    """A docstring whose `Args` lists options, each with its sentence.

    Args:
        only: the names of the options to list; None for all.
    """
    found = [item for cls in options for item in descriptions(cls).items() if only is None or item[0] in only]
    section = "\n".join(["Args:", *(f"    {name}: {sentence}" for name, sentence in found)])
    before, mark, after = text.partition("\n\nReturns:")
    if mark:
        return f"{before}\n\n{section}{mark}{after}"
    before, mark, after = text.partition("\n\n>>> ")
    return f"{before}\n\n{section}{mark}{after}"


def make_options(options: Callable[..., C], positional: tuple[Any, ...], named: Mapping[str, Any]) -> C:
    """The options of a call. Raises `InputError` for an option that there is not, or one of a wrong value."""
    cls: Any = options
    check_names(named, [one.name for one in fields(cls)])
    by_place = [one.name for one in fields(cls) if not one.kw_only]
    if len(positional) > len(by_place):
        shown = ", ".join(by_place) or "none"
        raise InputError(f"options that may be passed without their name: {shown}; name the others")
    return options(**dict(zip(by_place, positional, strict=False)), **named)


def check_names(named: Iterable[str], known: Sequence[str]) -> None:
    """Raise `InputError` for an option that a call does not have."""
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f": it takes {some_of(known, most=len(known))}"
            raise InputError(f"{name} is not an option of this call{hint}")


def names(options: type[Options]) -> frozenset[str]:
    """The names of the options of a class."""
    return frozenset(one.name for one in fields(options))
