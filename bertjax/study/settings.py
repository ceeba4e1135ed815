"""What a job is: its options as values, checked, and the ablations that they ask for."""

from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from bertjax import arguments
from bertjax.arguments import LARGEST_INTEGER
from bertjax.checkpoints import DEFAULT_MODEL, BertConfig, locate, read_config
from bertjax.engine import choose_attention
from bertjax.errors import BertjaxError, InputError, OutputError
from bertjax.evidence import as_metric
from bertjax.interventions import (
    MODES,
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
from bertjax.model import Numerics
from bertjax.paths import hash_file, is_file, is_there, user_path
from bertjax.results import NOT_COMPARED
from bertjax.study.naming import name_directory
from bertjax.tasks import PLL, Chosen

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


def available_modes() -> list[str]:
    """The modes that need no donors: examples have none."""
    return [name for name, mode in MODES.items() if mode.replacement != "donor"]


@dataclass(frozen=True)
class Settings:
    """What to ablate, on which examples, and how; the options of `bertjax ablate`.

    Args:
        model: directory, hub id or 'package:NAME'.
        task: name of a task.
        output: directory for the results; None for a name made of whatever is not the default
            (`naming.name_directory`).
        mode: one of `MODES` that needs no donors.
        ablate: one of `COLLECTIONS`, or a file of sets (`ablations.read_sets`).
        heads: only these heads, e.g. ("3.0", "2.7"); None for all. For 'cumulative' their order.
        subset_size, subset_count: for 'subsets': heads of each (None for 2), and how many (None for 100), drawn with
            `seed`.
        screen: run only so many of the ablations, which gradients choose, and a few others; None for all.
        limit: use at most this many examples, drawn with `seed`; None for all.
        engine: 'fast' (`bertjax.engine`) or 'plain' (`bertjax.plain`, the simple form that the fast one is tested
            against).
        attention: for 'fast': 'explicit', 'fused', 'pallas' (`Numerics.attention`), or 'auto' for what is fastest on
            this device.
        memory: how much to stay within, such as '8GB'; None for most of what is free.
        batch_size: for 'plain': texts that are computed together; None for 4 on a CPU, 64 elsewhere.
        chunk_size: for 'plain': ablations that are computed together; None for as many as suit the device.
        max_length: tokens after which texts are cut; None for the model's own or 128.
        prompts: what is put before first and second texts: names of the checkpoint's prompts, or texts with white space
            in them; one for both; None for the checkpoint's default.
        precision: 'float32', 'bfloat16', or 'auto': bfloat16 on a TPU, float32 elsewhere.
        seed: of the draw of examples, and of subsets.
        metric: the main one, in place of the task's own; a name in `metrics.METRICS`, 'module:function', a Metric
            or a function of your own (`evidence.as_metric`).
        every_word: for 'mlm': mask each word by itself, in place of 15 % together.
        pll: for words that are masked by themselves: 'original', or 'within-word' to mask with each piece those that
            follow in the same word.
        stride: for 'question-answering': tokens of a long text that successive windows share.
        exclude_self: for 'ranking': leave out the candidate that has the query's id, its own document.
        readout: 'auto' by the kind of checkpoint, or 'similarity' to treat any BERT as a sentence embedder.
        allow_new_head: score a task although parameters that it needs are not in the checkpoint and are random.
        overwrite: replace results that are there; an unfinished sweep with the same settings resumes nevertheless.
        resume: resume an unfinished sweep; a plain rerun does so too, but refuses a directory that is complete.
        shard: compute only this shard, such as '3/16', or the one that a scheduler names: 'auto'.
        split, data, data_dir, text_columns, label_column, label_names: as in `data.load_examples`.
    """

    model: str = DEFAULT_MODEL
    task: str = "qnli-sample"
    output: str | None = None
    mode: str = "uniform"
    ablate: str = "heads"
    heads: tuple[str, ...] | None = None
    subset_size: int | None = None
    subset_count: int | None = None
    screen: int | None = None
    limit: int | None = None
    engine: str = "fast"
    attention: str = "auto"
    memory: str | None = None
    batch_size: int | None = None
    chunk_size: int | None = None
    max_length: int | None = None
    prompts: tuple[str, ...] | None = None
    every_word: bool = False
    pll: str = "original"
    stride: int = 128
    exclude_self: bool = False
    precision: str = "auto"
    seed: int = 0
    readout: str = "auto"
    metric: Chosen | None = None
    allow_new_head: bool = False
    overwrite: bool = False
    resume: bool = False
    shard: str | None = None
    split: str = "validation"
    data: str | None = None
    data_dir: str | None = None
    text_columns: tuple[str, ...] | None = None
    label_column: str | None = None
    label_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.heads, tuple):  # other values are refused by `check_settings`
            object.__setattr__(self, "heads", tuple(map(arguments.plain_head_name, self.heads)))
        if self.shard == AUTO:
            object.__setattr__(self, "shard", "/".join(map(str, find_shard())))
            path = Path(self.output or "")
            ended = path.with_name(path.name + self._ending) if path.name else path / self._ending.removeprefix("-")
            object.__setattr__(self, "output", self.output and str(ended))

    def describe(self) -> dict[str, Any]:
        """The settings, and digests of the files that they name: what results depend on."""
        sets = None if self.ablate in COLLECTIONS else hash_sets(user_path(self.ablate, InputError))
        data = None if self.data is None else _hash_file(user_path(self.data, InputError))
        digests = {"sets_sha256": sets, "data_sha256": data}
        named = replace(self, metric=None if self.metric is None else as_metric(self.metric).name)
        return {**asdict(named), **{name: digest for name, digest in digests.items() if digest}}

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
        return [name for name in (self.model, self.data, self.data_dir, sets) if name]

    @property
    def journal(self) -> Path:
        """Where the finished parts of a sweep are kept until its results are written."""
        return self.directory / "journal"

    @cached_property
    def directory(self) -> Path:
        """Where the results go."""
        defaults = {field.name: field.default for field in fields(self)}
        output = name_directory(self.compared(), defaults) + self._ending if self.output is None else self.output
        return user_path(output, OutputError)


# What the lists among a call's arguments hold.
CONTENTS = {
    "heads": "names such as '3.0'",
    "text_columns": "names of columns",
    "label_names": "names of labels",
    "prompts": "names of prompts, or texts",
}


def settings_of_call(**given: Any) -> Settings:
    """The settings of a call's arguments: paths as texts, lists as tuples; all else for `check_settings` to judge.

    Raises:
        InputError: a list that is none, or a single text in its place.
    """
    made: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    for name, content in CONTENTS.items():
        if made.get(name) is not None:
            made[name] = arguments.several(made[name], name, f"a list of {content}", str)
    return Settings(**made)


def _hash_file(path: Path) -> str | None:
    """sha256 of a file; None where there is none."""
    return hash_file(path, InputError) if is_file(path, InputError) else None


def check_settings(settings: Settings) -> None:
    """Raise `InputError` for settings that contradict themselves or name what does not exist."""
    _check_kinds(settings)
    if settings.mode in MODES and settings.mode not in available_modes():
        raise InputError(f"mode {settings.mode!r} needs donors, and a task has none: call bertjax.sweep with donors=")
    for name, choices in (
        ("mode", tuple(available_modes())),
        ("precision", ("auto", "float32", "bfloat16")),
        ("engine", ("fast", "plain")),
        ("attention", ("auto", "explicit", "fused", "pallas")),
        ("readout", ("auto", "similarity")),
        ("pll", PLL),
    ):
        if getattr(settings, name) not in choices:
            raise InputError(f"{name} {getattr(settings, name)!r} is not one of {', '.join(choices)}")
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
    if settings.screen is not None or jax.default_backend() != "tpu":
        settings = in_float32(settings)
    precision = "bfloat16" if settings.precision == "auto" else settings.precision
    return replace(settings, precision=precision, attention=_choose_attention(settings, Numerics(precision)))


def _choose_attention(settings: Settings, numerics: Numerics) -> str:
    if settings.engine == "plain":
        return "explicit"
    depends = settings.attention == "auto" and jax.default_backend() == "tpu"
    return choose_attention(settings.attention, numerics, _find_config(settings.model) if depends else None)


def _find_config(model: str) -> BertConfig | None:
    """A model's config; None where there is none to be found, which is said when the model is loaded."""
    try:
        return read_config(locate(model))
    except BertjaxError:
        return None


def in_float32(settings: Settings) -> Settings:
    """The settings in float32 where the precision is left to the device."""
    return replace(settings, precision="float32") if settings.precision == "auto" else settings


TEXTS = ("model", "task", "mode", "ablate", "engine", "attention", "precision", "readout", "pll", "split")
OPTIONAL_TEXTS = ("output", "memory", "data", "data_dir", "label_column", "shard")
LISTS, SWITCHES = (
    ("heads", "text_columns", "label_names", "prompts"),
    ("overwrite", "resume", "every_word", "exclude_self", "allow_new_head"),
)


def _check_kinds(settings: Settings) -> None:
    """Raise `InputError` where a setting is not of its kind: a text, a list of texts, or a switch."""
    for name in (*TEXTS, *OPTIONAL_TEXTS):
        value = getattr(settings, name)
        if not (isinstance(value, str) or (value is None and name in OPTIONAL_TEXTS)):
            arguments.refuse(name, "a text", value)
    for name in LISTS:
        if getattr(settings, name) is not None:
            arguments.several(getattr(settings, name), name, "a list of texts", str)
    for name in SWITCHES:
        arguments.switch(getattr(settings, name), name)


def _check_values(settings: Settings) -> None:
    """Whether numbers are in their range."""
    least = {"seed": 0, "stride": 0} | dict.fromkeys(
        ("limit", "max_length", "subset_size", "subset_count", "screen", "batch_size", "chunk_size"), 1
    )
    for name, lowest in least.items():
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < lowest):
            arguments.refuse(name, f"a whole number of at least {lowest}", value)
        if value is not None and value > LARGEST_INTEGER:  # a summary could not hold it
            arguments.refuse(name, f"at most {LARGEST_INTEGER}", value)
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
