"""The settings of a job: the options of a study, of one analysis, and where model and data come from."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax

from bertjax import arguments
from bertjax.checkpoints import BertConfig, locate, read_config
from bertjax.data import Tokenizer
from bertjax.engine import choose_attention
from bertjax.errors import BertjaxError, InputError, OutputError
from bertjax.jobs.naming import name_directory
from bertjax.jobs.options import ComputeOptions, DataOptions, ModelOptions, OutputOptions, TaskOptions, names
from bertjax.machine import parse_bytes, parse_shard
from bertjax.models import Numerics, PretrainedModel
from bertjax.paths import hash_file, is_file, user_path
from bertjax.results import NOT_COMPARED
from bertjax.statistics import as_metric

T = TypeVar("T")
# The names of the options of a study.
STUDY = names(ModelOptions) | names(DataOptions) | names(TaskOptions) | names(ComputeOptions)
# The same without those of the computation.
NO_COMPUTE = STUDY - names(ComputeOptions)


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions(OutputOptions):
    """Base of all analyses.

    Attributes:
        name: the name in `summary.json`.
        word: the word in default names of directories.
        reads: the names of the options of a study that the analysis reads.
        own: the names of options that `summary.json` records under "analysis"; the others are under "settings".
        journals: the pattern of names of journals; None if the analysis keeps none.
    """

    name: ClassVar[str] = ""
    word: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = STUDY
    own: ClassVar[tuple[str, ...]] = ()
    journals: ClassVar[str | None] = "journal*"

    @property
    def mode(self) -> str:
        """What replaces a head."""
        return "uniform"

    @property
    def metric(self) -> Any:
        """The main metric; None for that of the task."""
        return None

    @property
    def shard(self) -> str | None:
        """The shard to compute, such as '3/16'; None for all."""
        return None

    @property
    def resume(self) -> bool:
        """Whether to print a line if there is no unfinished run."""
        return False

    @property
    def reference_engine(self) -> tuple[int | None, int | None] | None:
        """Batch size and chunk size of the reference engine (None: default); None for the fast engine."""
        return None

    @property
    def float32(self) -> bool:
        """Whether the analysis computes in float32 on every device."""
        return False

    @property
    def explicit(self) -> bool:
        """Whether the analysis computes explicit attention on every device."""
        return False

    @property
    def inputs(self) -> list[str]:
        """Files and directories that the analysis reads in addition to those of the study."""
        return []

    def settings(self) -> dict[str, Any]:
        """The options that `summary.json` records under "settings"."""
        shown = [one.name for one in fields(self) if one.metadata.get("recorded", True) and one.name not in self.own]
        metric = {} if "metric" not in shown or self.metric is None else {"metric": as_metric(self.metric).name}
        return {name: getattr(self, name) for name in shown} | metric

    def recorded(self) -> dict[str, Any]:
        """The options that `summary.json` records under "analysis"."""
        return {name: getattr(self, name) for name in self.own}

    def check(self, settings: "Settings") -> None:
        """Raise `InputError` for options that contradict each other or those of the study."""
        if not self.name:
            raise InputError(f"{type(self).__name__} has no name: set the class attribute `name`")
        if self.resume and self.overwrite:
            raise InputError("--resume keeps an unfinished run, --overwrite replaces it: give one of them")


class Sources:
    """Model, tokenizer and data in memory, and the cache of a study.

    Args:
        model: a model in memory; None loads the model of the settings.
        tokenizer: the tokenizer; None for that of the model.
        data: arguments of `load_examples`: `data`, or `texts` with `labels`; empty for the data of the settings.
        caches: whether loaded objects are kept; otherwise each job reads its files again.
    """

    def __init__(
        self,
        model: PretrainedModel | None = None,
        tokenizer: Tokenizer | None = None,
        data: dict[str, Any] | None = None,
        *,
        caches: bool = False,
    ):
        self.model, self.tokenizer, self.data, self.caches = model, tokenizer, data or {}, caches
        self._loaded: dict[Hashable, Any] = {}

    def once(self, key: Hashable, load: Callable[[], T]) -> T:
        """The result of `load` when it was first called with this key.

        Args:
            key: a key of everything that the result depends on.
            load: loads the object.
        """
        if not self.caches:
            return load()
        if key not in self._loaded:
            self._loaded[key] = load()
        value: T = self._loaded[key]
        return value

    def loaded(self, kind: str) -> Any:
        """The first loaded object of a kind; None if there is none.

        Args:
            kind: the kind of the object, the first part of its key.
        """
        return next((value for key, value in self._loaded.items() if isinstance(key, tuple) and key[0] == kind), None)

    def without_data(self) -> "Sources":
        """The same model, tokenizer and cache, without data in memory."""
        other = Sources(self.model, self.tokenizer, caches=self.caches)
        other._loaded = self._loaded
        return other


@dataclass(frozen=True, kw_only=True)
class Settings(ComputeOptions, TaskOptions, DataOptions, ModelOptions):
    """All options of a job: of the study and of one analysis.

    Args:
        analysis: the analysis with its options.
        sources: model and data in memory, and the cache.
    """

    analysis: AnalysisOptions
    precision: str = "auto"  # of a model in memory its own
    sources: Sources = field(default_factory=Sources, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("model", "data"):
            value = getattr(self, name)
            if not isinstance(value, str | Path | None if name == "data" else str | Path):
                arguments.refuse(name, "a path" if name == "data" else "a directory, hub id or 'package:NAME'", value)
            object.__setattr__(self, name, None if value is None else str(value))

    def describe(self) -> dict[str, Any]:
        """The options that results depend on, and the hash of the data file."""
        read = {name: getattr(self, name) for name in sorted(self.analysis.reads)}
        digest = self.hash_data() if "data" in read else None
        return {**read, **self.analysis.settings(), **({"data_sha256": digest} if digest else {})}

    def hash_data(self) -> str | None:
        """SHA-256 of the data file when it was first read; None if there is no file."""
        data = self.data
        if data is None:
            return None
        return self.sources.once(("data", data), lambda: hash_if_file(user_path(data, InputError)))

    def compared(self) -> dict[str, Any]:
        """The options that identify a job: `describe` without options of output."""
        return {name: value for name, value in self.describe().items() if name not in NOT_COMPARED}

    @property
    def shard_of(self) -> tuple[int, int] | None:
        """Number of this shard and of all shards; None for a run without shards."""
        return None if self.analysis.shard is None else parse_shard(self.analysis.shard)

    @property
    def texts_at_once(self) -> int:
        """The number of texts computed at a time without the engine."""
        batch_size, _ = self.analysis.reference_engine or (None, None)
        return batch_size or (4 if jax.default_backend() == "cpu" else 64)

    @property
    def memory_budget(self) -> int | None:
        """`memory` in bytes. Raises `InputError` if it is not an amount."""
        return None if self.memory is None else parse_bytes(self.memory)

    def sweep_options(self, journal: Path | None) -> dict[str, Any]:
        """The arguments of `engine.sweep` that depend on the settings.

        Args:
            journal: the directory that keeps finished parts; None keeps nothing.
        """
        return {
            "memory": self.memory_budget,
            "attention": self.attention,
            "journal": journal,
            "replace_journal": self.analysis.overwrite,
            "settings": self.compared(),
        }

    @property
    def inputs(self) -> list[str]:
        """Files and directories that are read."""
        model = self.model if self.sources.model is None else None
        read = [model, self.data, self.data_dir] if "data" in self.analysis.reads else [model]
        return [name for name in read if name] + self.analysis.inputs

    @cached_property
    def directory(self) -> Path:
        """The directory for the results."""
        output = self.analysis.output
        if output is None:
            shard = "" if self.shard_of is None else "-shard-{}-of-{}".format(*self.shard_of)
            chosen = self.compared() | self.analysis.recorded()
            defaults = {one.name: one.default for one in (*fields(Settings), *fields(self.analysis))}
            output = name_directory(chosen, defaults, self.analysis.word) + shard
        return user_path(output, OutputError)


def hash_if_file(path: Path) -> str | None:
    """SHA-256 of a file; None if there is no file.

    Args:
        path: a path that may not exist.
    """
    return hash_file(path, InputError) if is_file(path, InputError) else None


def check_settings(settings: Settings) -> None:
    """Raise `InputError` for contradictory settings.

    Args:
        settings: all options of a job.
    """
    analysis = settings.analysis
    _check_precision(settings)
    if analysis.metric is not None:
        as_metric(analysis.metric)
    if settings.prompts is not None and len(settings.prompts) not in (1, 2):
        raise InputError(f"--prompts takes one for both texts of a pair, or two: found {len(settings.prompts)}")
    if analysis.float32 and settings.precision == "bfloat16":
        raise InputError(f"{analysis.name} is computed in float32: leave --precision out")
    analysis.check(settings)


def for_this_device(settings: Settings) -> Settings:
    """Replace 'auto' precision and attention by their values on this device.

    The directory does not change, so that a command has the same one on every device. On a TPU the fastest attention
    depends on the config of the model.

    Args:
        settings: all options of a job.
    """
    settings = replace(settings, analysis=replace(settings.analysis, output=str(settings.directory)))
    model = settings.sources.model
    if settings.analysis.float32 or (model is None and jax.default_backend() != "tpu"):
        settings = in_float32(settings)
    if model is not None:
        settings = replace(settings, precision=model.numerics.dtype)
    precision = "bfloat16" if settings.precision == "auto" else settings.precision
    return replace(settings, precision=precision, attention=_choose_attention(settings, Numerics(precision)))


def _choose_attention(settings: Settings, numerics: Numerics) -> str:
    if settings.analysis.explicit:
        return "explicit"
    depends = settings.attention == "auto" and jax.default_backend() == "tpu"
    return choose_attention(settings.attention, numerics, _find_config(settings) if depends else None)


def _find_config(settings: Settings) -> BertConfig | None:
    """The model's config; None if it cannot be read, which is an error when the model is loaded."""
    if settings.sources.model is not None:
        return settings.sources.model.config
    try:
        return read_config(locate(settings.model))
    except BertjaxError:
        return None


def in_float32(settings: Settings) -> Settings:
    """Replace 'auto' precision by float32, or by float64 for a float64 model in memory.

    Raises:
        InputError: a model in memory has a lower precision than float32.
    """
    model = settings.sources.model
    precision = "float32" if model is None else model.numerics.dtype
    if precision not in ("float32", "float64"):
        raise InputError(
            f"this is computed in float32, but the model in memory computes in {precision}: load it with "
            "dtype='float32'"
        )
    return replace(settings, precision=precision) if settings.precision == "auto" else settings


def _check_precision(settings: Settings) -> None:
    """Raise `InputError` for an unknown precision, or one that differs from that of a model in memory."""
    model = settings.sources.model
    if model is None:
        arguments.check_choice(settings.precision, "precision", ("auto", "float32", "bfloat16"))
        return
    numerics = model.numerics
    if settings.precision not in ("auto", numerics.dtype):
        raise InputError(
            f"the model in memory computes in {numerics.dtype}, not in {settings.precision}: leave precision out, or "
            f"load the model with dtype={settings.precision!r}"
        )
    if numerics.attention != "explicit":
        raise InputError(
            f"the model in memory computes {numerics.attention} attention, without weights: load it with "
            "attention='explicit'; the option attention chooses that of the sweep"
        )
