"""The main job: ablate every head (or layer) of a model on a task, and write what came out.

`ablate` runs it and writes a directory: `summary.json` (scores and where they come from), `outputs.npz`
(outputs for each ablation and example), `examples.jsonl` (ids, labels, texts), `attention.npz` (tokens and
weights of a few examples) and `heads.png` or `layers.png`.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Shaped

from bertjax import plain
from bertjax.ablations import Ablation, Change, ablation, single_heads, to_overrides, whole_layers
from bertjax.data import Examples, load_examples
from bertjax.engine import Progress
from bertjax.errors import InputError
from bertjax.journal import count_parts, discard_journal, is_unfinished
from bertjax.locate import DEFAULT_MODEL, locate
from bertjax.metrics import score
from bertjax.overrides import parse_head
from bertjax.plain import Swept
from bertjax.provenance import provenance
from bertjax.results import Entry, Results, check_directory, write_outputs, write_results
from bertjax.task_heads import BertForSentenceEmbedding, load
from bertjax.task_outputs import (
    Encoded,
    batch_rows,
    encode_examples,
    metrics_of,
    positive_label,
    sampled_attention,
    sweep_examples,
    sweep_plainly,
)
from bertjax.tokenizer import Tokenizer

MODES = {
    "uniform": "attention weights 1/n for every query over the n real tokens of the example "
    "([CLS] and [SEP] count, padding does not); values and output projection stay (Kovaleva et al. 2019)",
    "zero": "the head's output before the output projection times 0 (Michel et al. 2019)",
    "mean": "the head's output replaced at every token by its mean over the real tokens of the evaluated examples",
}
SAMPLED_EXAMPLES, SAMPLED_ABLATIONS = 8, 5


class NoEffectWarning(UserWarning):
    """An ablation changed no output of any example."""


@dataclass(frozen=True)
class Settings:
    """What to ablate, on which examples, and how; the options of `bertjax ablate`.

    Args:
        model: directory, hub id or 'package:NAME'.
        task: name of a task.
        output: directory for the results; None for a name made of task, mode and what is ablated.
        mode: one of `MODES`.
        ablate: 'heads' (each alone) or 'layers' (each whole).
        heads: only these heads, e.g. ("3.0", "2.7"); None for all.
        limit: so many examples, drawn with `seed`; None for all.
        engine: 'fast' (`bertjax.engine`) or 'plain' (`bertjax.plain`, the simple form that the fast one is tested
            against).
        batch_size: for 'plain': texts that are computed together; None for 4 on a CPU, 64 elsewhere.
        chunk_size: for 'plain': ablations that are computed together; None for as many as suit the device.
        max_length: tokens after which texts are cut; None for the model's own or 128.
        precision: 'float32' or 'bfloat16'.
        seed: of the draw of examples.
        readout: 'auto' by the kind of checkpoint, or 'similarity' to treat any BERT as a sentence embedder.
        overwrite: replace results that are there; an unfinished sweep with the same settings goes on all the same.
        resume: go on with an unfinished sweep; a plain rerun does so too, but refuses a directory that is complete.
        split, data, data_dir, text_columns, label_column, label_names: as in `data.load_examples`.
    """

    model: str = DEFAULT_MODEL
    task: str = "qnli-sample"
    output: str | None = None
    mode: str = "uniform"
    ablate: str = "heads"
    heads: tuple[str, ...] | None = None
    limit: int | None = None
    engine: str = "fast"
    batch_size: int | None = None
    chunk_size: int | None = None
    max_length: int | None = None
    precision: str = "float32"
    seed: int = 0
    readout: str = "auto"
    overwrite: bool = False
    resume: bool = False
    split: str = "validation"
    data: str | None = None
    data_dir: str | None = None
    text_columns: tuple[str, ...] | None = None
    label_column: str | None = None
    label_names: tuple[str, ...] | None = None

    @property
    def texts_at_once(self) -> int:
        """`batch_size`, or what suits the device."""
        return self.batch_size or (4 if jax.default_backend() == "cpu" else 64)

    @property
    def journal(self) -> Path:
        """Where the finished parts of a sweep are kept until its results are written."""
        return self.directory / "journal"

    @property
    def directory(self) -> Path:
        """Where the results go."""
        default = f"bertjax-{self.task}-{self.mode}-{self.ablate}".replace("/", "-")
        return Path(self.output or default).expanduser()


def ablate(
    settings: Settings,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, total: None,
) -> Results:
    """Run the whole job and write its directory.

    Args:
        settings: what to do.
        say: is told each step in a line.
        progress: is told work done and work in all.

    Returns: the results as written.

    Raises:
        OutputError: the directory cannot be written, holds results already, or an unfinished sweep of other settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call goes on.
        BertjaxError: whatever is wrong with model, data or settings; found before the sweep begins.
    """
    started = time.time()
    check_directory(settings.directory, settings.overwrite or is_unfinished(settings.journal))
    directory = locate(settings.model)
    model = _load_model(settings, directory)
    ablations = list_ablations(settings, model.config)
    examples = _load_examples(settings)
    encoded = encode_examples(model, Tokenizer.from_pretrained(directory), examples, settings.max_length)
    say(f"{type(model).__name__} {settings.model}: {len(ablations)} {settings.ablate}, mode {settings.mode}")
    say(f"{examples.task.name}: {len(examples)} examples, {sum(map(len, encoded.rows)):,} tokens ({examples.source})")
    _check_scorable(encoded, examples)
    if is_unfinished(settings.journal):
        say(f"{settings.directory} holds {count_parts(settings.journal)} finished parts of a sweep: going on with them")
    means = _means(settings, model, encoded)
    swept = _sweep(settings, model, encoded, ablations, means, progress)
    seconds = time.time() - started
    write_outputs(settings.directory, swept, examples, [place(one) for one in ablations])
    entries, base = score_ablations(encoded.kind, examples, swept, ablations)
    silent = _warn_if_silent(swept, ablations)
    attention = _sample(model, encoded, entries, ablations, means)
    summary = {
        **provenance(model, directory, settings.model, examples, encoded),
        "settings": {**asdict(settings), "output": str(settings.directory)},
        "mode": {"name": settings.mode, "definition": MODES[settings.mode]},
        "seconds": round(seconds, 3),
        "without_effect": silent,
        "base": base,
    }
    results = Results(summary, entries, swept, examples, attention, model.config)
    write_results(settings.directory, results)
    discard_journal(settings.journal)
    return results


def _check_scorable(encoded: Encoded, examples: Examples) -> None:
    """Score outputs that are all 0: what is wrong with labels or metrics comes out before the sweep, not after."""
    shape = (1, len(examples), len(encoded.label_order)) if encoded.kind == "logits" else (1, len(examples))
    nothing = Swept(np.zeros(shape[1:]), np.zeros(shape))
    score_ablations(encoded.kind, examples, nothing, [Ablation("0.0", (Change(0, 0),))])


def _load_model(settings: Settings, directory: Path) -> Any:
    if settings.mode not in MODES:
        raise InputError(f"mode {settings.mode!r} is not one of {', '.join(MODES)}")
    if settings.precision not in ("float32", "bfloat16"):
        raise InputError(f"precision {settings.precision!r} is not one of float32, bfloat16")
    if settings.engine not in ("fast", "plain"):
        raise InputError(f"engine {settings.engine!r} is not one of fast, plain")
    if settings.resume and settings.engine == "plain":
        raise InputError("--engine plain keeps no journal: there is nothing to resume")
    if settings.readout not in ("auto", "similarity"):
        raise InputError(f"readout {settings.readout!r} is not one of auto, similarity")
    if settings.heads and settings.ablate == "layers":
        raise InputError("--heads names single heads: it cannot go with --ablate layers")
    if settings.readout == "similarity":
        return BertForSentenceEmbedding.from_pretrained(directory, dtype=settings.precision)
    return load(directory, dtype=settings.precision)


def _load_examples(settings: Settings) -> Examples:
    return load_examples(
        settings.task,
        split=settings.split,
        data=settings.data,
        data_dir=settings.data_dir,
        text_columns=settings.text_columns,
        label_column=settings.label_column,
        label_names=settings.label_names,
        limit=settings.limit,
        seed=settings.seed,
    )


def list_ablations(settings: Settings, config: Any) -> list[Ablation]:
    """Every ablation that the settings ask for.

    Raises:
        OverrideError: a head that does not exist.
        InputError: something other than heads or layers.
    """
    if settings.ablate == "layers":
        return whole_layers(config, settings.mode)
    if settings.ablate != "heads":
        raise InputError(f"ablate takes heads or layers, found {settings.ablate!r}")
    if not settings.heads:
        return single_heads(config, settings.mode)
    heads = [parse_head(head, config) for head in settings.heads]
    return [ablation(config, [head], settings.mode) for head in dict.fromkeys(heads)]


def place(one: Ablation) -> tuple[int, int | None]:
    """Layer and head of an ablation; head None for a whole layer."""
    first, *rest = one.changes
    return first.layer, None if rest else first.head


def _means(settings: Settings, model: Any, encoded: Encoded) -> Float[np.ndarray, "layers heads head_dim"] | None:
    """For mode 'mean', the heads' mean outputs over all examples."""
    if settings.mode != "mean":
        return None
    rows = range(len(encoded.rows))
    batches = batch_rows(encoded, rows, settings.texts_at_once, model.config.max_position_embeddings)
    return plain.mean_head_outputs(model, [_without_repeats(*batch) for batch in batches])


def _without_repeats(places: Sequence[int], arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A filled-up batch repeats examples, which would count twice in a mean: mask the repeats."""
    first = np.array([places.index(place) == number for number, place in enumerate(places)])
    return {**arguments, "attention_mask": arguments["attention_mask"] * first[:, None].astype(np.int32)}


def _sweep(
    settings: Settings,
    model: Any,
    encoded: Encoded,
    ablations: Sequence[Ablation],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    progress: Progress,
) -> Swept:
    if settings.engine == "fast":
        options: dict[str, Any] = {"journal": settings.journal, "replace_journal": settings.overwrite}
        return sweep_examples(model, encoded, ablations, means=means, **options, progress=progress)
    overrides = [to_overrides(model.config, one, means) for one in ablations]
    options = {"batch_size": settings.texts_at_once, "chunk_size": settings.chunk_size}
    return sweep_plainly(model, encoded, overrides, **options, progress=progress)


def score_ablations(
    kind: str, examples: Examples, swept: Swept, ablations: Sequence[Ablation]
) -> tuple[list[Entry], dict[str, float]]:
    """Scores of all ablations by every metric of the task, and of the base run.

    Returns: one entry for each ablation, scored by the main metric with all metrics beside it; and the base's
        scores by metric, the main one first.
    """
    task = examples.task
    names, positive = metrics_of(kind, task), positive_label(kind, task)
    base = {name: float(score(name, swept.base[None], examples.labels, positive)[0]) for name in names}
    scores = {name: score(name, swept.outputs, examples.labels, positive) for name in names}
    entries = [
        Entry(*place(one), {name: float(scores[name][number]) for name in names}, base[names[0]])
        for number, one in enumerate(ablations)
    ]
    return entries, base


def _warn_if_silent(swept: Swept, ablations: Sequence[Ablation]) -> list[str]:
    """Name the ablations that changed no output by more than rounding: often a mistake, never silent."""
    scale = 64 * float(np.finfo(np.float32).eps) * max(1.0, float(np.abs(swept.base).max()))
    changes = np.abs(swept.outputs - swept.base[None]).reshape(len(ablations), -1).max(axis=1)
    silent = [one.name for one, change in zip(ablations, changes, strict=True) if change <= scale]
    if silent:
        some = ", ".join(silent[:6]) + (f" and {len(silent) - 6} more" if len(silent) > 6 else "")
        warnings.warn(f"ablating {some} changed no output of any example", NoEffectWarning, stacklevel=3)
    return silent


def _sample(
    model: Any,
    encoded: Encoded,
    entries: Sequence[Entry],
    ablations: Sequence[Ablation],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Attention of examples spread evenly over the data: base, and the ablations with the largest effects."""
    count = min(SAMPLED_EXAMPLES, encoded.examples)
    chosen = np.linspace(0, encoded.examples - 1, count).round().astype(int)
    order = sorted(range(len(entries)), key=lambda number: -entries[number].effect)[:SAMPLED_ABLATIONS]
    runs = [Ablation("base", ()), *(ablations[number] for number in order)]
    overrides = [to_overrides(model.config, one, means) for one in runs]
    arrays = sampled_attention(model, encoded, chosen.tolist(), overrides)
    return {"examples": chosen, "runs": np.array([one.name for one in runs]), **arrays}
