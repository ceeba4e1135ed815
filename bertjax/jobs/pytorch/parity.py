"""Comparison with PyTorch: the same checkpoint and input through `transformers` and through bertjax.

Differences are taken at real tokens only: what a padding token computes means nothing, and the two differ
there on purpose (a row of padding alone has weights 0 here and uniform ones in `transformers`).
Needs the extra `torch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from rich.box import SIMPLE_HEAD
from rich.text import Text

from bertjax import arguments as checks_of
from bertjax.checkpoints import BertConfig, architecture, has_tokenizer, locate, texts_directory
from bertjax.console import PlainTable
from bertjax.data import Tokenizer, collate
from bertjax.engine import reference as reference_engine
from bertjax.errors import CheckpointError, some_of
from bertjax.interventions import overrides
from bertjax.jobs.pytorch.torch_reference import Arguments, load_torch, overridden_head, run_torch
from bertjax.models import ModelOutput, PretrainedModel, check_parameters, load, tensor_name
from bertjax.progress import Progress, shown
from bertjax.tasks import load_examples

# Largest absolute differences allowed. float32: what rounding of sums in another order adds up to over the
# layers of a real model, where hidden states are of size 1 to 10 and weights at most 1. float64: the same
# sums with 29 more bits; only a difference in the mathematics is larger.
TOLERANCES = {
    "float32": {"hidden states": 2e-5, "attention weights": 5e-6, "outputs": 2e-5},
    "float64": {"hidden states": 1e-10, "attention weights": 1e-10, "outputs": 1e-10},
}
FIELDS = {
    "pooler_output": "pooler",
    "logits": "logits",
    "prediction_logits": "masked-LM logits",
    "seq_relationship_logits": "next-sentence logits",
    "start_logits": "start logits",
    "end_logits": "end logits",
}

HEADS_AT_ONCE = 12
THEIR_NAMES = {"seq_relationship_logits": "sop_logits"}  # in ALBERT


@dataclass(frozen=True)
class Difference:
    """How far one component is from PyTorch's.

    Args:
        component: what was compared.
        largest: maximum absolute difference over real tokens.
        mean: mean absolute difference.
        tolerance: what `largest` may be.
    """

    component: str
    largest: float
    mean: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within its tolerance (never if it is not a number)."""
        return self.largest <= self.tolerance


def compare(model: PretrainedModel, reference: Any, arguments: Arguments) -> list[Difference]:
    """Every component of a forward pass, from the embeddings to the head's logits.

    Args:
        model: a model of bertjax, in float32 or float64.
        reference: the same checkpoint in PyTorch (`load_torch`).
        arguments: `input_ids`, `attention_mask` and `token_type_ids`.

    Returns: one row for each component, in the order of computation.
    """
    real = np.asarray(arguments["attention_mask"]).astype(bool)
    if model.task == architecture.CHOICE:  # each text is one of one choice
        arguments = {name: np.asarray(array)[:, None] for name, array in arguments.items()}
    ours, theirs = model(arguments), run_torch(reference, arguments)

    def row(component: str, kind: str, mine: Any, other: Any, where: np.ndarray = real) -> Difference:
        return _difference(component, mine, other, where, TOLERANCES[model.numerics.dtype][kind])

    rows = [row("embeddings", "hidden states", ours.hidden_states[0], theirs.hidden_states[0])]
    for layer in range(model.config.num_hidden_layers):
        weights = [np.moveaxis(np.asarray(x), 1, 2) for x in (ours.attentions[layer], theirs.attentions[layer])]
        rows.append(row(f"layer {layer}: attention weights", "attention weights", *weights))
        states = ours.hidden_states[layer + 1], theirs.hidden_states[layer + 1]
        rows.append(row(f"layer {layer}: output", "hidden states", *states))
    for field, name in FIELDS.items():
        mine, other = getattr(ours, field, None), getattr(theirs, THEIR_NAMES.get(field, field), None)
        other = getattr(theirs, field, None) if other is None else other
        if mine is not None and other is not None:
            per_token = mine.ndim == 3 or field in ("start_logits", "end_logits") or model.task == architecture.REPLACED
            rows.append(row(name, "outputs", mine, other, real if per_token else np.ones(mine.shape[0], bool)))
    return rows


def compare_overrides(model: PretrainedModel, reference: Any, arguments: Arguments, mode: str) -> list[Difference]:
    """The last hidden state with each head disabled in turn, here and in PyTorch with a patched attention.

    Args:
        model: the model.
        reference: the same model in `transformers`.
        arguments: a batch: its token ids, mask and token types.
        mode: 'uniform' or 'zero'.

    Returns: one row for each head.
    """
    real = np.asarray(arguments["attention_mask"]).astype(bool)
    heads = overrides.every_head(model.config)
    constructors = {"uniform": overrides.uniform, "zero": overrides.zero}
    constructor = constructors[checks_of.check_choice(mode, "mode", constructors)]
    inputs = model.inputs(**arguments)
    rows = []
    for start in range(0, len(heads), HEADS_AT_ONCE):
        chunk = heads[start : start + HEADS_AT_ONCE]
        stacked = overrides.stack([constructor(model.config, [head]) for head in chunk])
        for head, ours in zip(chunk, reference_engine.run(model, inputs, stacked, _last_hidden_state), strict=True):
            with overridden_head(reference, model.config, head, mode, real):
                theirs = run_torch(reference, arguments).hidden_states[-1]
            name = f"{mode} {head[0]}.{head[1]}: last hidden state"
            rows.append(_difference(name, ours, theirs, real, TOLERANCES[model.numerics.dtype]["hidden states"]))
    return rows


def worst(rows: Sequence[Difference], component: str) -> Difference:
    """One row that stands for many: the largest difference, and the mean of all means.

    Args:
        rows: the rows to combine.
        component: the name of the combined row.
    """
    largest = max(rows, key=lambda row: row.largest if row.largest == row.largest else np.inf)
    name = f"{component} (largest: {largest.component.split(':')[0]})"
    return Difference(name, largest.largest, float(np.mean([row.mean for row in rows])), largest.tolerance)


def _last_hidden_state(output: ModelOutput) -> Float[Array, "batch token embed"]:
    return output.last_hidden_state


def _difference(component: str, computed: Any, expected: Any, real: np.ndarray, tolerance: float) -> Difference:
    """Compare where `real` is true (over the leading axes)."""
    computed, expected = np.asarray(computed, np.float64), np.asarray(expected, np.float64)
    apart = np.abs(computed - expected)[real]
    return Difference(component, float(apart.max()), float(apart.mean()), tolerance)


def random_arguments(config: BertConfig, batch: int, tokens: int) -> Arguments:
    """Random ids with padding on the right, for a model that has no tokenizer.

    Each example keeps at least one token; the first keeps all.

    Args:
        config: the config of the model.
        batch: the number of examples.
        tokens: the number of tokens of the longest example.
    """
    checks_of.check_instance(config, "config", BertConfig, "a BertConfig (model.config)")
    for name, value in (("batch", batch), ("tokens", tokens)):
        checks_of.check_int(value, name, 1)
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, tokens + 1, batch)
    lengths[0] = tokens
    mask = (np.arange(tokens)[None] < lengths[:, None]).astype(np.int32)
    ids = generator.integers(0, config.vocab_size, (batch, tokens), dtype=np.int32)
    types = (np.arange(tokens)[None] >= lengths[:, None] // 2).astype(np.int32) * mask
    padding = config.pad_token_id or 0
    return {
        "input_ids": np.where(mask == 1, ids, padding),
        "attention_mask": mask,
        "token_type_ids": types * (config.type_vocab_size > 1),
    }


def check_model(
    name: str,
    precision: str,
    examples: int,
    progress: Progress | bool = False,
) -> list[Difference]:
    """Compare a checkpoint with PyTorch on real sentence pairs: all components, then every head's overrides.

    The sentences are the first of the sample that is shipped; a checkpoint without a tokenizer gets random ids.

    Args:
        name: the directory or hub id of the checkpoint.
        precision: 'float32', 'float64' or 'bfloat16'.
        examples: the number of sentence pairs.
        progress: True shows a progress bar; a function is called with the work done and the total work.

    Returns: one row for each component, and one for each override over all heads.
    """
    checks_of.check_choice(precision, "precision", TOLERANCES)
    checks_of.check_int(examples, "examples", 1)
    directory = locate(name)
    model = load(directory, dtype=precision)
    check_parameters(model)
    if model.new_parameters:
        new = list(dict.fromkeys(tensor_name(model, path) for path in model.new_parameters))
        raise CheckpointError(
            f"{directory} has no {some_of(new)}, which PyTorch and bertjax would each initialise at random: there is "
            "nothing to compare; give a checkpoint with all weights"
        )
    reference = load_torch(model, directory)
    arguments = _sentences(model, directory, examples)
    with shown(progress, "parity") as report:
        report(1.0, 6.0)
        rows = compare(model, reference, arguments)
        report(2.0, 6.0)
        for number, mode in enumerate(("uniform", "zero")):
            rows.append(worst(compare_overrides(model, reference, arguments, mode), f"{mode}, each head"))
            report(4.0 + 2.0 * number, 6.0)
    return rows


def _sentences(model: PretrainedModel, directory: Path, examples: int) -> Arguments:
    if not has_tokenizer(texts_directory(directory)):
        return random_arguments(model.config, examples, min(32, model.config.max_tokens))
    tokenizer = Tokenizer.from_pretrained(directory)
    sample = load_examples("qnli-sample", limit=examples)
    longest = min(128, model.config.max_tokens)
    return collate(tokenizer.encode(sample.first, sample.second, longest), None, tokenizer.pad_id)


def parity_table(rows: Sequence[Difference]) -> PlainTable:
    """The differences to PyTorch, one row for each component.

    Args:
        rows: each a `parity.Difference`, or anything with its fields.
    """
    table = PlainTable(
        title="Difference to PyTorch at real tokens (padding left out)", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("component")
    for name in ("largest", "mean", "allowed"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        verdict = Text("pass", style="green") if row.passed else Text("FAIL", style="bold red")
        table.add_row(row.component, *(f"{x:.1e}" for x in (row.largest, row.mean, row.tolerance)), verdict)
    return table
