"""Options: each is declared once, as a field of a frozen dataclass with its description in the docstring.

Signatures, checks of values, the command line and its help, and the reference documentation derive from these fields.
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
from bertjax.tasks import (
    SAMPLE,
    MaskedWordsOptions,
    MinimalPairsOptions,
    QuestionAnsweringOptions,
    RankingOptions,
    TagOptions,
)

P = ParamSpec("P")
C = TypeVar("C", bound="Options")
R = TypeVar("R")
# Called with a line of text to print.
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
    """The modes that need no sources."""
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
        default: the default value.
        metavar: the placeholder of the value in `--help`.
        on_command_line: whether the command line has the option.
        positional: whether a call may pass the option without its name.
        flag: the name on the command line, if it differs.
        nargs: the number of values of a list on the command line.
        recorded: whether `summary.json` records the option.
    """
    metadata = {"metavar": metavar, "on_command_line": on_command_line, "flag": flag, "nargs": nargs}
    metadata["recorded"] = recorded
    return field(default=default, kw_only=not positional, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options. Values are checked and converted: lists become tuples, paths become str.

    Raises:
        InputError: a value has the wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        for name, kind in kinds(cast(Any, type(self))).items():
            object.__setattr__(self, name, check_option(getattr(self, name), name, kind))


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Model.

    Args:
        model: a hub id, a directory (of a checkpoint or a peft adapter), 'package:NAME', or a model in memory.
        readout: 'auto' uses the head of the checkpoint; 'similarity' uses any encoder as a sentence embedder.
        prompts: the text before the first and the second text of each pair, one or two: the name of a prompt of
            the model, or a text that contains a space, such as 'query: '.
        max_length: truncate texts to this number of tokens; by default the model's limit, for classifiers at most 128.
        allow_new_head: allow parameters that the task needs and the checkpoint lacks; they are initialised at random.
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
        task: a GLUE task (mrpc, stsb, sst2, qqp, rte, qnli, mnli, mnli-mm, cola), qnli-sample, mlm (masked words),
            minimal-pairs, agreement, token-classification, question-answering, multiple-choice, multi-label, ranking,
            or custom (labelled texts). By default custom if there are data, else qnli-sample.
        data: a GLUE directory, a .tsv, .csv, .jsonl or .parquet file (for mlm also .txt), or a directory saved by
            datasets. In Python also a pandas or polars DataFrame, an Arrow table, a `datasets.Dataset`, or a list of
            dicts.
        data_dir: a directory of TensorFlow Datasets. Without it and without data, a GLUE task is read from the default
            directory of TensorFlow Datasets, or with datasets from the Hugging Face hub.
        split: the split of the data set.
        text_columns: the columns with the first and, for pairs, the second texts; by default columns with common names.
        label_column: the column with the labels; by default a column with a common name.
        label_names: the names of the labels in the order of their indices; an empty list for ratings (regression).
        limit: use at most this number of examples, sampled with the seed.
        seed: the seed of all random choices: examples, subsets, masked words, and resampling.
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
class TaskOptions(
    Options, RankingOptions, QuestionAnsweringOptions, TagOptions, MinimalPairsOptions, MaskedWordsOptions
):
    """Options of individual tasks."""


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Options):
    """Computation.

    Args:
        precision: the floating-point type; 'auto' is bfloat16 on a TPU and float32 elsewhere.
        attention: the implementation of attention; 'auto' is the fastest one on this device.
        memory: the maximum memory to use, such as '8GB'; by default most of the free memory.
    """

    precision: Annotated[str, Choices(["auto", "float32", "bfloat16"])] = "auto"
    attention: Annotated[str, Choices(["auto", "explicit", "fused", "pallas"])] = "auto"
    memory: str | None = option(None, "SIZE")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """Results.

    Args:
        output: the directory for the results; the same command resumes an interrupted run there. By default a name is
            made from the options; in Python None writes nothing.
        overwrite: replace existing results, and discard an unfinished run.
        progress: True shows a progress bar; or a function that is called with the work done and the total work.
    """

    output: PathLike | None = option(None, "DIR")
    overwrite: bool = False
    progress: Any = option(True, on_command_line=False, recorded=False)


@cache
def kinds(options: Any) -> Mapping[str, Any]:
    """The annotated type of each option of a class, by name.

    Args:
        options: a class of options.
    """
    hints = get_type_hints(options, include_extras=True)
    return {one.name: hints[one.name] for one in fields(options)}


def base_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type into the type without None and annotations, and the annotations.

    Args:
        kind: an annotated type.

    >>> base_of(Positive | None)
    (<class 'int'>, (1,))
    """
    kind = next((part for part in get_args(kind) if part is not NoneType), kind) if is_optional(kind) else kind
    return (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())


def choices_of(kind: Any) -> list[str] | None:
    """The choices of a type; None if it has none.

    Args:
        kind: the annotated type of an option.
    """
    base, notes = base_of(kind)
    if get_origin(base) is Literal:
        return list(get_args(base))
    return [*notes[0]] if notes and isinstance(notes[0], Choices) else None


def is_optional(kind: Any) -> bool:
    """Whether None is a value of a type."""
    return NoneType in get_args(kind)


def summary_of(options: type) -> tuple[str, str]:
    """The first line of the docstring of options, without its full stop, and the paragraphs between it and `Args`.

    Args:
        options: a class of options.
    """
    first, _, rest = cleandoc(options.__doc__ or "").partition("\n\n")
    text = re.split(r"(?:^|\n\n)(?:Args|Raises|Attributes):", rest)[0]
    return first.removesuffix("."), " ".join(text.split())


def check_option(value: Any, name: str, kind: Any) -> Any:
    """Check and convert the value of an option.

    Args:
        value: the value.
        name: the name of the option, for errors.
        kind: the annotated type of the option.

    Raises:
        InputError: the value has another type, or is out of range.
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
    """The canonical name of a head; any other str is kept, for the model to refuse."""
    canonical = arguments.plain_head_name(head)
    return canonical if isinstance(canonical, str) else arguments.refuse(name, f"a list of {HEADS}", head)


def _check_integer(value: Any, name: str, least: int | None) -> int:
    number = arguments.check_int(value, name, least)
    if number > LARGEST_INTEGER:  # a summary could not hold it
        arguments.refuse(name, f"at most {LARGEST_INTEGER}", value)
    return number


def descriptions(options: type) -> dict[str, str]:
    """The description of each option, from the `Args` in the docstrings of the class and its bases.

    Args:
        options: a class of options.
    """
    found: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        _, _, section = cleandoc(cls.__doc__ or "").partition("Args:\n")
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return {one.name: found[one.name] for one in in_order(options) if one.name in found}


def takes(options: Callable[P, C]) -> Callable[[Callable[[Any, C], R]], Callable[Concatenate[Any, P], R]]:
    """Decorate a method of options, to take their values: `study.shapley(orders=40)` passes `Shapley(orders=40)`.

    Signature and `Args` of the docstring are those of the options.

    Args:
        options: a class of `Options`.
    """

    def decorate(method: Callable[[Any, C], R]) -> Callable[Concatenate[Any, P], R]:
        @wraps(method)
        def call(self: Any, /, *positional: P.args, **named: P.kwargs) -> R:
            return method(self, make_options(options, positional, named))

        cls: Any = options
        this = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        call.__signature__ = Signature([this, *parameters(cls)])  # type: ignore[attr-defined]
        call.__doc__ = with_options(getdoc(method) or "", cls)
        return call

    return decorate


def parameters(options: type[Options]) -> list[Parameter]:
    """The parameters of a call that takes options, positional ones first.

    Args:
        options: a class of options.
    """
    hints: Mapping[str, Any] = kinds(cast(Any, options))
    found = []
    for one in in_order(options):
        how = Parameter.KEYWORD_ONLY if one.kw_only else Parameter.POSITIONAL_OR_KEYWORD
        base, optional = base_of(hints[one.name])[0], is_optional(hints[one.name])
        found.append(Parameter(one.name, how, default=one.default, annotation=base | None if optional else base))
    return sorted(found, key=lambda parameter: parameter.kind)


def in_order(options: Any) -> list["Field[Any]"]:
    """The fields of options; those of an analysis come first, those of `OutputOptions` last."""
    if not issubclass(options, OutputOptions):
        return list(fields(options))
    classes = [cls for cls in options.__mro__ if issubclass(cls, Options)]
    first = {
        one.name: max(n for n, cls in enumerate(classes) if one.name in vars(cls).get("__annotations__", {}))
        for one in fields(options)
    }
    return sorted(fields(options), key=lambda one: first[one.name])


def with_options(text: str, *options: type[Options], only: Collection[str] | None = None) -> str:
    """Add `Args` with the descriptions of options to a docstring.

    Args:
        text: the docstring.
        options: the classes of the options.
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
    """Make options from the arguments of a call. Raises `InputError` for unknown options and wrong values."""
    cls: Any = options
    check_names(named, [one.name for one in fields(cls)])
    by_position = [one.name for one in fields(cls) if not one.kw_only]
    if len(positional) > len(by_position):
        shown = ", ".join(by_position) or "none"
        raise InputError(f"options that may be passed without their name: {shown}; name the others")
    return options(**dict(zip(by_position, positional, strict=False)), **named)


def check_names(named: Iterable[str], known: Sequence[str]) -> None:
    """Raise `InputError` for an unknown option.

    Args:
        named: the names of the options that were passed.
        known: the names of all options.
    """
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f": it takes {some_of(known, most=len(known))}"
            raise InputError(f"{name} is not an option of this call{hint}")


def names(options: type[Options]) -> frozenset[str]:
    """The names of the options of a class.

    Args:
        options: a class of options.
    """
    return frozenset(one.name for one in fields(options))
