"""What a sweep costs before it runs: floating-point operations and bytes, from the plan and the sizes alone.

A product of `[m, k]` and `[k, n]` counts 2 m k n operations; element-wise work is left out. For each token, with E
the hidden states' width, F the feed-forward layer's and S the tokens that it is compared with: queries, keys and
values 6 E^2, scores and mixing 4 S E, output projection 2 E^2, feed-forward 4 E F, or 6 E F where it is gated.
Vectors of positions count 2 S' E for each of their two products, with S' the distances that there are; uniform
weights under a window 2 S E.

Seconds are told from no operations: each kind of step that the plan takes is run a few times, and counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bertjax.checkpoints import BertConfig, LayerKind
from bertjax.data import Tokenizer
from bertjax.engine.blocks import (
    BlockRunner,
    Slot,
    Step,
    branch_share,
    feed_forward_flops,
    is_worth_branching,
    whole_source,
)
from bertjax.engine.plan import Node, Plan
from bertjax.engine.run import make_runner, runner_bytes
from bertjax.engine.schedule import DryRun
from bertjax.engine.sizes import Blocks, Sizes, choose_sizes, memory_in_use
from bertjax.engine.sweep_input import Combine, Examples, SweepInput, make_sweep_input
from bertjax.interventions import Ablation, Readout
from bertjax.machine import read_budget
from bertjax.models import PretrainedModel, check_parameters, packed_layer


@dataclass(frozen=True)
class Cost:
    """The price of a sweep.

    Args:
        flops: of the sweep as the engine runs it, rows filled up and blocks too.
        necessary: of the same on real tokens alone: attention within examples, no slot empty.
        plain: of one full forward pass for each ablation and the base, on real tokens alone.
        states: runs with hidden states of their own after each layer.
        state_bytes: hidden states of one run on all rows, in float32.
    """

    flops: float
    necessary: float
    plain: float
    states: tuple[int, ...]
    state_bytes: int


@dataclass(frozen=True)
class Work:
    """How often a plan takes each kind of step in one layer, on one chunk of rows.

    Args:
        full: layers of one run alone, all tokens.
        shared: attention of a run from which several branch off, all tokens.
        branched: the rest of a layer of one run that branched off, all tokens.
        last_full, last_shared, last_branched: the same in a last layer that only [CLS] goes through.
    """

    full: int = 0
    shared: int = 0
    branched: int = 0
    last_full: int = 0
    last_shared: int = 0
    last_branched: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


def count_work(plan: Plan, config: BertConfig, runs: int, short_last: bool) -> tuple[Work, ...]:
    """Go through a plan as the engine does; the work of each layer.

    Args:
        runs: slots of a block.
        short_last: whether the last layer is computed at some tokens alone.
    """
    layers = [Work()] * plan.layers
    for node in plan.nodes():
        for layer in range(node.layer + 1, plan.layers):
            short = short_last and layer == plan.layers - 1
            waiting, groups = len(node.children.get(layer, ())), []
            while is_worth_branching(waiting, runs, short, branch_share(config)):
                groups.append(min(waiting, runs))
                waiting -= groups[-1]
            alone = int(node.ends(plan.layers) > layer) + waiting
            counts = alone, len(groups), sum(groups)
            layers[layer] += Work(0, 0, 0, *counts) if short else Work(*counts)
    return tuple(layers)


def flops(
    work: Sequence[Work],
    config: BertConfig,
    tokens: int | float,
    spans: Sequence[float],
    examples: int | float,
    kinds: int = 1,
) -> float:
    """Operations of some work.

    Args:
        work: of each layer.
        tokens: how many the layers are computed on.
        spans: tokens that each token is compared with, in each layer.
        examples: how many [CLS] there are.
        kinds: how many ways of overriding a plan mixes: a branch projects each once more.
    """
    layers = zip(work, config.architecture.layers, spans, strict=True)
    return sum(_layer_flops(each, config, kind, tokens, span, (examples, kinds)) for each, kind, span in layers)


def _layer_flops(
    work: Work, config: BertConfig, kind: LayerKind, tokens: float, span: float, counts: tuple[int | float, int]
) -> float:
    """Operations of one layer's work; `counts` are those of [CLS] and of ways of overriding."""
    (examples, kinds), embed = counts, config.hidden_size
    heads = len(kind.heads)
    width = heads * config.head_dim  # of all heads together; less than `embed` where some are removed
    square, inner = 2 * embed * width, feed_forward_flops(config, kind)
    attention = 3 * square + (4 if kind.window is None else 6) * span * width + _distances(kind, span) * width
    total = tokens * (
        work.full * (attention + square + inner)
        + work.shared * (attention + (1 + kinds) * square)
        + work.branched * (inner + 2 * kinds * heads * embed)
    )
    # At [CLS]: queries through W_Q, values through W_V (in a branch those of uniform weights too), and for each head
    # every token's hidden state; either queries through W_K and hidden states once more, or the keys of all tokens.
    first = examples * (2 * square + 2 * heads * span * embed)
    if kind.rotation is None and (kind.relative is None or kind.relative.form == "bias"):
        first += examples * (square + 2 * heads * span * embed)
    else:
        first += tokens * square + examples * 2 * span * width
    total += (work.last_full + work.last_shared) * first + work.last_shared * examples * square
    return total + (work.last_full + work.last_branched) * examples * (square + inner)


def _distances(kind: LayerKind, span: float) -> float:
    """Twice the vectors of positions with which each token is multiplied."""
    relative = kind.relative
    if relative is None or relative.form == "bias":
        return 0.0
    terms = relative.content_to_position + relative.position_to_content
    return 2.0 * terms * min(2 * span, 2 * relative.buckets)


def spans_of_texts(config: BertConfig, lengths: Sequence[int]) -> list[float]:
    """Tokens of its own text that a token may attend to, on average, in each layer."""
    real = float(sum(lengths))

    def seen(window: int | None) -> float:
        if window is None:
            return sum(length**2 for length in lengths) / real
        # Each token sees 2 w + 1, but for those that are beyond an end.
        beyond = ((min(window, length), length) for length in lengths)
        return sum(length * (2 * window + 1) - near * (2 * window + 1 - near) for near, length in beyond) / real

    by_window = {window: seen(window) for window in {kind.window for kind in config.architecture.layers}}
    return [by_window[kind.window] for kind in config.architecture.layers]


def spans_of_rows(config: BertConfig, row_length: int) -> list[float]:
    """Slots with which the engine compares each slot, in each layer."""
    return [float(packed_layer.compared_slots(row_length, kind)) for kind in config.architecture.layers]


def price(
    plan: Plan,
    config: BertConfig,
    blocks: Blocks,
    *,
    rows: int,
    row_length: int,
    lengths: Sequence[int],
    short_last: bool,
    asked: int | None = None,
) -> Cost:
    """The cost of a plan on packed examples.

    Args:
        blocks: how large the pieces are.
        rows, row_length: of the packing.
        lengths: tokens of each text.
        short_last: whether the last layer is computed at some tokens alone.
        asked: how many these are; by default one of each text.
    """
    work, kinds = count_work(plan, config, blocks.runs, short_last), max(1, len(plan.replacements()))
    real, examples = float(sum(lengths)), float(len(lengths) if asked is None else asked)
    spans = spans_of_texts(config, lengths)
    full = (Work(full=1),) * plan.layers
    slots = float(-(-rows // blocks.rows) * blocks.rows * row_length)
    return Cost(
        flops(work, config, slots, spans_of_rows(config, row_length), examples, kinds),
        flops(work, config, real, spans, examples, 0),
        (len(plan.ablations) + 1) * flops(full, config, real, spans, examples),
        tuple(plan.states()),
        int(slots) * config.hidden_size * 4,
    )


# Each kind of step is timed at least twice, and until so many seconds have gone by, at most so often.
TIMED_STEPS, TIMED_SECONDS = 5, 0.3
LONGEST_REHEARSAL = 20_000  # steps that are gone through to count them: a second or two


@dataclass(frozen=True)
class Estimate:
    """The price of a sweep on this device.

    Args:
        cost: operations, and runs with hidden states of their own.
        ablations, duplicates: how many sets there are, and how many of them are run with another.
        examples, tokens: how many.
        rows, row_length, filled: of the packing; the share of slots that hold a token.
        blocks: the pieces in which it is computed.
        peak_bytes: resident memory (of the process, or of an accelerator) at most.
        output_bytes: of all outputs.
        rate: operations a second of all steps.
        seconds: what the sweep takes: each kind of step was timed, and counted. Compilation and loading come on top.
        separate_seconds: what a full pass for each ablation would take at the same rate.
    """

    cost: Cost
    ablations: int
    duplicates: int
    examples: int
    tokens: int
    rows: int
    row_length: int
    filled: float
    blocks: Blocks
    peak_bytes: int
    output_bytes: int
    rate: float
    seconds: float
    separate_seconds: float


def plan_sweep(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples wanted"] | None = None,
    targets: Any = None,
    spans: Sequence[Any] | None = None,
    memory: int | str | None = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
) -> Estimate:
    """What `bertjax.sweep` would cost with the same arguments; each kind of step is run a few times.

    Raises:
        InputError: examples that do not fit the model, or too little memory.
        OverrideError: a head that the model does not have.
    """
    check_parameters(model)
    zeros = np.zeros((model.config.num_hidden_layers, model.config.num_attention_heads, model.config.head_dim))
    sweep_input = make_sweep_input(
        model,
        examples,
        ablations,
        readout,
        combine=combine,
        means=zeros.astype(model.numerics.wide),
        sources=examples,
        at=at,
        targets=targets,
        spans=spans,
        attention=attention,
        tokenizer=tokenizer,
    )
    return estimate_with_sizes(sweep_input, choose_sizes(sweep_input, memory=read_budget(memory)))


def estimate_with_sizes(sweep_input: SweepInput, sizes: Sizes) -> Estimate:
    """The price of a sweep in pieces of known sizes (`choose_sizes`)."""
    config = sweep_input.model.config
    in_use = memory_in_use()  # before anything is compiled, which `runner_bytes` counts
    runner, texts, plan = make_runner(sweep_input, sizes), sweep_input.texts, sweep_input.plan
    packed = runner.packed
    lengths, asked = [len(text) for several in texts for text in several], int(sweep_input.asked.sum())
    cost = price(
        plan,
        config,
        sizes.blocks,
        rows=packed.rows,
        row_length=sizes.row_length,
        lengths=lengths,
        short_last=runner.short_last,
        asked=asked,
    )
    reading = (len(plan.ablations) + 1) * asked * reading_flops(sweep_input)
    cost = replace(cost, flops=cost.flops + reading, necessary=cost.necessary + reading, plain=cost.plain + reading)
    trial, whole = dry_run(runner, sizes.steps_of_part)
    alive = None if plan.source_sites or not whole else trial.most
    peak_bytes = in_use + runner_bytes(runner, sweep_input, alive) + 2 * sweep_input.output_bytes
    seconds = time_steps(trial)
    rate = cost.flops / seconds
    return Estimate(
        cost=cost,
        ablations=len(plan.ablations),
        duplicates=plan.duplicates,
        examples=len(texts),
        tokens=sum(lengths),
        rows=packed.rows,
        row_length=sizes.row_length,
        filled=packed.filled,
        blocks=sizes.blocks,
        peak_bytes=peak_bytes,
        output_bytes=sweep_input.output_bytes,
        rate=rate,
        seconds=seconds,
        separate_seconds=cost.plain / rate,
    )


def reading_flops(sweep_input: SweepInput) -> float:
    """Operations of the readout once, as XLA counts them: those of a masked-LM head are many."""
    model, alone = sweep_input.model, sweep_input.first_only or sweep_input.by_token
    tokens = 1 if alone else sweep_input.tokens
    hidden = jax.ShapeDtypeStruct((1, tokens, model.config.hidden_size), model.numerics.dtype)
    targets = sweep_input.targets
    shape = () if targets is None else (1, 1, *targets.shape[2:]) if sweep_input.by_token else (1, *targets.shape[1:])
    given = [] if targets is None else [jax.ShapeDtypeStruct(shape, targets.dtype)]

    def read(hidden: Array, *given: Array) -> Array:
        keep = jnp.ones((1, 1, tokens), model.numerics.wide)
        return sweep_input.readout(model.finish(hidden, keep), *given)

    counted = jax.jit(read).lower(hidden, *given).cost_analysis()
    return float((counted or {}).get("flops", 0.0))


# From a block of hidden states, a step that can be taken any number of times.
Again = Callable[[Array], Callable[[], Any]]


class TimedDryRun(DryRun):
    """A rehearsal that remembers of each kind of step how to take it again, so that it can be timed.

    Steps are of one kind where the same compiled program takes them.

    Args:
        runner: whose steps they are.
    """

    def __init__(self, runner: BlockRunner):
        super().__init__(runner.config, runner.plan, runner.blocks, short_last=runner.short_last)
        self.runner = runner
        self.kinds: dict[Hashable, Again] = {}
        self.counts: Counter[Hashable] = Counter()

    def multiply(self, times: int) -> None:
        """As if all that was gone through had been gone through so many times."""
        self.counts = Counter({kind: times * count for kind, count in self.counts.items()})

    def _note(self, again: Again, *kind: Hashable) -> None:
        self.kinds.setdefault(kind, again)
        self.counts[kind] += 1

    def _layer(self, layer: int) -> tuple[Hashable, ...]:
        """What the programs of a layer depend on."""
        plan, kind = self.plan, self.config.architecture.layers[layer]
        return kind, self.is_short(layer), plan.sites(layer), plan.changes_outputs(layer)

    def _picked(self, chunks: Sequence[int]) -> int:
        """At how many tokens of a row the readout is taken, where it is taken at some."""
        runner = self.runner
        return 0 if runner.picks is None else int(runner.picked(runner.where(chunks))[0].shape[-1])

    def take_sources(self, chunks: range) -> None:
        """All that sources need."""
        if self.plan.source_sites:

            def take() -> Any:
                self.runner.take_sources(chunks)
                return self.runner.source_activations

            self._note(lambda block: take, "sources")

    def embed(self, chunks: Sequence[int]) -> Array:
        """One step."""
        self._note(lambda block: lambda: self.runner.embed(chunks), "embed")
        return super().embed(chunks)

    def advance(self, layer: int, several: Sequence[Step]) -> Array:
        """One step, and that which gathers its slots if they lie in several blocks."""
        gathered, runs = int(whole_source(several) is None), self.blocks.runs

        def again(block: Array) -> Callable[[], Array]:
            # (In a block of one slot, or of other numbers, nothing needs to be gathered.)
            slots = [replace(step.source, block=block, index=(n + gathered) % runs) for n, step in enumerate(several)]
            steps = [replace(step, source=slot) for step, slot in zip(several, slots, strict=True)]
            return lambda: self.runner.advance(layer, steps)

        asked = self._picked([step.source.chunk for step in several]) if self.is_short(layer) else 0
        self._note(again, "advance", self._layer(layer), gathered, any(step.changes for step in several), asked)
        return super().advance(layer, several)

    def branch(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """One step."""
        asked = self._picked([parent.chunk]) if self.is_short(layer) else 0
        self._note(
            lambda block: lambda: self.runner.branch(layer, replace(parent, block=block), children),
            *("branch", self._layer(layer), asked),
        )
        return super().branch(layer, parent, children)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """One step."""
        root = self.plan.root

        def again(block: Array) -> Callable[[], Array]:
            steps = [Step(Slot(block, index, root, chunk), root, ()) for index, chunk in enumerate(chunks)]
            last = self.runner.advance(self.layers - 1, steps)
            return lambda: self.runner.read(last, chunks)

        self._note(again, "read", self._picked(chunks))
        return super().read(hidden, chunks)


def dry_run(runner: BlockRunner, steps_of_part: int) -> tuple[TimedDryRun, bool]:
    """Count the steps of a whole sweep, and whether all of a group of chunks was gone through.

    Of a plan that takes very many steps one chunk is, as if the blocks of each were filled by its own runs alone.
    """
    trial, runs = TimedDryRun(runner), runner.blocks.runs
    whole, rest = divmod(runner.chunks, runs)
    steps = sum(runner.plan.states()) / runs * (min(whole, 1) * runs + rest)
    if steps > LONGEST_REHEARSAL:
        trial.run(1, steps_of_part)
        trial.multiply(runner.chunks)
        return trial, False
    if whole:
        trial.run(runs, steps_of_part)
        trial.multiply(whole)
    if rest:
        trial.run(rest, steps_of_part)
    return trial, True


def time_steps(trial: TimedDryRun) -> float:
    """Seconds of all steps that were counted: of each kind the median of a few."""
    block, total = trial.runner.embed([0]), 0.0
    for kind, again in sorted(trial.kinds.items(), key=lambda item: item[0] != ("sources",)):  # who are asked by others
        step, seconds = again(block), list[float]()
        jax.block_until_ready(step())  # compiles it
        while len(seconds) < 2 or (len(seconds) < TIMED_STEPS and sum(seconds) < TIMED_SECONDS):
            started = time.perf_counter()
            jax.block_until_ready(step())
            seconds.append(time.perf_counter() - started)
        total += trial.counts[kind] * median(seconds)
    return total
