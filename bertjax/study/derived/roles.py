"""What kind of head each is: `bertjax roles`.

Texts alone are needed, no labels and no task head: the model reads each text, or both texts of a pair together. What is
kept of each head and text are sums over its queries (`probes.NUMBERS`); beside them stands uniform attention, as a base
run would, so that intervals and tests say what is more than that.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.checkpoints import CheckpointWarning, locate
from bertjax.errors import InputError
from bertjax.evidence import Metric, score, silhouette_of
from bertjax.formatting import count_of
from bertjax.interventions import every_head, single_heads
from bertjax.model import PretrainedModel, check_parameters, load
from bertjax.probes import (
    KINDS,
    ROLES,
    RoleNumbers,
    kinds_of,
    read_distances,
    read_roles,
    role_metrics,
    texts_to_compare,
    tokens_of,
    uniform_numbers,
)
from bertjax.progress import Progress, silent
from bertjax.results import Results
from bertjax.study.derived.frame import Outcome, run_derived
from bertjax.study.derived.job import DerivedJob
from bertjax.study.job import Job, load_tokenizer, read_examples
from bertjax.study.provenance import Analysis
from bertjax.study.settings import Settings, check_settings, for_this_device, in_float32
from bertjax.tasks import DERIVED, TaskResult, TextEncodings, task_named

KIND = "roles"
DEFAULT_LENGTH = 128


def run_roles(
    settings: Settings,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = silent,
    weighing: Progress = silent,
    keep: bool = True,
) -> Results:
    """Read attention, weigh what there is of each role, and write the directory.

    Args:
        settings: which model and texts.
        say: called with a line at each step.
        progress, weighing: called with the work done and the total work.
        keep: whether anything is written.

    Raises:
        OutputError: the directory cannot be written, or holds results already.
        BertjaxError: whatever is wrong with model, data or settings.
    """
    check_settings(settings)
    _check(settings)
    read = partial(_read, say, progress)
    settings = for_this_device(in_float32(settings))
    load, analysis = partial(_load, say), Analysis("roles")
    return run_derived(settings, read, analysis, say=say, weighing=weighing, keep=keep, load=load)


def _check(settings: Settings) -> None:
    """Raise `InputError` for what roles do not have."""
    if settings.attention not in ("auto", "explicit") or settings.precision == "bfloat16":
        raise InputError("roles are read from explicit attention in float32")


@dataclass(frozen=True)
class _ReadTexts(TextEncodings):
    """Texts, and once they are read the distances between heads.

    Args:
        distances: between the attention of heads.
    """

    distances: Float[np.ndarray, "all_heads all_heads"] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def arrays(self) -> dict[str, Float[np.ndarray, "all_heads all_heads"]]:
        """The distances."""
        return {"distances": self.distances}


def _load(say: Callable[[str], None], settings: Settings) -> Job:
    """Model and texts, tokenised; pairs together."""
    model = settings.sources.model or settings.sources.once(("encoder", settings.model), partial(_load_any, settings))
    check_parameters(model)
    if not task_named(settings.task).is_plain:
        raise InputError(f"the examples of {settings.task} are no texts or pairs: --task mlm reads lines of any text")
    examples = read_examples(settings, model)
    tokenizer = load_tokenizer(settings).with_prompt("")
    length = min(settings.max_length or DEFAULT_LENGTH, model.config.max_tokens)
    encodings = tokenizer.encode(examples.first, examples.second, length, word_ids=True)
    truncated = sum(encoding.truncated for encoding in encodings)
    if truncated:
        say(f"{count_of(truncated, 'text')} of {len(examples):,} cut after {length} tokens")
    encoded = _ReadTexts(DERIVED[KIND], tuple(encodings), tokenizer.pad_id, len(examples), np.zeros(len(examples)))
    ablations = single_heads(model.config, settings.mode)
    return Job(settings, model, tokenizer, ablations, examples, encoded)


def _load_any(settings: Settings) -> PretrainedModel:
    """The model of a checkpoint, whatever it was made for; a task head that is missing is not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        return load(locate(settings.model), dtype=settings.precision)


def _read(say: Callable[[str], None], progress: Progress, job: Job) -> Outcome:
    """The numbers of each head on each text."""
    encodings, examples = job.encoded.encodings, job.examples
    tokens = sum(map(len, encodings))
    say(f"{job.model.class_name} {job.settings.model}: {count_of(len(examples), 'text')}, {tokens:,} tokens")
    second = examples.second or ("",) * len(examples)
    texts = zip(encodings, examples.first, second, strict=True)
    known = [RoleNumbers.of(tokens_of(encoding, pair)) for encoding, *pair in texts]
    pad_id = job.encoded.pad_id

    def half(second: bool) -> Progress:
        return lambda done, total: progress((float(second) + done / total) / 2, 1.0)

    if not any(numbers.words.any() for numbers in known):
        raise InputError("no text has a word: there is no attention to speak of")
    found = read_roles(job.model, encodings, known, pad_id, progress=half(False))
    compared = [encodings[place] for place in texts_to_compare([len(encoding) for encoding in encodings])]
    distances = read_distances(job.model, compared, pad_id, progress=half(True))
    assert isinstance(job.encoded, _ReadTexts)
    job = replace(job, encoded=replace(job.encoded, distances=distances))
    base = np.stack([uniform_numbers(numbers) for numbers in known]).astype(found.dtype)
    metrics = role_metrics(np.sum([numbers.counts for numbers in known], axis=0))
    result = TaskResult(base, found, tuple(job.ablations))
    return Outcome(
        DerivedJob(**vars(job), of_outputs=metrics), result, None, {"roles": _describe(job, metrics, result)}
    )


def _describe(job: Job, metrics: Sequence[Metric], result: TaskResult) -> dict[str, Any]:
    """Definitions, and of each head its kinds, for a summary."""
    runs = np.concatenate([result.base[None], result.outputs])
    scores = {metric.name: score(metric, runs, job.labels) for metric in metrics}
    uniform = float(scores["entropy"][0])
    kinds = {}
    for number, ablation in enumerate(job.ablations, 1):
        found = kinds_of({name: float(values[number]) for name, values in scores.items()}, uniform)
        if found:
            kinds[ablation.name] = found
    there = {metric.name for metric in metrics}
    definitions = {role.name: role.definition for role in ROLES if role.name in there}
    told: dict[str, Any] = {"definitions": definitions, "criteria": dict(KINDS), "kinds": kinds}
    layers = np.array([layer for layer, _ in every_head(job.model.config)])
    silhouette = silhouette_of(job.encoded.arrays["distances"], layers, job.settings.seed)
    return told if silhouette is None else {**told, "silhouette": asdict(silhouette)}
