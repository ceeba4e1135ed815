"""What a job is: its options as values, checked, and the ablations that they ask for."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import jax

from bertjax import arguments
from bertjax.checkpoints import BertConfig, locate, read_config
from bertjax.data import Tokenizer
from bertjax.engine import choose_attention
from bertjax.errors import BertjaxError, InputError, OutputError
from bertjax.evidence import as_metric
from bertjax.interventions import (
    Ablation,
    ablation,
    all_but_one,
    cumulative,
    every_head,
    hash_sets,
    head_pairs,
    one_of_layer,
    parse_head,
    random_subsets,
    read_sets,
    whole_layers,
)
from bertjax.machine import AUTO, find_shard, parse_bytes, parse_shard
from bertjax.model import Numerics, PretrainedModel
from bertjax.paths import hash_file, is_file, is_there, user_path
from bertjax.results import NOT_COMPARED
from bertjax.study.naming import name_directory
from bertjax.study.options import (
    AblateOptions,
    ComputeOptions,
    DataOptions,
    ModelOptions,
    TaskOptions,
    available_modes,
)

T = TypeVar("T")
# Which sets of heads: for each whether `heads` can narrow it.
COLLECTIONS = {
    "heads": True,
    "layers": False,
    "pairs": True,
    "all-but-one": False,
    "one-of-layer": False,
    "cumulative": True,
    "subsets": False,
}


class Sources:
    """Model, tokenizer and data in memory, and for a study a cache of what was loaded.

    Args:
        model: a model in memory; None loads the one that the settings name.
        tokenizer: its tokenizer; None for the model's.
        data: for `load_examples`: `data`, or `texts` with `labels`; empty for what the settings name.
        caches: whether what was loaded is kept; if not, each job reads its files again.
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
        """What `load` returned when it was first called with this key."""
        if not self.caches:
            return load()
        if key not in self._loaded:
            self._loaded[key] = load()
        value: T = self._loaded[key]
        return value

    def loaded(self, kind: str) -> Any:
        """The first thing of a kind that was loaded; None if nothing was."""
        return next((value for key, value in self._loaded.items() if isinstance(key, tuple) and key[0] == kind), None)

    def without_data(self) -> "Sources":
        """The same model and tokenizer, and what was loaded, without data in memory."""
        other = Sources(self.model, self.tokenizer, caches=self.caches)
        other._loaded = self._loaded
        return other


@dataclass(frozen=True, kw_only=True)
class Settings(AblateOptions, ComputeOptions, TaskOptions, DataOptions, ModelOptions):
    """All options of a job: what to ablate in which model, on which examples, and how.

    Args:
        sources: where model and data come from; what was loaded once is kept there.
    """

    mode: str = "uniform"  # of patches 'patched'
    precision: str = "auto"  # of a model in memory its own
    sources: Sources = field(default_factory=Sources, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("model", "data"):
            value = getattr(self, name)
            if not isinstance(value, str | Path | None if name == "data" else str | Path):
                arguments.refuse(name, "a path" if name == "data" else "a directory, hub id or 'package:NAME'", value)
            object.__setattr__(self, name, None if value is None else str(value))
        if self.shard == AUTO:
            object.__setattr__(self, "shard", "/".join(map(str, find_shard())))
            path = Path(self.output or "")
            ended = path.with_name(path.name + self._ending) if path.name else path / self._ending.removeprefix("-")
            object.__setattr__(self, "output", self.output and str(ended))

    def describe(self) -> dict[str, Any]:
        """The settings, and digests of the files that they name: what results depend on."""
        sets = None if self.ablate in COLLECTIONS else hash_sets(user_path(self.ablate, InputError))
        digests = {"sets_sha256": sets, "data_sha256": self.hash_data()}
        options = {name: getattr(self, name) for name in DEFAULTS}
        metric = None if self.metric is None else as_metric(self.metric).name
        return {**options, "metric": metric, **{name: digest for name, digest in digests.items() if digest}}

    def hash_data(self) -> str | None:
        """SHA-256 of the file of the data; of a study when it was first read. None if there is no file."""
        data = self.data
        if data is None:
            return None
        return self.sources.once(("data", data), lambda: _hash_file(user_path(data, InputError)))

    def compared(self) -> dict[str, Any]:
        """What tells this job from another one: `describe` without how results are written."""
        return {name: value for name, value in self.describe().items() if name not in NOT_COMPARED}

    @property
    def shard_of(self) -> tuple[int, int] | None:
        """Number and count of the shard; None for a whole run. Raises `InputError` if it is not a shard."""
        return None if self.shard is None else parse_shard(self.shard)

    @property
    def _ending(self) -> str:
        """What is put behind a directory's name that is not the user's."""
        return "" if self.shard is None else "-shard-{}-of-{}".format(*parse_shard(self.shard))

    @property
    def texts_at_once(self) -> int:
        """`batch_size`, or what suits the device."""
        return self.batch_size or (4 if jax.default_backend() == "cpu" else 64)

    @property
    def memory_budget(self) -> int | None:
        """`memory` in bytes. Raises `InputError` if it is not an amount."""
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def inputs(self) -> list[str]:
        """Files and directories that are read, by the names that the settings have for them."""
        sets = None if self.ablate in COLLECTIONS else self.ablate
        model = self.model if self.sources.model is None else None
        return [name for name in (model, self.data, self.data_dir, sets) if name]

    @property
    def journal(self) -> Path:
        """Where the finished parts of a sweep are kept until its results are written."""
        return self.directory / "journal"

    @cached_property
    def directory(self) -> Path:
        """Where the results go."""
        output = name_directory(self.compared(), DEFAULTS) + self._ending if self.output is None else self.output
        return user_path(output, OutputError)


# The options that results depend on or record, with their defaults.
DEFAULTS = {one.name: one.default for one in fields(Settings) if one.name not in ("progress", "sources")}


def _hash_file(path: Path) -> str | None:
    """sha256 of a file; None where there is none."""
    return hash_file(path, InputError) if is_file(path, InputError) else None


def check_settings(settings: Settings) -> None:
    """Raise `InputError` for settings that contradict themselves or name what does not exist."""
    arguments.one_of(settings.mode, "mode", available_modes())
    _check_precision(settings)
    _check_values(settings)
    if settings.resume and settings.overwrite:
        raise InputError("--resume keeps what is there, --overwrite replaces it: give one of them")
    _check_engine(settings)
    _check_sets(settings)


def for_this_device(settings: Settings) -> Settings:
    """The settings with the precision and the form of attention that 'auto' stands for on this device.

    The directory is as before: the same command has the same one on every device. What is fastest on a TPU depends on
    the model: its config is looked up there.
    """
    settings = replace(settings, output=str(settings.directory))
    model = settings.sources.model
    if settings.screen is not None or (model is None and jax.default_backend() != "tpu"):
        settings = in_float32(settings)
    if model is not None:
        settings = replace(settings, precision=model.numerics.dtype)
    precision = "bfloat16" if settings.precision == "auto" else settings.precision
    return replace(settings, precision=precision, attention=_choose_attention(settings, Numerics(precision)))


def _choose_attention(settings: Settings, numerics: Numerics) -> str:
    if settings.engine == "plain":
        return "explicit"
    depends = settings.attention == "auto" and jax.default_backend() == "tpu"
    return choose_attention(settings.attention, numerics, _find_config(settings) if depends else None)


def _find_config(settings: Settings) -> BertConfig | None:
    """The model's config; None where there is none to be found, which is said when the model is loaded."""
    if settings.sources.model is not None:
        return settings.sources.model.config
    try:
        return read_config(locate(settings.model))
    except BertjaxError:
        return None


def in_float32(settings: Settings) -> Settings:
    """The settings in float32 where the precision is left to the device, or a model in memory's if it is float64.

    Raises:
        InputError: a model in memory computes in less than float32.
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
    """Raise `InputError` for a precision that there is not, or that a model in memory does not compute in."""
    model = settings.sources.model
    if model is None:
        arguments.one_of(settings.precision, "precision", ("auto", "float32", "bfloat16"))
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


def _check_values(settings: Settings) -> None:
    """Whether metric, shard and prompts are what they must be."""
    if settings.metric is not None:
        as_metric(settings.metric)
    if settings.shard is not None:
        parse_shard(settings.shard)
    if settings.prompts is not None and len(settings.prompts) not in (1, 2):
        raise InputError(f"--prompts takes one for both texts of a pair, or two: found {len(settings.prompts)}")


def _check_engine(settings: Settings) -> None:
    budget = settings.memory_budget
    if settings.engine == "plain" and budget is not None:
        raise InputError("--engine plain has no memory budget: give --batch-size and --chunk-size")
    if settings.engine == "plain" and settings.attention not in ("auto", "explicit"):
        raise InputError("--engine plain has explicit attention alone: leave --attention out")
    if settings.engine == "plain" and settings.shard_of:
        raise InputError("--engine plain has no shards: leave --shard out")
    if settings.engine == "plain" and settings.resume:
        raise InputError("--engine plain keeps no journal: there is nothing to resume")
    if settings.engine == "fast" and (settings.batch_size or settings.chunk_size):
        raise InputError("--batch-size and --chunk-size are for --engine plain: give --memory to make steps smaller")


def _check_sets(settings: Settings) -> None:
    if settings.ablate not in COLLECTIONS and not is_there(user_path(settings.ablate, InputError), InputError):
        raise InputError(f"--ablate takes {', '.join(COLLECTIONS)} or a file of sets: found {settings.ablate!r}")
    if settings.heads and not COLLECTIONS.get(settings.ablate, False):
        raise InputError(f"--heads names single heads: it cannot go with --ablate {settings.ablate}")
    if settings.ablate == "cumulative" and not settings.heads:
        raise InputError("--ablate cumulative needs an order: give --heads, first to last")
    if settings.ablate != "subsets" and (settings.subset_size or settings.subset_count):
        raise InputError(f"--subset-size and --subset-count are for --ablate subsets, not for {settings.ablate}")


def list_ablations(settings: Settings, config: BertConfig) -> list[Ablation]:
    """Every ablation that the settings ask for.

    Raises:
        OverrideError: a head that does not exist.
        InputError: a file of sets that is not one, or nothing to ablate.
    """
    mode, given = settings.mode, settings.heads
    heads = list(dict.fromkeys(parse_head(head, config) for head in given)) if given else every_head(config)
    match settings.ablate:
        case "heads":
            return [ablation(config, [head], mode) for head in heads]
        case "layers":
            return whole_layers(config, mode)
        case "pairs":
            return head_pairs(config, mode, heads=heads)
        case "all-but-one":
            return all_but_one(config, mode)
        case "one-of-layer":
            return one_of_layer(config, mode)
        case "cumulative":
            return cumulative(config, mode, order=heads)
        case "subsets":
            size, count = settings.subset_size or 2, settings.subset_count or 100
            return random_subsets(config, mode, size=size, count=count, seed=settings.seed)
    return read_sets(user_path(settings.ablate, InputError), config, mode)
