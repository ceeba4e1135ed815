"""Gates that are learned at several prices: sets of heads that are closed, for `bertjax prune`."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.attribution import GateLearner, Learning, probabilities_open
from bertjax.engine import describe_settings, open_journal
from bertjax.errors import SweepInterrupted
from bertjax.formatting import count_of
from bertjax.interventions import every_head
from bertjax.jobs import Job, Say, hash_of_inputs, hash_of_weights, versions
from bertjax.progress import Progress

OPEN = 0.5
"""A head is closed whose gate is open less often than this."""


@dataclass(frozen=True)
class LearnedGates:
    """Gates of all heads that were learned at one price.

    Args:
        strength: the price of all gates together, in losses of the model as it is.
        probabilities: that each head's gate is open; 0 where there is no head.
        heads: those that the model has.
    """

    strength: float
    probabilities: Float[np.ndarray, "layers heads"]
    heads: Sequence[tuple[int, int]]

    @property
    def closed(self) -> list[tuple[int, int]]:
        """The heads whose gates are closed."""
        return [head for head in self.heads if self.probabilities[head] < OPEN]

    @property
    def run(self) -> str | None:
        """What the set of closed heads is called; None where none is."""
        if not self.closed:
            return None
        return f"gates {self.strength:g}: {len(self.heads) - len(self.closed)}"

    def describe(self) -> dict[str, Any]:
        """These gates in a summary."""
        opens = {f"{layer}.{head}": float(self.probabilities[layer, head]) for layer, head in self.heads}
        left = len(self.heads) - len(self.closed)
        return {"strength": self.strength, "run": self.run, "left": left, "open": opens}


def learn_gates(
    job: Job,
    strengths: Sequence[float],
    learning: Learning,
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    *,
    say: Say,
    progress: Progress,
    journal: Path | None,
) -> list[LearnedGates]:
    """The gates at each price, of the job's examples: from the lowest price on, each going on from the one before.

    Args:
        journal: where what is learned is kept until the job is done; None keeps nothing.

    Raises:
        SweepInterrupted: Ctrl-C; what is learned is kept in the journal.
        OutputError: the journal cannot be written, or is of another job.
        InputError: a task without a loss, or without labels.
    """
    settings, heads = job.settings, [*every_head(job.model.config)]
    say(f"gates are learned at {count_of(len(strengths), 'price')}, in {count_of(learning.steps, 'step')} each")
    learner = GateLearner(job.model, job.encoded, settings.analysis.mode, learning, means=means, seed=settings.seed)
    found, last = list[LearnedGates](), None
    with contextlib.ExitStack() as opened:
        kept = None
        if journal is not None:
            facts, chosen = _facts(job, strengths, learning), settings.compared()
            kept = opened.enter_context(
                open_journal(journal, facts, {}, settings=chosen, replace=settings.analysis.overwrite)
            )
        for number, strength in enumerate(sorted(strengths)):
            log_a = None if kept is None else kept.read(number)

            def report(done: float, total: float, number: int = number) -> None:
                progress(number + done / total, float(len(strengths)))

            if log_a is None:
                try:
                    log_a = learner.learn(strength, start=last, progress=report)
                except KeyboardInterrupt as interruption:
                    raise SweepInterrupted(number, len(strengths)) from interruption
                if kept is not None:
                    kept.write(number, log_a)
            last = log_a
            found.append(LearnedGates(float(strength), probabilities_open(log_a), heads))
    return found


def _facts(job: Job, strengths: Sequence[float], learning: Learning) -> dict[str, str]:
    """All that learned gates depend on."""
    weights = hash_of_weights(job)
    return {
        "weights": weights[:16],
        "examples": job.examples.sha256[:16],
        "inputs": hash_of_inputs(job)[:16],
        "gates": f"{learning}, {[float(strength) for strength in sorted(strengths)]}",
        **describe_settings(job.settings.compared()),
        **versions(),
    }
