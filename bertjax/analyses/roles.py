"""Roles of heads: `Study.roles`, `bertjax roles`.

Roles need texts only, no labels and no task head: the model reads each text, or both texts of a pair together. The
outputs are sums over the queries of each head and text (`attention.NUMBERS`). The base is uniform attention, so that
intervals and tests are about differences from it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from bertjax.attention import (
    KINDS,
    NUMBERS,
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
from bertjax.checkpoints import CheckpointWarning, locate
from bertjax.console import PlainTable
from bertjax.errors import InputError
from bertjax.formatting import count_of
from bertjax.interventions import every_head, single_heads
from bertjax.jobs import (
    Analysis,
    Context,
    DataOptions,
    Job,
    Outcome,
    Say,
    Settings,
    load_tokenizer,
    names,
    read_examples,
)
from bertjax.models import PretrainedModel, check_parameters, load
from bertjax.progress import part_of
from bertjax.results import NumberDisplay, Results, column, describe_silhouette
from bertjax.statistics import Metric, score, silhouette_of
from bertjax.tasks import OutputSpec, TextEncodings, task_named

DEFAULT_LENGTH = 128


class RoleDisplay(NumberDisplay):
    """Texts with the attention of a head to the previous token."""

    value, note = "sum", "It is the sum over the text's words of their attention to the previous token."


OUTPUTS = OutputSpec("roles", called="roles", numbers=NUMBERS, sized=len(ROLES), display=RoleDisplay)


@dataclass(frozen=True, kw_only=True)
class Roles(Analysis):
    """Measure the roles of heads: which tokens they attend to.

    The share of each head's attention to the previous and the next token, [CLS], [SEP], punctuation, the same word
    elsewhere and the other text of a pair, by weights and by norms of weighted values, and the entropy of its
    attention; all compared with uniform attention. Roles need neither labels nor a task head.
    """

    name = word = "roles"
    progress_text = "reading"
    example = "bertjax roles --model bert-base-uncased --task mlm --data texts.txt"
    reads = names(DataOptions) | {"model", "max_length"}

    outputs = OUTPUTS
    journals = None
    float32 = True

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the model, and tokenise the texts; pairs as one text."""
        model = encoder_of(settings)
        if not task_named(settings.task).is_plain:
            raise InputError(
                f"the examples of {settings.task} are not texts or pairs of texts: --task mlm reads lines of text"
            )
        examples = read_examples(settings, model)
        tokenizer = load_tokenizer(settings).with_prompt("")
        length = min(settings.max_length or DEFAULT_LENGTH, model.config.max_tokens)
        encodings = tokenizer.encode(examples.first, examples.second, length, word_ids=True)
        truncated = sum(encoding.truncated for encoding in encodings)
        if truncated:
            say(f"{count_of(truncated, 'text')} of {len(examples):,} cut after {length} tokens")
        encoded = TextEncodings(OUTPUTS, tuple(encodings), tokenizer.pad_id, len(examples), np.zeros(len(examples)))
        return Job(settings, model, tokenizer, examples, encoded)

    def run(self, context: Context) -> Outcome:
        """Compute the numbers of each head on each text, and the distances between heads."""
        job, progress = context.job, context.progress
        encodings, examples, pad_id = job.encoded.encodings, job.examples, job.encoded.pad_id
        tokens = sum(map(len, encodings))
        counted = f"{count_of(len(examples), 'text')}, {tokens:,} tokens"
        context.say(f"{job.model.class_name} {job.settings.model}: {counted}")
        second = examples.second or ("",) * len(examples)
        texts = zip(encodings, examples.first, second, strict=True)
        known = [RoleNumbers.of(tokens_of(encoding, pair)) for encoding, *pair in texts]
        if not any(numbers.words.any() for numbers in known):
            raise InputError("no text has a word: there is no attention to measure")
        outputs = read_roles(job.model, encodings, known, pad_id, progress=part_of(progress, 0.0, 0.5, 1.0))
        compared = [encodings[index] for index in texts_to_compare([*map(len, encodings)])]
        distances = read_distances(job.model, compared, pad_id, progress=part_of(progress, 0.5, 0.5, 1.0))
        base = np.stack([uniform_numbers(numbers) for numbers in known]).astype(outputs.dtype)
        metrics = role_metrics(np.sum([numbers.counts for numbers in known], axis=0))
        return Outcome(
            job=job,
            ablations=single_heads(job.model.config, self.mode),
            base=base,
            outputs=outputs,
            form=OUTPUTS,
            metrics=metrics,
            labels=np.zeros(len(examples)),
            details={"distances": distances},
            metadata={"roles": _describe(job, metrics, base, outputs, distances)},
        )

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The shares of all roles, and the heads that meet each criterion."""
        return [roles_table(results), *kinds_lines(results)]


def load_encoder(settings: Settings) -> PretrainedModel:
    """Load a checkpoint of any kind; a missing task head is ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        return load(locate(settings.model), dtype=settings.precision)


def encoder_of(settings: Settings) -> PretrainedModel:
    """The model in memory, or the encoder of the checkpoint, loaded once in a study.

    Args:
        settings: the options of the study.

    Raises:
        InputError: a parameter is not finite.
    """
    sources = settings.sources
    model = sources.model or sources.once(("encoder", settings.model), lambda: load_encoder(settings))
    check_parameters(model)
    return model


def _describe(
    job: Job,
    metrics: Sequence[Metric],
    base: Float[np.ndarray, "texts numbers"],
    outputs: Float[np.ndarray, "heads texts numbers"],
    distances: Float[np.ndarray, "heads heads"],
) -> dict[str, Any]:
    """Definitions of roles, and the kinds of each head, for a summary."""
    runs, labels = np.concatenate([base[None], outputs]), np.zeros(len(base))
    scores = {metric.name: score(metric, runs, labels) for metric in metrics}
    uniform = float(scores["entropy"][0])
    kinds = {}
    for number, ablation in enumerate(single_heads(job.model.config, "uniform"), 1):
        found = kinds_of({name: float(values[number]) for name, values in scores.items()}, uniform)
        if found:
            kinds[ablation.name] = found
    there = {metric.name for metric in metrics}
    definitions = {role.name: role.definition for role in ROLES if role.name in there}
    described: dict[str, Any] = {"definitions": definitions, "criteria": dict(KINDS), "kinds": kinds}
    layers = np.array([layer for layer, _ in every_head(job.model.config)])
    silhouette = silhouette_of(distances, layers, job.settings.seed)
    return described if silhouette is None else {**described, "silhouette": asdict(silhouette)}


def roles_table(results: Results) -> PlainTable:
    """Table of each role's share of attention: uniform, mean of all heads by weights and norms, largest heads.

    Args:
        results: results of `roles`.
    """
    table = PlainTable(
        title=f"Attention of {count_of(len(results.names), 'head')}, in points", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("to", no_wrap=True)
    for name in ("uniform", "mean", "by norms"):
        table.add_column(name, justify="right")
    table.add_column("largest", no_wrap=True)
    for name in results.summary["roles"]["definitions"]:
        measure, rows = results.measure(name), results.rows_of(name)
        by_norms = column(results.rows_of(f"norm_{name}"), "score").mean()
        first = sorted(rows, key=lambda row: -(row.score or 0.0))[:2]
        heads = ", ".join(f"{row.name} ({measure.factor * (row.score or 0.0):.0f})" for row in first)
        numbers = (rows[0].base, column(rows, "score").mean(), by_norms)
        shares = (f"{measure.factor * float(number or 0.0):.1f}" for number in numbers)
        table.add_row(measure.label.removeprefix("Attention to "), *shares, heads)
    entropy, confidence = results.rows_of("entropy"), results.rows_of("confidence")
    table.caption_justify = "left"
    table.caption = (
        f"entropy {column(entropy, 'score').mean():.2f} nats on average, {entropy[0].base:.2f} of uniform attention; "
        f"largest weight {100 * column(confidence, 'score').mean():.0f} points on average"
    )
    return table


def kinds_lines(results: Results) -> list[str]:
    """A line for each criterion with the heads that meet it.

    Args:
        results: results of `roles`.
    """
    described = results.summary["roles"]
    lines = []
    for kind, criterion in described["criteria"].items():
        heads = [name for name, kinds in described["kinds"].items() if kind in kinds]
        lines.append(f"{kind} ({criterion}): {', '.join(heads) if heads else 'none'}")
    if "silhouette" in described:
        lines.append(describe_silhouette(described["silhouette"]))
    return lines
