"""From a task's examples to the outputs that its metrics read, base and ablated.

Four kinds of model can do a task: one with a classification head, whose outputs are logits; a sentence embedder,
whose output for a pair is the cosine similarity of its two vectors; a cross-encoder with one label, whose output is
a score; and one with a masked-LM head, whose outputs are log-probability and rank of each masked word.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax.data import Task, collate
from bertjax.engine import (
    Combine,
    SharedEncodings,
    SweepResult,
    divide_examples,
    gather,
    plain,
    sweep,
    sweep_distributed,
)
from bertjax.errors import DataError, InputError, some_of
from bertjax.evidence import METRICS, Metric, find_metric
from bertjax.interventions import Ablation, Readout, mean_head_outputs, readouts, stack, sum_head_outputs
from bertjax.model import ModelOutput, Overrides, PretrainedModel
from bertjax.progress import Progress, silent
from bertjax.study.encoding import Encoded, Kind, batch_encodings, plain_label

# Into how many blocks, and at least how large, processes cut the examples for means.
MOST_BLOCKS, EXAMPLES_OF_BLOCK = 64, 256
# Sentence vectors of all ablations wait in memory for their partners: so many bytes at a time.
VECTOR_BYTES = 512 * 2**20


def sweep_examples(
    model: PretrainedModel,
    encoded: Encoded,
    ablations: Sequence[Ablation],
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    memory: int | None = None,
    attention: str = "auto",
    journal: Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> SweepResult:
    """Base and ablated outputs of every example, by the engine.

    Args:
        means: outputs that mode 'mean' puts in place of the heads' own.
        memory, attention, journal, replace_journal, settings, say: as in `engine.sweep`.
        progress: called with the work done and the total work.

    Returns: logits `[ablations, examples, labels]` in the task's order of labels; similarities in [-1, 1] or scores,
        `[ablations, examples]`; or log-probabilities and ranks `[ablations, words, 2]`.
    """
    readout, combine = how_to_run(encoded)
    result = sweep(
        model,
        encoded.texts,
        ablations,
        readout,
        combine=combine,
        at=encoded.at,
        targets=encoded.targets,
        means=means,
        memory=memory,
        attention=attention,
        journal=journal,
        replace_journal=replace_journal,
        settings=settings,
        progress=progress,
        say=say,
    )
    return _in_order(encoded, result)


def sweep_together(
    model: PretrainedModel,
    encoded: Encoded,
    ablations: Sequence[Ablation],
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    memory: int | None = None,
    attention: str = "auto",
    journal: Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> SweepResult | None:
    """`sweep_examples` by several processes; None on all but the first."""
    readout, combine = how_to_run(encoded)
    assert isinstance(encoded.encodings, SharedEncodings)
    result = sweep_distributed(
        model,
        encoded.encodings,
        ablations,
        readout,
        combine=combine,
        means=means,
        memory=memory,
        attention=attention,
        journal=journal,
        replace_journal=replace_journal,
        settings=settings,
        progress=progress,
        say=say,
    )
    return None if result is None else _in_order(encoded, result)


def _in_order(encoded: Encoded, result: SweepResult) -> SweepResult:
    """Logits in the task's order of labels; words one after another."""
    if encoded.wanted is not None:
        of_words = encoded.wanted.of_words
        return replace(result, base=of_words(result.base), outputs=of_words(result.outputs))
    if encoded.kind != "logits":
        return result
    order = list(encoded.label_order)
    return replace(result, base=result.base[..., order], outputs=result.outputs[..., order])


def without_ranks(kind: Kind, result: SweepResult) -> SweepResult:
    """Outputs whose changes have a size: of words the log-probabilities alone, of others all."""
    if kind != "words":
        return result
    return replace(result, base=result.base[..., 0], outputs=result.outputs[..., 0])


def how_to_run(encoded: Encoded) -> tuple[Readout, Combine | None]:
    """What the engine keeps of each text, and what it makes of an example's several."""
    if encoded.kind == "similarity":
        return readouts.sentence_embedding, cosine
    of_kind: dict[str, Readout] = {"logits": readouts.logits, "score": readouts.score, "words": readouts.words}
    return of_kind[encoded.kind], None


def sweep_plainly(
    model: PretrainedModel,
    encoded: Encoded,
    overrides: Sequence[Overrides],
    *,
    batch_size: int,
    chunk_size: int | None = None,
    progress: Progress = silent,
) -> SweepResult:
    """The same as `sweep_examples`, by `plain.sweep`: `jax.vmap` over stacks of overrides, padded batches."""
    if encoded.wanted is not None:
        raise InputError("--engine plain has no readout of masked words: leave it out")
    positions = model.config.max_tokens
    readout, combine = how_to_run(encoded)
    if combine is None:
        batches = batch_encodings(encoded, range(encoded.examples), batch_size, positions)
        result = plain.sweep(model, batches, overrides, readout, chunk_size=chunk_size, progress=progress)
        return _in_order(encoded, result)
    pairs = max(1, VECTOR_BYTES // (8 * model.config.hidden_size * (len(overrides) + 1)))
    blocks = []
    for start in range(0, encoded.examples, pairs):
        block = range(start, min(start + pairs, encoded.examples))

        def report(done: float, total: float, before: int = start, count: int = len(block)) -> None:
            progress(before + count * done / total, float(encoded.examples))

        numbers = [*block, *(example + encoded.examples for example in block)]
        batches = batch_encodings(encoded, numbers, batch_size, positions)
        vectors = plain.sweep(model, batches, overrides, readout, chunk_size=chunk_size, progress=report)
        blocks.append((cosine(*np.split(vectors.base, 2)), cosine(*np.split(vectors.outputs, 2, axis=1))))
    base, outputs = (np.concatenate(parts, axis=-1) for parts in zip(*blocks, strict=True))
    return SweepResult(base, outputs)


def mean_outputs(
    model: PretrainedModel, encoded: Encoded, batch_size: int, examples: int | None = None
) -> Float[np.ndarray, "layers heads head_dim"]:
    """The heads' mean outputs over the real tokens of examples: what mode 'mean' puts in place of their own.

    Args:
        batch_size: texts computed together.
        examples: use only the first of them, this many; default all.
    """
    return mean_head_outputs(model, _unrepeated(model, encoded, batch_size, range(examples or encoded.examples)))


def mean_outputs_together(
    model: PretrainedModel, encoded: Encoded, batch_size: int
) -> Float[np.ndarray, "layers heads head_dim"]:
    """`mean_outputs` of all examples by several processes: the same bytes on all, and whatever their number.

    The examples are cut into blocks, and the sums of these are added in their order.
    """
    blocks = divide_examples(encoded.examples, min(MOST_BLOCKS, -(-encoded.examples // EXAMPLES_OF_BLOCK)))
    processes, own = jax.process_count(), jax.process_index()
    config, rounds = model.config, -(-len(blocks) // processes)
    sums_and_counts = np.zeros((rounds, config.num_hidden_layers, config.num_attention_heads, config.head_dim + 1))
    for number, block in enumerate(blocks[own::processes]):
        total, count = sum_head_outputs(model, _unrepeated(model, encoded, batch_size, block))
        sums_and_counts[number] = np.concatenate([total, np.full((*total.shape[:2], 1), count)], axis=-1)
    sums = gather(sums_and_counts).swapaxes(0, 1).reshape(-1, *sums_and_counts.shape[1:])[: len(blocks)].sum(axis=0)
    return np.asarray(sums[..., :-1] / sums[..., -1:])


def _unrepeated(
    model: PretrainedModel, encoded: Encoded, batch_size: int, examples: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    """Batches of all encodings of examples, in which none counts twice."""
    numbers = [number for example in examples for number in encoded.numbers_of(example)]
    batches = []
    for places, arguments in batch_encodings(encoded, numbers, batch_size, model.config.max_tokens):
        # A filled-up batch repeats examples, which would count twice in a mean: mask the repeats.
        first = np.array([places.index(place) == number for number, place in enumerate(places)])
        mask = arguments["attention_mask"] * first[:, None].astype(np.int32)
        batches.append({**arguments, "attention_mask": mask})
    return batches


def cosine(
    first: Float[np.ndarray, "*examples embed"], second: Float[np.ndarray, "*examples embed"]
) -> Float[np.ndarray, "*examples"]:
    """Cosine similarity of vectors, summed in float64, given in the vectors' dtype.

    >>> cosine(np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]]))
    array([0.96])
    """
    sums = [
        np.einsum("...e,...e->...", left, right, dtype=np.float64)
        for left, right in ((first, second), (first, first), (second, second))
    ]
    return (sums[0] / np.maximum(np.sqrt(sums[1] * sums[2]), 1e-12)).astype(first.dtype)


def metrics_of(kind: str, task: Task, chosen: Metric | str | None = None) -> tuple[Metric, ...]:
    """Which metrics judge a task, the main one first.

    Logits and words are judged by the task's own; similarities and scores by rank correlation (regression) or by how
    well they tell the yes pairs from the no pairs (classification).

    Args:
        chosen: the main one, in place of these metrics' first; a name, or a Metric of your own.

    Raises:
        InputError: the chosen one cannot judge such outputs.
    """
    if kind in ("logits", "words"):
        names = task.metrics
    else:
        names = ("spearman", "pearson") if task.kind == "regression" else ("roc_auc", "average_precision")
    own = tuple(find_metric(name) for name in names)
    if chosen is None:
        return own
    main = find_metric(chosen)
    classes = task.kind == "classification"
    reads = "outputs" if kind == "words" else "predictions" if kind == "logits" and classes else "values"
    targets = "classes" if classes else "numbers"
    two_classes = task.label_names is None or len(task.label_names) == 2  # one of which is the positive one

    def fits(metric: Metric) -> bool:
        alike = (metric.reads, metric.targets) == (reads, targets)
        return alike and (two_classes or reads == "values" or not metric.of_one_label)

    if not fits(main):
        of_logits = "predicted classes" if classes else "values"
        outputs = {"similarity": "similarities", "score": "scores", "words": "masked words"}.get(kind, of_logits)
        fitting = " or ".join(metric.name for metric in METRICS.values() if fits(metric))
        raise InputError(f"--metric {main.name} does not judge {outputs} of {task.name}: choose {fitting}")
    return (main, *(metric for metric in own if metric.name != main.name))


def positive_label(kind: str, task: Task) -> int:
    """The label that counts as yes: for similarities and scores entailment or paraphrase, else 1.

    Raises:
        DataError: similarities or scores, and neither is among the task's labels.
    """
    names = task.label_names or ()
    if kind == "logits" or not names:
        return 1
    meanings: tuple[str, ...] = ("entailment", "equivalent", "duplicate", "similar")
    if len(names) == 2:
        meanings += ("yes", "true", "1")
    for number, name in enumerate(names):
        if plain_label(name) in meanings:
            return number
    raise DataError(
        f"none of {task.name}'s labels {some_of(names)} says that a pair is similar: call one of two labels 'yes', "
        "or, where they are ratings, give --label-names with nothing behind it"
    )


def sampled_attention(
    model: PretrainedModel, encoded: Encoded, examples: Sequence[int], overrides: Sequence[Overrides]
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Tokens and attention weights of some examples, without and with overrides.

    Args:
        examples: positions of the examples.
        overrides: runs to record (the identity for the base).

    Returns: for sample s and text t (0, and 1 for the second text of a similarity) the arrays `tokens_s_t`
        `[token]` and `weights_s_t` `[runs, layers, heads, query, key]`, cut to the real tokens.
    """
    numbers = [number for example in examples for number in encoded.kept_of(example)]
    per_example = len(numbers) // len(examples)
    inputs = model.inputs(**collate([encoded.encodings[number] for number in numbers], None, encoded.pad_id))
    kept: dict[str, list[np.ndarray]] = {}
    for override in overrides:  # one after another, each cut at once: uncut, all of them would not fit into memory
        weights = np.asarray(plain.run(model, inputs, stack([override]), _attentions)[0])
        for place, number in enumerate(numbers):
            length = len(encoded.encodings[number])
            name = f"weights_{place // per_example}_{place % per_example}"
            kept.setdefault(name, []).append(weights[:, place, :, :length, :length].astype(np.float32))
    tokens = {
        f"tokens_{place // per_example}_{place % per_example}": np.array(encoded.encodings[number].tokens)
        for place, number in enumerate(numbers)
    }
    return tokens | {name: np.stack(runs) for name, runs in kept.items()}


def _attentions(output: ModelOutput) -> Float[Array, "layers batch heads query key"]:
    return output.attentions
