"""The main job: ablate every head (or other sets of heads) of a model on a task, and write what came out.

`ablate` runs it and writes a directory: `summary.json` (scores and where they come from), `outputs.npz`
(outputs for each ablation and example), `examples.jsonl` (ids, labels, texts), `attention.npz` (tokens and
weights of a few examples) and a picture.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bertjax import distributed
from bertjax.ablations import Ablation, Change, to_overrides
from bertjax.data import Examples, load_examples
from bertjax.engine import Progress
from bertjax.errors import InputError, OutputError, some_of
from bertjax.estimation import Estimate, estimate
from bertjax.journal import discard_journal, is_unfinished
from bertjax.locate import locate
from bertjax.plain import Swept
from bertjax.provenance import provenance
from bertjax.results import NOT_COMPARED, Results, check_directory, finite, write_outputs, write_results
from bertjax.scoring import score_ablations, weigh_outputs
from bertjax.settings import MODES, Settings, check_settings, for_this_device, list_ablations, place
from bertjax.task_heads import BertForSentenceEmbedding, load
from bertjax.task_outputs import (
    Encoded,
    encode_examples,
    mean_outputs,
    positive_label,
    sampled_attention,
    sweep_examples,
    sweep_plainly,
    sweep_together,
    what_to_run,
)
from bertjax.tokenizer import Tokenizer

SAMPLED_EXAMPLES, SAMPLED_ABLATIONS = 8, 5
WRITTEN = np.int32(1)  # what processes tell each other at the end


class NoEffectWarning(UserWarning):
    """An ablation changed no output of any example."""


def ablate(
    settings: Settings,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda done, total: None,
    weighing: Progress = lambda done, total: None,
) -> Results | None:
    """Run the whole job and write its directory.

    Args:
        settings: what to do.
        say: is told each step in a line.
        progress: is told work done and work in all of the sweep.
        weighing: is told the same of the statistics.

    Returns: the results as written; None on other processes than the first, where several share the job.

    Raises:
        OutputError: the directory cannot be written, holds results already, or an unfinished sweep of other settings.
        SweepInterrupted: Ctrl-C; what is finished is kept, and the same call goes on.
        BertjaxError: whatever is wrong with model, data or settings; found before the sweep begins.
    """
    started = time.time()
    check_settings(settings)
    settings = for_this_device(settings)
    _check_output(settings)
    directory = locate(settings.model)
    model, ablations, examples, encoded = _load_job(settings, directory)
    _introduce(settings, model, len(ablations), examples, encoded, say)
    _check_scorable(encoded, examples)
    means = _means(settings, model, encoded, ablations)
    swept = _sweep(settings, model, encoded, ablations, means, say, progress)
    if swept is None:
        distributed.agree(WRITTEN)  # until the first process has written
        return None
    seconds = time.time() - started
    places = [place(one, model.config, settings.mode) for one in ablations]
    write_outputs(settings.directory, swept, examples, places)
    entries, base = score_ablations(encoded.kind, examples, swept, ablations, places)
    say(f"weighing {len(entries)} effects")
    positive = positive_label(encoded.kind, examples.task)
    evidence = weigh_outputs(list(base), positive, swept, examples.labels, settings.seed, progress=weighing)
    largest = sorted(range(len(entries)), key=lambda number: -entries[number].effect)[:SAMPLED_ABLATIONS]
    some = [ablations[number] for number in largest]
    attention = _sample(model, encoded, some, means)
    summary = {
        **provenance(model, directory, settings.model, examples, encoded),
        **_how(settings),
        "seconds": round(seconds, 3),
        "without_effect": _warn_if_silent(swept, ablations),
        "base": base,
    }
    if settings.precision == "bfloat16":
        coarse = Swept(swept.base, swept.outputs[largest])
        deviation = partial(_deviation, settings, directory, examples, encoded, some, means, coarse)
        summary |= _compare_precisions(deviation, say)
    results = Results(summary, entries, evidence, swept, examples, attention)
    write_results(settings.directory, results)
    discard_journal(settings.journal)
    if settings.distributed:
        distributed.agree(WRITTEN)
    return results


def _introduce(
    settings: Settings, model: Any, ablations: int, examples: Examples, encoded: Encoded, say: Callable[[str], None]
) -> None:
    """Say what is going to be done."""
    how = f"mode {settings.mode}, attention {settings.attention}"
    say(f"{type(model).__name__} {settings.model}: {ablations} {settings.ablate}, {how}")
    say(f"{examples.task.name}: {len(examples)} examples, {sum(map(len, encoded.rows)):,} tokens ({examples.source})")


def _how(settings: Settings) -> dict[str, Any]:
    """What a summary says of the settings."""
    return {
        "settings": {**settings.describe(), "output": str(settings.directory)},
        "mode": {"name": settings.mode, "definition": MODES[settings.mode]},
    }


def _is_helper(settings: Settings) -> bool:
    """Whether this process computes for another one, which writes."""
    return settings.distributed and not distributed.is_first()


def estimate_job(settings: Settings) -> Estimate:
    """What `ablate` with these settings will cost; one layer is run to measure the device's rate.

    Raises:
        BertjaxError: whatever is wrong with model, data or settings.
    """
    check_settings(settings)
    settings = for_this_device(settings)
    model, ablations, _, encoded = _load_job(settings, locate(settings.model))
    texts, readout, combine = what_to_run(encoded)
    return estimate(
        model, texts, ablations, readout, combine=combine, memory=settings.memory_budget, attention=settings.attention
    )


def _check_output(settings: Settings) -> None:
    """Refuse a directory whose results would be lost; of several processes the first looks, the others hear of it."""
    if _is_helper(settings):
        if not distributed.agree(WRITTEN):
            raise OutputError("the first process says why this cannot be written")
        return
    try:
        _check_directory(settings)
    except OutputError:
        if settings.distributed:
            distributed.agree(0 * WRITTEN)
        raise
    if settings.distributed:
        distributed.agree(WRITTEN)


def _check_directory(settings: Settings) -> None:
    unfinished = is_unfinished(settings.journal)
    if unfinished and settings.engine == "plain" and not settings.overwrite:
        raise OutputError(
            f"{settings.directory} holds an unfinished sweep, which --engine plain cannot go on with: give another "
            "--output, or --overwrite to discard it"
        )
    check_directory(settings.directory, settings.overwrite or unfinished)


def _load_job(settings: Settings, directory: Path) -> tuple[Any, list[Ablation], Examples, Encoded]:
    """Model, ablations, and examples as given and as the model reads them."""
    model = _load_model(settings, directory)
    ablations = list_ablations(settings, model.config)
    examples = _load_examples(settings)
    encoded = encode_examples(model, Tokenizer.from_pretrained(directory), examples, settings.max_length)
    return model, ablations, examples, encoded


def _check_scorable(encoded: Encoded, examples: Examples) -> None:
    """Score outputs that are all 0: what is wrong with labels or metrics comes out before the sweep, not after."""
    shape = (1, len(examples), len(encoded.label_order)) if encoded.kind == "logits" else (1, len(examples))
    nothing = Swept(np.zeros(shape[1:]), np.zeros(shape))
    score_ablations(encoded.kind, examples, nothing, [Ablation("0.0", (Change(0, 0),))], [("0.0", 0, 0)])


def _load_model(settings: Settings, directory: Path) -> Any:
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


def _means(
    settings: Settings, model: Any, encoded: Encoded, ablations: Sequence[Ablation]
) -> Float[np.ndarray, "layers heads head_dim"] | None:
    """Where mode 'mean' occurs, the heads' mean outputs over all examples."""
    if not any(change.mode == "mean" for one in ablations for change in one.changes):
        return None
    if _is_helper(settings):
        config = model.config
        shape = config.num_hidden_layers, config.num_attention_heads, config.head_dim
        return np.asarray(distributed.agree(np.zeros(shape, model.numerics.wide)))
    means = mean_outputs(model, encoded, settings.texts_at_once)
    return np.asarray(distributed.agree(means)) if settings.distributed else means


def _sweep(
    settings: Settings,
    model: Any,
    encoded: Encoded,
    ablations: Sequence[Ablation],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    say: Callable[[str], None],
    progress: Progress,
) -> Swept | None:
    if settings.engine == "fast":
        chosen = settings.describe()
        options: dict[str, Any] = {
            "memory": settings.memory_budget,
            "attention": settings.attention,
            "journal": settings.journal,
            "replace_journal": settings.overwrite,
            "settings": {name: value for name, value in chosen.items() if name not in NOT_COMPARED},
        }
        sweep = sweep_together if settings.distributed else sweep_examples
        return sweep(model, encoded, ablations, means=means, **options, say=say, progress=progress)
    overrides = [to_overrides(model.config, one, means) for one in ablations]
    options = {"batch_size": settings.texts_at_once, "chunk_size": settings.chunk_size}
    return sweep_plainly(model, encoded, overrides, **options, progress=progress)


def _compare_precisions(deviation: Callable[[], dict[str, Any]], say: Callable[[str], None]) -> dict[str, Any]:
    """What a summary says of bfloat16 against float32, if there is memory for that."""
    say("comparing the base run and the largest effects with float32")
    try:
        return {"float32": deviation()}
    except InputError as error:  # too little memory for a second model must not cost what was computed
        say(f"not compared with float32: {error}")
        return {}


def _deviation(
    settings: Settings,
    directory: Path,
    examples: Examples,
    encoded: Encoded,
    some: Sequence[Ablation],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    coarse: Swept,
) -> dict[str, Any]:
    """How far outputs and main scores in bfloat16 are from float32: of the base run, and of some ablations."""
    model = _load_model(replace(settings, precision="float32"), directory)
    wide = None if means is None else means.astype(np.float32)
    options: dict[str, Any] = {"memory": settings.memory_budget, "attention": settings.attention}
    exact = sweep_examples(model, encoded, some, means=wide, **options)
    places = [(one.name, None, None) for one in some]
    found = [score_ablations(encoded.kind, examples, one, some, places) for one in (coarse, exact)]
    scores = [[next(iter(base.values())), *(entry.score for entry in entries)] for entries, base in found]
    apart = np.abs(np.array(scores[0]) - np.array(scores[1]))
    return {
        "runs": ["base", *(one.name for one in some)],
        "scores": [finite(value) for value in scores[1]],
        "scores_in_bfloat16": [finite(value) for value in scores[0]],
        "largest_score_difference": finite(float(np.max(apart))),
        "largest_output_difference": float(
            max(np.abs(exact.base - coarse.base).max(), np.abs(exact.outputs - coarse.outputs).max())
        ),
    }


def _warn_if_silent(swept: Swept, ablations: Sequence[Ablation]) -> list[str]:
    """Name the ablations that changed no output by more than rounding: often a mistake, never silent."""
    scale = 64 * float(np.finfo(np.float32).eps) * max(1.0, float(np.abs(swept.base).max()))
    changes = np.abs(swept.outputs - swept.base[None]).reshape(len(ablations), -1).max(axis=1)
    silent = [one.name for one, change in zip(ablations, changes, strict=True) if change <= scale]
    if silent:
        warnings.warn(f"ablating {some_of(silent)} changed no output of any example", NoEffectWarning, stacklevel=3)
    return silent


def _sample(
    model: Any,
    encoded: Encoded,
    largest: Sequence[Ablation],
    means: Float[np.ndarray, "layers heads head_dim"] | None,
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Attention of examples spread evenly over the data: base, and the ablations with the largest effects."""
    count = min(SAMPLED_EXAMPLES, encoded.examples)
    chosen = np.linspace(0, encoded.examples - 1, count).round().astype(int)
    runs = [Ablation("base", ()), *largest]
    overrides = [to_overrides(model.config, one, means) for one in runs]
    arrays = sampled_attention(model, encoded, chosen.tolist(), overrides)
    return {"examples": chosen, "runs": np.array([one.name for one in runs]), **arrays}
