"""Path patching: what one head's output does through what later heads read, and through nothing else.

Of a clean and a corrupted text: in a run of the first, a head, the sender, gives what it gives on the other, while all
heads of later layers give what they gave; feed-forward layers and norms are computed anew, or the former frozen too.
What the receivers, queries, keys or values of later heads, are in that run is put into a last run of the first text, in
which all else is computed as it is. Source: Wang et al. 2023, who compute feed-forward layers anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.engine import plain
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import Head, Readout, every_head, overrides, parse_head, patching, stack
from bertjax.model import Overrides, PretrainedModel

# The places at which a head can receive what another one sends.
RECEIVING = ("queries", "keys", "values")


def patch_paths(
    model: PretrainedModel,
    batch: Mapping[str, Any],
    donors: Mapping[str, Any],
    receivers: Mapping[str, Iterable[Head]],
    readout: Readout,
    *,
    senders: Iterable[Head] | None = None,
    freeze_feed_forward: bool = False,
    report: Callable[[float, float], None] = lambda done, total: None,
) -> tuple[list[tuple[int, int]], Shaped[np.ndarray, "senders ..."]]:
    """Patch the paths from each of several heads to others.

    Args:
        model: any.
        batch: the texts that are run, as `bertjax.collate` makes it.
        donors: as many texts of as many tokens, from which senders take their outputs.
        receivers: of 'queries', 'keys' and 'values' the heads that read what changes.
        readout: what to keep of the last run, as `plain.run` takes it.
        senders: heads of earlier layers than the last receiver's; None for all of them.
        freeze_feed_forward: whether what feed-forward layers add stays too, so that only the straight path is left.
        report: called with how many senders are done, and how many there are.

    Returns: the senders as layer and head, and for each what the readout gives.

    Raises:
        InputError: no receivers, other places than queries, keys and values, or donors of another shape.
        OverrideError: a head that does not exist, a sender that no receiver comes after, or no sender at all.
    """
    config = model.config
    named = _parse_receivers(config, receivers)
    last = max(layer for heads in named.values() for layer, _ in heads)
    heads = every_head(config)
    named_senders = heads if senders is None else (parse_head(head, config) for head in senders)
    asked = list(dict.fromkeys(named_senders))
    chosen = [head for head in asked if head[0] < last]
    if senders is not None and len(chosen) < len(asked):
        late = next(head for head in asked if head[0] >= last)
        raise OverrideError(f"no receiver comes after head {late[0]}.{late[1]}: the last is in layer {last}")
    if not chosen:
        raise OverrideError(f"no head comes before the receivers, the last of which are in layer {last}")
    kept, sent = _outputs_of_runs(model, batch, donors, chosen, freeze_feed_forward)
    inputs = model.inputs(batch)
    found = []
    for number, sender in enumerate(chosen):
        between = model(batch, overrides=_with_one(kept, heads.index(sender), sent, number))
        parts = [patching.patched(config, place, receiving, between) for place, receiving in named.items()]
        found.append(np.asarray(plain.run(model, inputs, stack([overrides.combine(*parts)]), readout)[0]))
        report(number + 1.0, float(len(chosen)))
    return chosen, np.stack(found)


def _parse_receivers(
    config: BertConfig, receivers: Mapping[str, Iterable[Head]]
) -> Mapping[str, Sequence[tuple[int, int]]]:
    """Heads that receive, by place, as layer and head. Raises an error where they cannot."""
    arguments.instance(receivers, "receivers", Mapping, "a dict from 'queries', 'keys' or 'values' to heads")
    named = {place: [parse_head(head, config) for head in heads] for place, heads in receivers.items()}
    for place, heads in named.items():
        arguments.one_of(place, "a receiver", RECEIVING)
        if not heads:
            raise InputError(f"no head is named whose {place} receive")
    if not named:
        raise InputError("name receivers: heads whose queries, keys or values receive")
    return named


def _outputs_of_runs(
    model: PretrainedModel,
    batch: Mapping[str, Any],
    donors: Mapping[str, Any],
    senders: Sequence[tuple[int, int]],
    freeze_feed_forward: bool,
) -> tuple[Overrides, Overrides]:
    """What makes all heads give what they give on their own texts, and what makes the senders give what donors do.

    The first is of all heads, whichever sends: those before it and beside it would give the same anyway, up to
    rounding, and so every sender is run by the same program.
    """
    config = model.config
    own, donor = model(batch), model(donors)
    shapes = [list(output.last_hidden_state.shape[:2]) for output in (own, donor)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"donors must be as many texts of as many tokens as the batch's {shapes[0]}, found {shapes[1]}"
        )
    kept = overrides.patched_outputs(config, every_head(config), own)
    if freeze_feed_forward:
        rest = patching.patched(config, "feed_forward_outputs", range(config.num_hidden_layers), own)
        kept = overrides.combine(kept, rest)
    return kept, overrides.patched_outputs(config, senders, donor)


def _with_one(kept: Overrides, place: int, sent: Overrides, number: int) -> Overrides:
    """An override whose entry at a place is that of a number in another one."""
    outputs = jax.tree.map(lambda entries, other: entries.at[place].set(other[number]), kept.outputs, sent.outputs)
    return replace(kept, outputs=outputs)
