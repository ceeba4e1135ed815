"""From a task's examples to the outputs that its metrics read, with and without ablations.

A `Form` of `bertjax.tasks` defines what the engine reads, and an `EncodedDataset` what metrics read.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax.data import Tokenizer, collate
from bertjax.engine import Estimate, SweepInput, make_sweep_input, plan_sweep, reference, sweep
from bertjax.errors import InputError
from bertjax.interventions import Ablation, mean_head_outputs, readouts, stack
from bertjax.jobs.job import Job
from bertjax.models import ModelOutput, Overrides, PretrainedModel
from bertjax.progress import Progress, part_of, silent
from bertjax.tasks import EncodedDataset, TargetPositions, TaskResult, batch_encodings

# The maximum size of sentence vectors that are computed at a time by the reference engine.
VECTOR_BYTES = 512 * 2**20


def sweep_examples(
    model: PretrainedModel,
    encoded: EncodedDataset,
    ablations: Sequence[Ablation],
    *,
    progress: Progress = silent,
    **options: Any,
) -> TaskResult:
    """Run ablations on examples with the engine.

    Args:
        model: the model.
        encoded: the tokenised examples of a task.
        ablations: the ablations to run.
        progress: called with the work done and the total work.
        options: further arguments of `engine.sweep`.

    Returns: logits `[ablations, examples, labels]` in the task's order of labels; similarities in [-1, 1] or scores,
        `[ablations, examples]`; for other tasks `[ablations, outputs, numbers]`.
    """
    readout, inputs = encoded.read_form.readout, _inputs_of(encoded)
    return encoded.outputs_of(sweep(model, encoded.texts, ablations, readout, **inputs, progress=progress, **options))


def _inputs_of(encoded: EncodedDataset) -> dict[str, Any]:
    """The arguments of `engine.sweep` that depend on the task."""
    return {"combine": encoded.read_form.combine, "at": encoded.at, "targets": encoded.targets}


def input_of(job: Job, means: Float[np.ndarray, "layers heads head_dim"] | None) -> SweepInput:
    """The input of a job's sweep."""
    encoded, attention = job.encoded, job.settings.attention
    readout, inputs = encoded.read_form.readout, _inputs_of(encoded)
    inputs |= {"means": means, "attention": attention, "source_model": job.source_model}
    return make_sweep_input(job.model, encoded.texts, job.ablations, readout, **inputs)


def estimate_runs(job: Job, ablations: Sequence[Ablation]) -> Estimate:
    """Estimate work, memory and time of ablations on a job's examples.

    Args:
        job: the model and the encoded examples.
        ablations: the ablations to run.
    """
    encoded, settings = job.encoded, job.settings
    limits: dict[str, Any] = {"memory": settings.memory_budget, "attention": settings.attention}
    return plan_sweep(job.model, encoded.texts, ablations, encoded.read_form.readout, **_inputs_of(encoded), **limits)


def sweep_plainly(
    model: PretrainedModel,
    encoded: EncodedDataset,
    overrides: Sequence[Overrides],
    *,
    batch_size: int,
    chunk_size: int | None = None,
    progress: Progress = silent,
) -> TaskResult:
    """`sweep_examples` with the reference engine: `jax.vmap` over stacked overrides, padded batches."""
    if encoded.at is not None:
        raise InputError("--engine reference has no readout at chosen tokens: leave it out")
    positions = model.config.max_tokens
    form = encoded.read_form
    if form.combine is None:
        batches = batch_encodings(encoded, range(len(encoded.encodings)), batch_size, positions)
        result = reference.sweep(model, batches, overrides, form.readout, chunk_size=chunk_size, progress=progress)
        return encoded.outputs_of(result)
    pairs = max(1, VECTOR_BYTES // (8 * model.config.hidden_size * (len(overrides) + 1)))
    blocks = []
    for start in range(0, encoded.examples, pairs):
        block = range(start, min(start + pairs, encoded.examples))
        report = part_of(progress, start, len(block), float(encoded.examples))
        members = [encoded.numbers_of(example) for example in block]
        numbers = [number for copies in zip(*members, strict=True) for number in copies]
        batches = batch_encodings(encoded, numbers, batch_size, positions)
        vectors = reference.sweep(model, batches, overrides, form.readout, chunk_size=chunk_size, progress=report)
        both = (np.split(vectors.base, len(members[0])), np.split(vectors.outputs, len(members[0]), axis=1))
        blocks.append(tuple(form.combine(*parts) for parts in both))
    base, outputs = (np.concatenate(parts, axis=axis) for axis, parts in enumerate(zip(*blocks, strict=True)))
    return TaskResult(base, outputs)


def mean_outputs(
    model: PretrainedModel, encoded: EncodedDataset, batch_size: int
) -> Float[np.ndarray, "layers heads head_dim"]:
    """The heads' mean outputs over the real tokens of all examples, for mode 'mean'.

    Args:
        batch_size: the number of texts computed at a time.
    """
    return mean_head_outputs(model, _unrepeated(model, encoded, batch_size))


def means_of(job: Job) -> Float[np.ndarray, "layers heads head_dim"] | None:
    """The heads' mean outputs over all examples; None if no ablation has mode 'mean'.

    Args:
        job: the model and the encoded examples, with the ablations.
    """
    if not any(change.replacement == "mean" for ablation in job.ablations for change in ablation.changes):
        return None
    return mean_outputs(job.model, job.encoded, job.settings.texts_at_once)


def _unrepeated(model: PretrainedModel, encoded: EncodedDataset, batch_size: int) -> list[dict[str, np.ndarray]]:
    """Batches of all encodings of examples, with repeated texts masked."""
    numbers = [number for example in range(encoded.examples) for number in encoded.own_of(example)]
    batches = []
    for places, arguments in batch_encodings(encoded, numbers, batch_size, model.config.max_tokens):
        # The last batch is filled with repeated texts, which would count twice in a mean.
        first = np.array([places.index(place) == number for number, place in enumerate(places)])
        mask = arguments["attention_mask"] * first[:, None].astype(np.int32)
        batches.append({**arguments, "attention_mask": mask})
    return batches


def sampled_attention(
    model: PretrainedModel, encoded: EncodedDataset, examples: Sequence[int], overrides: Sequence[Overrides]
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Tokens and attention weights of some examples, without and with overrides.

    Args:
        examples: the indices of the examples.
        overrides: the runs (the identity for the base).

    Returns: for sample s and text t (0, and 1 for the second text of a similarity) the arrays `tokens_s_t`
        `[token]` and `weights_s_t` `[runs, layers, heads, query, key]`, cut to the real tokens.
    """
    numbers = [number for example in examples for number in encoded.kept_of(example)]
    per_example = len(numbers) // len(examples)
    texts = [encoded.encodings[number] for number in numbers]
    # A multiple of 32 tokens, so that programs are compiled for few lengths.
    length = min(-(-max(map(len, texts)) // 32) * 32, model.config.max_tokens)
    inputs = model.inputs(**collate(texts, length, encoded.pad_id))
    kept: dict[str, list[np.ndarray]] = {}
    for override in overrides:  # one by one: weights with padding of all runs might not fit into memory
        weights = np.asarray(reference.run(model, inputs, stack([override]), _attentions)[0])
        for place, text in enumerate(texts):
            name = f"weights_{place // per_example}_{place % per_example}"
            kept.setdefault(name, []).append(weights[:, place, :, : len(text), : len(text)].astype(np.float32))
    tokens = {
        f"tokens_{place // per_example}_{place % per_example}": np.array(text.tokens)
        for place, text in enumerate(texts)
    }
    return tokens | {name: np.stack(runs) for name, runs in kept.items()}


def best_guesses(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    encoded: EncodedDataset,
    at: TargetPositions,
    examples: Sequence[int],
    ablations: Sequence[Ablation],
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The most likely words at the masked positions of some texts, without and with ablations.

    Args:
        at: the masked positions.
        examples: the indices of the texts; the first copy of a text is used.

    Returns: for sample s the arrays `masked_s` `[word]`, the masked positions; `truth_s` `[word]`, the true words;
        `guesses_s` `[runs, word, guess]`, the most likely words first; and `chances_s`, their probabilities.
    """
    numbers = [number for example in examples for number in encoded.kept_of(example)]
    found = sweep(
        model,
        [encoded.encodings[number] for number in numbers],
        ablations,
        readouts.guesses,
        at=at.at[numbers],
        targets=at.targets[numbers],
        means=means,
        progress=False,
    )
    runs = np.concatenate([found.base[None], found.outputs]).astype(np.float64)
    arrays: dict[str, Shaped[np.ndarray, "..."]] = {}
    for sample, number in enumerate(numbers):
        real = at.real[number]
        of_text = runs[:, sample][:, real]
        ids, chances = of_text[..., 0].astype(int), np.exp(of_text[..., 1])
        arrays |= {
            f"masked_{sample}": at.at[number, real],
            f"truth_{sample}": np.array(tokenizer.pieces(at.targets[number, real].tolist())),
            f"guesses_{sample}": np.array(tokenizer.pieces(ids.ravel().tolist())).reshape(ids.shape),
            f"chances_{sample}": chances.astype(np.float32),
        }
    return arrays


def _attentions(output: ModelOutput) -> Float[Array, "layers batch heads query key"]:
    return output.attentions
