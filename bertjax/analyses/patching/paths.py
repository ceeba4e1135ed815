"""Path patching: the heads that write what the receivers read. `Study.patch_paths`, `bertjax patch --paths-to`.

A first run patches one head of a text, the sender, with its output on the other text, and freezes the outputs of all
other heads; feed-forward layers are computed or frozen. A second run of the text patches the receivers (queries, keys
or values of later heads) with their values in the first run. Source: Wang et al. 2023, who compute feed-forward layers.

Each head before the last receiver has a row: the share of the score that the path from this head to the receivers
restores.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from bertjax import arguments
from bertjax.analyses.patching.patches import PatchingAnalysis, PatchingJob, introduce_patches, outcome_of_patches
from bertjax.data import Encoding, collate
from bertjax.engine import reference
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import (
    HEAD_OUTPUTS,
    Head,
    Readout,
    ablation,
    every_head,
    overrides,
    parse_head,
    patching,
    readouts,
    stack,
)
from bertjax.jobs import Context, Heads, Outcome, check_option, option
from bertjax.models import BertForSentenceEmbedding, ModelOutput, Overrides, PretrainedModel
from bertjax.progress import Progress, part_of

AT_ONCE = 32  # contrasts
# The sites at which a head can receive what another one sends.
RECEIVING = ("queries", "keys", "values")


@dataclass(frozen=True, kw_only=True)
class PatchPaths(PatchingAnalysis):
    """Patch the paths from each head to other heads.

    Args:
        receivers: the heads that read, by site: 'queries', 'keys' or 'values', such as {'queries': ['3.7']}.
        freeze_feed_forward: freeze the outputs of feed-forward layers, too, so that only the direct path remains.

    Raises:
        InputError: there are no receivers, or a site is unknown.
    """

    name, word = "paths", "contrasts-paths"
    journals = None
    explicit = True  # paths are computed by calls of the model
    reads = PatchingAnalysis.reads - {"memory", "attention"}
    own = ("receivers", "into", "only_right", "freeze_feed_forward")

    receivers: Any = option(None, "SITE=L.H", flag="--paths-to")
    freeze_feed_forward: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        receivers = _check_receivers(self.receivers or {})
        plain = {site: check_option(heads, site, Heads) for site, heads in receivers.items()}
        object.__setattr__(self, "receivers", plain)

    def run(self, context: Context) -> Outcome:
        """The scores of all paths."""
        job = context.job
        assert isinstance(job, PatchingJob)
        found = job.contrasts
        sides = (found.corrupted, found.clean) if self.into == "corrupted" else (found.clean, found.corrupted)
        to = ", ".join(f"{site} of {' '.join(heads)}" for site, heads in self.receivers.items())
        for name in (*(self.heads or ()), *(head for heads in self.receivers.values() for head in heads)):
            parse_head(name, job.model.config)
        introduce_patches(job, f"paths to {to}", context)
        senders: list[tuple[int, int]] = []
        parts: list[np.ndarray] = []
        count = len(job.examples)
        for start in range(0, count, AT_ONCE):
            index = slice(start, start + AT_ONCE)
            report = part_of(context.progress, start, min(AT_ONCE, count - start), float(count))
            senders, outputs = _patch(job, self, sides[0][index], sides[1][index], start, report)
            parts.append(outputs)
        runs = np.concatenate(parts, axis=1)
        patches = [ablation(job.model.config, [sender], self.mode) for sender in senders]
        cells = [{"place": HEAD_OUTPUTS, "layer": layer, "head": head, "span": 0} for layer, head in senders]
        metadata: dict[str, Any] = {"places": [HEAD_OUTPUTS], "spans": list(found.names), "cells": cells}
        metadata |= {"receivers": {name: list(heads) for name, heads in self.receivers.items()}}
        metadata |= {"feed_forward": "frozen" if self.freeze_feed_forward else "computed"}
        return outcome_of_patches(job, self, patches, (runs[0], runs[1]), runs[2:], metadata=metadata, say=context.say)


def parse_receivers(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse receivers of a command line: 'queries=3.7', 'values=3.7,2.1'.

    Args:
        words: the arguments of the command line.

    Raises:
        InputError: a word has another form.
    """
    receivers: dict[str, tuple[str, ...]] = {}
    for word in words:
        site, equals, heads = word.partition("=")
        if not (site and equals and heads):
            raise InputError(f"{word!r} names no receivers: write queries=L.H, keys=L.H or values=L.H")
        receivers[site] = (*receivers.get(site, ()), *heads.split(","))
    return receivers


def _patch(
    job: PatchingJob,
    paths: PatchPaths,
    texts: Sequence[tuple[Encoding, ...]],
    sources: Sequence[tuple[Encoding, ...]],
    start: int,
    report: Progress,
) -> tuple[list[tuple[int, int]], Float[np.ndarray, "runs contrasts ..."]]:
    """The senders, and the outputs of some contrasts: unpatched run, source run, and each path.

    Args:
        start: the index of the first contrast.
    """
    model, scored, pad_id = job.model, job.contrasts.scored, job.encoded.pad_id
    batch, others = (collate([each[0] for each in side], None, pad_id) for side in (texts, sources))
    readout = scored.readout
    if scored.at is not None and scored.targets is not None:
        chosen = slice(start, start + len(texts))
        readout = _words_at(jnp.asarray(scored.at[chosen]), jnp.asarray(scored.targets[chosen]))
    senders, patched = patch_paths(
        model,
        batch,
        others,
        paths.receivers,
        readout,
        senders=paths.heads,
        freeze_feed_forward=paths.freeze_feed_forward,
        report=report,
    )
    runs = np.concatenate([np.stack([np.asarray(readout(model(part))) for part in (batch, others)]), patched])
    if isinstance(model, BertForSentenceEmbedding) and scored.combine is not None:
        second = np.asarray(readout(model(collate([each[1] for each in texts], None, pad_id))))
        runs = scored.combine(runs, np.broadcast_to(second, runs.shape))
    return senders, runs


def _words_at(at: Array, targets: Array) -> Readout:
    """A readout of the log-probabilities of words at token positions."""

    def read(output: ModelOutput) -> Float[Array, "batch targets"]:
        assert output.logits is not None
        chosen = jnp.take_along_axis(output.logits, at[:, :, None], axis=1)
        return readouts.log_probabilities(replace(output, logits=chosen), targets)

    return read


def patch_paths(
    model: PretrainedModel,
    batch: Mapping[str, Any],
    sources: Mapping[str, Any],
    receivers: Mapping[str, Iterable[Head]],
    readout: Readout,
    *,
    senders: Iterable[Head] | None = None,
    freeze_feed_forward: bool = False,
    report: Callable[[float, float], None] = lambda done, total: None,
) -> tuple[list[tuple[int, int]], Shaped[np.ndarray, "senders ..."]]:
    """Patch the paths from each sender to the receivers.

    Args:
        model: any model of bertjax.
        batch: the texts to run, from `bertjax.collate`.
        sources: texts of the same shape, whose outputs the senders get.
        receivers: the heads that read, by site: 'queries', 'keys' or 'values'.
        readout: a readout of `reference.run`.
        senders: heads in layers before the last receiver; None for all.
        freeze_feed_forward: freeze the outputs of feed-forward layers, too, so that only the direct path remains.
        report: called with the number of senders done and in total.

    Returns: the senders as layer and head, and the readout for each.

    Raises:
        InputError: there are no receivers, a site is unknown, or the sources have another shape.
        OverrideError: a head does not exist, or no receiver comes after a sender.
    """
    config = model.config
    checked = _check_receivers(receivers).items()
    named = {site: [parse_head(head, config) for head in heads] for site, heads in checked}
    last = max(layer for heads in named.values() for layer, _ in heads)
    heads = every_head(config)
    candidates = list(dict.fromkeys(heads if senders is None else [parse_head(head, config) for head in senders]))
    chosen = [head for head in candidates if head[0] < last]
    if senders is not None and len(chosen) < len(candidates):
        late = next(head for head in candidates if head[0] >= last)
        raise OverrideError(f"no receiver comes after head {late[0]}.{late[1]}: the last is in layer {last}")
    if not chosen:
        raise OverrideError(f"no head comes before the receivers, the last of which are in layer {last}")
    kept, sent = _outputs_of_runs(model, batch, sources, chosen, freeze_feed_forward)
    inputs = model.inputs(batch)
    found = []
    for number, sender in enumerate(chosen):
        between = model(batch, overrides=_with_one(kept, heads.index(sender), sent, number))
        parts = [patching.patched(config, site, receiving, between) for site, receiving in named.items()]
        found.append(np.asarray(reference.run(model, inputs, stack([overrides.combine(*parts)]), readout)[0]))
        report(number + 1.0, float(len(chosen)))
    return chosen, np.stack(found)


def _check_receivers(receivers: Mapping[str, Iterable[Head]]) -> dict[str, tuple[Head, ...]]:
    """The receivers by site. Raises `InputError` for unknown sites, and if there are no receivers."""
    arguments.check_instance(receivers, "receivers", Mapping, "a dict such as {'queries': ['3.7']}")
    for site in receivers:
        arguments.check_choice(site, "a receiver", RECEIVING)
    found = {site: tuple(heads) for site, heads in receivers.items()}
    if not found or not all(map(len, found.values())):
        raise InputError("name receivers: heads whose queries, keys or values receive")
    return found


def _outputs_of_runs(
    model: PretrainedModel,
    batch: Mapping[str, Any],
    sources: Mapping[str, Any],
    senders: Sequence[tuple[int, int]],
    freeze_feed_forward: bool,
) -> tuple[Overrides, Overrides]:
    """Overrides that freeze the outputs of all heads, and overrides with the senders' outputs on the sources.

    The first freezes all heads, also those before the sender, whose outputs do not change: so every sender is run by
    the same compiled program.
    """
    config = model.config
    unpatched, source = model(batch), model(sources)
    shapes = [list(output.last_hidden_state.shape[:2]) for output in (unpatched, source)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"sources must be as many texts of as many tokens as the batch's {shapes[0]}, found {shapes[1]}"
        )
    kept = overrides.patched_outputs(config, every_head(config), unpatched)
    if freeze_feed_forward:
        rest = patching.patched(config, "feed_forward_outputs", range(config.num_hidden_layers), unpatched)
        kept = overrides.combine(kept, rest)
    return kept, overrides.patched_outputs(config, senders, source)


def _with_one(kept: Overrides, entry: int, sent: Overrides, number: int) -> Overrides:
    """Replace an entry of an override by an entry of another one."""
    outputs = jax.tree.map(lambda entries, other: entries.at[entry].set(other[number]), kept.outputs, sent.outputs)
    return replace(kept, outputs=outputs)
