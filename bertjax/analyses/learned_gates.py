"""Learned gates, for `bertjax prune`: a gate closes if its head reduces the loss by less than its price.

A gate is a draw from the hard concrete distribution (Louizos et al. 2018, equations 10 and 11; for heads Voita et al.
2019, section 5), which is stretched beyond 0 and 1 and clipped, so that it can be exactly 0 and has a gradient between:

    u ~ U(0, 1),  s = sigmoid((log u - log(1 - u) + log a) / b),  g = min(1, max(0, s (z - y) + y))

The objective is the expected loss plus a price for each open gate, where by their equation 12
P(g > 0) = sigmoid(log a - b log(-y/z)). The parameters of the model are fixed: only log a of each head is learned, by
Adam (Kingma and Ba 2015). Each example of a step has its own draw of gates.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from bertjax.analyses.gradients import gate_passes
from bertjax.engine import GatePasses, describe_settings, open_journal
from bertjax.errors import InputError, SweepInterrupted
from bertjax.formatting import count_of
from bertjax.interventions import every_head
from bertjax.jobs import Job, Say, hash_of_inputs, hash_of_weights, versions
from bertjax.models import PretrainedModel
from bertjax.progress import Progress, part_of, silent
from bertjax.tasks import EncodedDataset

OPEN = 0.5
"""A head is removed if the probability that its gate is open is below this."""
LOWEST, HIGHEST, TEMPERATURE = -0.1, 1.1, 0.33  # y, z and b, as Louizos et al. 2018 chose them
AT_FIRST = 2.0  # log a: gates are open with a probability of 0.94
SMALLEST = 1e-6  # of a draw from U(0, 1), and of its distance from 1


@dataclass(frozen=True)
class Learning:
    """Options of the optimization of gates.

    Args:
        steps: the number of steps at each price.
        tokens: the approximate number of tokens of a step.
        rate: the initial learning rate of Adam, for log a; it decays to 0 as a cosine.
    """

    steps: int = 100
    tokens: int = 1024
    rate: float = 0.2


def probabilities_open(log_a: Float[np.ndarray, "*gates"]) -> Float[np.ndarray, "*gates"]:
    """P(g > 0) of gates: sigmoid(log a - b log(-y/z)), Louizos et al. 2018, equation 12.

    Args:
        log_a: the location of each gate.

    >>> probabilities_open(np.array([-10.0, 0.0, 10.0])).round(3).tolist()
    [0.0, 0.688, 1.0]
    """
    return np.asarray(_sigmoid(log_a - TEMPERATURE * np.log(-LOWEST / HIGHEST)))


def draw_gates(
    log_a: Float[np.ndarray, "*gates"], uniform: Float[np.ndarray, "*gates"]
) -> tuple[Float[np.ndarray, "*gates"], Float[np.ndarray, "*gates"]]:
    """Sample gates, with their derivatives with respect to log a.

    Args:
        log_a: the location of each gate.
        uniform: samples of U(0, 1).

    >>> draw_gates(np.array([0.0, -9.0]), np.array([0.5, 0.5]))[0].round(3).tolist()
    [0.5, 0.0]
    """
    shares = _sigmoid((np.log(uniform) - np.log1p(-uniform) + log_a) / TEMPERATURE)
    stretched = shares * (HIGHEST - LOWEST) + LOWEST
    slopes = (HIGHEST - LOWEST) * shares * (1 - shares) / TEMPERATURE
    return np.clip(stretched, 0, 1), np.where((stretched > 0) & (stretched < 1), slopes, 0.0)


def _sigmoid(values: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))


class GateLearner:
    """Learns the gates of a model's heads on a task.

    Args:
        model: the model, whose parameters do not change.
        encoded: the examples (`tasks.encode_examples`).
        mode: what replaces a head: 'zero', 'uniform', 'mean' or another mode that needs no source.
        learning: the settings of training.
        means: the heads' mean outputs, for mode 'mean'.
        seed: seed of the order of examples and of the gates.

    Attributes:
        base: the mean loss of the unchanged model.

    Raises:
        InputError: the task has no loss or no labels, or the mode needs sources.
    """

    def __init__(
        self,
        model: PretrainedModel,
        encoded: EncodedDataset,
        mode: str,
        learning: Learning,
        *,
        means: Float[np.ndarray, "layers heads head_dim"] | None = None,
        seed: int = 0,
    ):
        self.learning, self.seed = learning, seed
        self.heads = tuple(np.array(every_head(model.config)).T)
        self.shape = (model.config.num_hidden_layers, model.config.num_attention_heads)
        order = np.random.default_rng(seed).permutation(encoded.examples).tolist()
        self.passes: GatePasses = gate_passes(model, encoded, mode, means=means, tokens=learning.tokens, order=order)
        losses = [self.passes.run(number).losses for number in range(len(self.passes.groups))]
        known = np.concatenate(losses)
        if np.isnan(known).all():
            raise InputError("no example has a label: there is no loss that gates could be learned from")
        self.base = float(np.nanmean(known))

    def learn(
        self,
        strength: float,
        *,
        start: Float[np.ndarray, "layers heads"] | None = None,
        progress: Progress = silent,
    ) -> Float[np.ndarray, "layers heads"]:
        """Learn log a of each head at one price; -inf for heads that the checkpoint does not have.

        Args:
            strength: the price of all gates, in units of the loss of the unchanged model: an open gate costs
                `strength * base / heads`.
            start: initial log a; by default `AT_FIRST` for all heads.
            progress: called with the steps done and the total steps.
        """
        layers, heads = self.heads
        price, learning = strength * self.base / len(layers), self.learning
        rates = optax.cosine_decay_schedule(learning.rate, learning.steps)
        rng = np.random.default_rng([self.seed, 1])
        log_a = np.full(len(layers), AT_FIRST) if start is None else np.clip(start[layers, heads], -AT_FIRST, AT_FIRST)
        with jax.numpy_dtype_promotion("standard"):
            optimizer = optax.adam(rates)
            memory = optimizer.init(jnp.asarray(log_a))
        for step, group in enumerate(_batches(len(self.passes.groups), learning.steps, rng)):
            gradient = self._gradient(group, log_a, rng)
            is_open = probabilities_open(log_a)
            gradient += price * is_open * (1 - is_open)
            with jax.numpy_dtype_promotion("standard"):  # optax counts steps as integers and multiplies by them
                change, memory = optimizer.update(jnp.asarray(gradient), memory)
            log_a = log_a + np.asarray(change, np.float64)
            progress(float(step + 1), float(learning.steps))
        found = np.full(self.shape, -np.inf)
        found[layers, heads] = log_a
        return found

    def _gradient(
        self, group: int, log_a: Float[np.ndarray, " heads"], rng: np.random.Generator
    ) -> Float[np.ndarray, " heads"]:
        """The gradient of the mean loss of a group with respect to log a, at sampled gates."""
        layers, heads = self.heads
        examples = len(self.passes.groups[group])
        uniform = rng.uniform(SMALLEST, 1 - SMALLEST, (len(log_a), examples))
        drawn, slopes = draw_gates(np.broadcast_to(log_a[:, None], uniform.shape), uniform)
        gates = np.ones((*self.shape, examples))
        gates[layers, heads] = drawn
        found = self.passes.run(group, gates)
        gradients = (found.gradients[layers, heads] * slopes)[:, ~np.isnan(found.losses)]
        return gradients.mean(axis=1) if gradients.shape[1] else np.zeros(len(log_a))


def _batches(groups: int, steps: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield a group for each step: all groups in random order, then again in another order."""
    left: list[int] = []
    for _ in range(steps):
        left = left or rng.permutation(groups).tolist()
        yield left.pop()


@dataclass(frozen=True)
class LearnedGates:
    """Gates of all heads, learned at one price.

    Args:
        strength: the price of all gates together, in losses of the model as it is.
        probabilities: the probability that each head's gate is open; 0 where there is no head.
        heads: the heads that the model has.
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
        """The name of the set of closed heads; None if no head is closed."""
        if not self.closed:
            return None
        return f"gates {self.strength:g}: {len(self.heads) - len(self.closed)}"

    def describe(self) -> dict[str, Any]:
        """The entry of the summary."""
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
    """Learn gates at each price in ascending order; each price starts from the gates of the one before.

    Args:
        journal: the directory that keeps learned gates until the job is done; None keeps nothing.

    Raises:
        SweepInterrupted: Ctrl-C; learned gates are kept in the journal.
        OutputError: the journal cannot be written, or belongs to another job.
        InputError: the task has no loss or no labels.
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
            report = part_of(progress, number, 1.0, float(len(strengths)))
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
    """Everything that learned gates depend on."""
    weights = hash_of_weights(job)
    return {
        "weights": weights[:16],
        "examples": job.examples.sha256[:16],
        "inputs": hash_of_inputs(job)[:16],
        "gates": f"{learning}, {[float(strength) for strength in sorted(strengths)]}",
        **describe_settings(job.settings.compared()),
        **versions(),
    }
