"""The cost of a sweep before it runs: FLOPs, bytes and seconds.

A product of `[m, k]` and `[k, n]` has 2 m k n FLOPs; element-wise operations are not counted. For each token, with E
the width of hidden states, F that of the feed-forward layer and S the number of tokens that the token is compared with:
queries, keys and values 6 E^2, attention scores and mixing 4 S E, output projection 2 E^2, feed-forward 4 E F, or 6 E F
if it is gated. Relative positions add 2 S' E for each of their two products, with S' different distances, and uniform
weights under a window 2 S E.

Time cannot be estimated from operation counts: each kind of step in the plan is counted, and run a few times.
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
from bertjax.engine.blocks import BlockRunner, Slot, Step, common_block, feed_forward_flops, fewest_children
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
    """The cost of a sweep.

    Args:
        flops: FLOPs of the sweep as the engine runs it, with padding.
        necessary: FLOPs of the same runs without padding: attention within texts, no empty slots.
        plain: FLOPs of a full forward pass for the base run and for each ablation, without padding.
        states: number of different runs after each layer.
        state_bytes: bytes of the hidden states of one run on all rows, in float32.
    """

    flops: float
    necessary: float
    plain: float
    states: tuple[int, ...]
    state_bytes: int


@dataclass(frozen=True)
class Work:
    """The number of steps of each kind in one layer, on one chunk.

    Args:
        full: full layers of one run.
        shared: attention of a parent for several children.
        forked: the rest of the layer for one of these children.
        last_full: `full` in a last layer that is computed only at [CLS].
        last_shared: `shared` in such a layer.
        last_forked: `forked` in such a layer.
    """

    full: int = 0
    shared: int = 0
    forked: int = 0
    last_full: int = 0
    last_shared: int = 0
    last_forked: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(first + second for first, second in zip(astuple(self), astuple(other), strict=True)))


def count_work(plan: Plan, config: BertConfig, runs: int, cls_only: bool) -> tuple[Work, ...]:
    """The work of each layer, in the engine's order.

    Args:
        runs: slots of a block.
        cls_only: whether the last layer is computed at [CLS], or at the tokens that the readout reads, and nowhere
            else.
    """
    layers = [Work()] * plan.layers
    for node in plan.nodes():
        for layer in range(node.layer + 1, plan.layers):
            at_cls = cls_only and layer == plan.layers - 1
            children = node.children.get(layer, ())
            waiting, groups = sum(child.shares_attention for child in children), []
            while waiting > fewest_children(config, runs, at_cls):
                groups.append(min(waiting, runs))
                waiting -= groups[-1]
            alone = len(children) - sum(groups)
            counts = int(node.ends(plan.layers) > layer) + alone, len(groups), sum(groups)
            layers[layer] += Work(0, 0, 0, *counts) if at_cls else Work(*counts)
    return tuple(layers)


def flops(
    work: Sequence[Work],
    config: BertConfig,
    tokens: int | float,
    spans: Sequence[float],
    examples: int | float,
    kinds: int = 1,
) -> float:
    """FLOPs of some work.

    Args:
        work: work of each layer.
        tokens: number of tokens that the layers are computed on.
        spans: number of tokens that each token is compared with, in each layer.
        examples: number of [CLS] tokens, or of other tokens that the readout reads.
        kinds: number of different replacements in the plan: a forked step projects each of them.
    """
    layers = zip(work, config.architecture.layers, spans, strict=True)
    return sum(_layer_flops(each, config, kind, tokens, span, (examples, kinds)) for each, kind, span in layers)


def _layer_flops(
    work: Work, config: BertConfig, kind: LayerKind, tokens: float, span: float, counts: tuple[int | float, int]
) -> float:
    """FLOPs of one layer's work; `counts` are `examples` and `kinds` of `flops`."""
    (examples, kinds), embed = counts, config.hidden_size
    heads = len(kind.heads)
    width = heads * config.head_dim  # of all heads together; less than `embed` if some are removed
    square, inner = 2 * embed * width, feed_forward_flops(config, kind)
    attention = 3 * square + (4 if kind.window is None else 6) * span * width + _distances(kind, span) * width
    total = tokens * (
        work.full * (attention + square + inner)
        + work.shared * (attention + (1 + kinds) * square)
        + work.forked * (inner + 2 * kinds * heads * embed)
    )
    # At [CLS]: queries through W_Q, values through W_V (in a fork those of uniform weights too), and for each head
    # every token's hidden state; then queries through W_K and hidden states once more, or the keys of all tokens.
    first = examples * (2 * square + 2 * heads * span * embed)
    if kind.rotation is None and (kind.relative is None or kind.relative.form == "bias"):
        first += examples * (square + 2 * heads * span * embed)
    else:
        first += tokens * square + examples * 2 * span * width
    total += (work.last_full + work.last_shared) * first + work.last_shared * examples * square
    return total + (work.last_full + work.last_forked) * examples * (square + inner)


def _distances(kind: LayerKind, span: float) -> float:
    """Twice the number of relative-position vectors that each token is multiplied with."""
    relative = kind.relative
    if relative is None or relative.form == "bias":
        return 0.0
    terms = relative.content_to_position + relative.position_to_content
    return 2.0 * terms * min(2 * span, 2 * relative.buckets)


def spans_of_texts(config: BertConfig, lengths: Sequence[int]) -> list[float]:
    """The mean number of tokens of its text that a token may attend to, in each layer."""
    real = float(sum(lengths))

    def seen(window: int | None) -> float:
        if window is None:
            return sum(length**2 for length in lengths) / real
        # Each token sees 2 w + 1 tokens, minus those beyond either end.
        beyond = ((min(window, length), length) for length in lengths)
        return sum(length * (2 * window + 1) - near * (2 * window + 1 - near) for near, length in beyond) / real

    by_window = {window: seen(window) for window in {kind.window for kind in config.architecture.layers}}
    return [by_window[kind.window] for kind in config.architecture.layers]


def spans_of_rows(config: BertConfig, row_length: int) -> list[float]:
    """The number of tokens of a row, padding included, that the engine compares each token with, in each layer."""
    return [float(packed_layer.compared_slots(row_length, kind)) for kind in config.architecture.layers]


def price(
    plan: Plan,
    config: BertConfig,
    blocks: Blocks,
    *,
    rows: int,
    row_length: int,
    lengths: Sequence[int],
    cls_only: bool,
    readings: int | None = None,
) -> Cost:
    """The cost of a plan on packed examples.

    Args:
        plan: the plan of the sweep.
        config: the config of the model.
        blocks: sizes of chunks and blocks.
        rows: number of rows of the packed examples.
        row_length: number of tokens of a row, with padding.
        lengths: number of tokens of each text.
        cls_only: whether the last layer is computed only at [CLS], as in `count_work`.
        readings: number of tokens that the readout reads; by default one for each text.
    """
    work, kinds = count_work(plan, config, blocks.runs, cls_only), max(1, len(plan.replacements()))
    real, examples = float(sum(lengths)), float(len(lengths) if readings is None else readings)
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


# Each kind of step is timed at least twice, at most `TIMED_STEPS` times, and for about `TIMED_SECONDS`.
TIMED_STEPS, TIMED_SECONDS = 5, 0.3
LONGEST_DRY_RUN = 20_000  # steps: counting them takes a second or two


@dataclass(frozen=True)
class Estimate:
    """The cost of a sweep on this device.

    Args:
        cost: FLOPs and number of different runs.
        ablations: number of ablations.
        duplicates: number of ablations that equal another one, so they are run once.
        examples: number of examples.
        tokens: number of tokens of all examples.
        rows: number of rows of the packed examples.
        row_length: number of tokens of a row, with padding.
        filled: share of the rows' tokens that are not padding.
        blocks: sizes of chunks and blocks.
        peak_bytes: upper bound of the memory of the process, or of an accelerator.
        output_bytes: bytes of all outputs.
        rate: FLOPs per second.
        seconds: time of all steps, without loading and compilation. Each kind of step was timed and counted.
        separate_seconds: time of a full forward pass for each ablation, at the same rate.
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
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples targets"] | None = None,
    targets: Any = None,
    spans: Sequence[Any] | None = None,
    memory: int | str | None = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
) -> Estimate:
    """Estimate the cost of `bertjax.sweep` with the same arguments. Runs each kind of step a few times.

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
        source_model=model,
        at=at,
        targets=targets,
        spans=spans,
        attention=attention,
        tokenizer=tokenizer,
    )
    return estimate_with_sizes(sweep_input, choose_sizes(sweep_input, memory=read_budget(memory)))


def estimate_with_sizes(sweep_input: SweepInput, sizes: Sizes) -> Estimate:
    """The cost of a sweep with known sizes (`choose_sizes`)."""
    config = sweep_input.model.config
    in_use = memory_in_use()  # before anything is compiled, which `runner_bytes` counts
    runner, texts, plan = make_runner(sweep_input, sizes), sweep_input.texts, sweep_input.plan
    packed = runner.packed
    lengths = [len(text) for texts_of_example in texts for text in texts_of_example]
    readings = int(sweep_input.readings.sum())
    cost = price(
        plan,
        config,
        sizes.blocks,
        rows=packed.rows,
        row_length=sizes.row_length,
        lengths=lengths,
        cls_only=runner.cls_only,
        readings=readings,
    )
    reading = (len(plan.ablations) + 1) * readings * reading_flops(sweep_input)
    cost = replace(cost, flops=cost.flops + reading, necessary=cost.necessary + reading, plain=cost.plain + reading)
    dry_run, complete = run_dry(runner, sizes.steps_of_part)
    alive = None if plan.source_sites or not complete else dry_run.most
    peak_bytes = in_use + runner_bytes(runner, sweep_input, alive) + 2 * sweep_input.output_bytes
    seconds = time_steps(dry_run)
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
    """FLOPs of one readout, counted by XLA. A masked-LM head has many."""
    model = sweep_input.model
    tokens = 1 if sweep_input.first_only or sweep_input.by_token else sweep_input.tokens
    hidden = jax.ShapeDtypeStruct((1, tokens, model.config.hidden_size), model.numerics.dtype)
    targets = sweep_input.targets
    shape = () if targets is None else (1, 1, *targets.shape[2:]) if sweep_input.by_token else (1, *targets.shape[1:])
    arguments = [] if targets is None else [jax.ShapeDtypeStruct(shape, targets.dtype)]

    def read(hidden: Array, *targets: Array) -> Array:
        keep = jnp.ones((1, 1, tokens), model.numerics.wide)
        return sweep_input.readout(model.finish(hidden, keep), *targets)

    counted = jax.jit(read).lower(hidden, *arguments).cost_analysis()
    return float((counted or {}).get("flops", 0.0))


# Makes a repeatable step from a block of hidden states.
Repeat = Callable[[Array], Callable[[], Any]]


class TimedDryRun(DryRun):
    """A dry run that also stores how to repeat each kind of step, to time it.

    Steps are of one kind if one compiled program computes them.

    Args:
        runner: computes the steps.
    """

    def __init__(self, runner: BlockRunner):
        super().__init__(runner.config, runner.plan, runner.blocks, cls_only=runner.cls_only)
        self.runner = runner
        self.kinds: dict[Hashable, Repeat] = {}
        self.counts: Counter[Hashable] = Counter()

    def multiply(self, times: int) -> None:
        """Multiply all counts."""
        self.counts = Counter({kind: times * count for kind, count in self.counts.items()})

    def _count(self, repeat: Repeat, *kind: Hashable) -> None:
        self.kinds.setdefault(kind, repeat)
        self.counts[kind] += 1

    def _layer_kind(self, layer: int) -> tuple[Hashable, ...]:
        """All that the programs of a layer depend on."""
        plan, kind = self.plan, self.config.architecture.layers[layer]
        return kind, self.is_cls_only(layer), plan.sites(layer), plan.changes_outputs(layer)

    def _picks(self, chunks: Sequence[int]) -> int:
        """The padded number of picks of each row; 0 if there are none."""
        runner = self.runner
        return 0 if runner.picks is None else int(runner.picked(runner.where(chunks))[0].shape[-1])

    def take_sources(self, chunks: range) -> None:
        """Count the run of all sources as one step."""
        if self.plan.source_sites:

            def take() -> Any:
                self.runner.take_sources(chunks)
                return self.runner.source_activations

            self._count(lambda block: take, "sources")

    def embed(self, chunks: Sequence[int]) -> Array:
        """Count one step."""
        self._count(lambda block: lambda: self.runner.embed(chunks), "embed")
        return super().embed(chunks)

    def apply_layer(self, layer: int, steps: Sequence[Step]) -> Array:
        """Count one step, which gathers its slots if they are in several blocks."""
        gathers, runs = int(common_block(steps) is None), self.blocks.runs

        def repeat(block: Array) -> Callable[[], Array]:
            # (Shifting the indices by one makes the runner gather, unless a block has a single slot.)
            slots = [replace(step.source, block=block, index=(n + gathers) % runs) for n, step in enumerate(steps)]
            moved = [replace(step, source=slot) for step, slot in zip(steps, slots, strict=True)]
            return lambda: self.runner.apply_layer(layer, moved)

        picks = self._picks([step.source.chunk for step in steps]) if self.is_cls_only(layer) else 0
        self._count(repeat, "layer", self._layer_kind(layer), gathers, any(step.activations for step in steps), picks)
        return super().apply_layer(layer, steps)

    def fork_from_parent(self, layer: int, parent: Slot, children: Sequence[Node]) -> Array:
        """Count one step."""
        picks = self._picks([parent.chunk]) if self.is_cls_only(layer) else 0
        self._count(
            lambda block: lambda: self.runner.fork_from_parent(layer, replace(parent, block=block), children),
            *("fork", self._layer_kind(layer), picks),
        )
        return super().fork_from_parent(layer, parent, children)

    def read(self, hidden: Array, chunks: Sequence[int]) -> Array:
        """Count one step."""
        root = self.plan.root

        def repeat(block: Array) -> Callable[[], Array]:
            steps = [Step(Slot(block, index, root, chunk), root, ()) for index, chunk in enumerate(chunks)]
            last = self.runner.apply_layer(self.layers - 1, steps)
            return lambda: self.runner.read(last, chunks)

        self._count(repeat, "read", self._picks(chunks))
        return super().read(hidden, chunks)


def run_dry(runner: BlockRunner, steps_of_part: int) -> tuple[TimedDryRun, bool]:
    """Count the steps of a sweep. Also returns whether a whole group of chunks was counted.

    If a plan has very many steps, one chunk is counted and multiplied, as if each chunk filled blocks by itself.
    """
    dry_run, runs = TimedDryRun(runner), runner.blocks.runs
    groups, rest = divmod(runner.chunks, runs)
    steps = sum(runner.plan.states()) / runs * (min(groups, 1) * runs + rest)
    if steps > LONGEST_DRY_RUN:
        dry_run.run(1, steps_of_part)
        dry_run.multiply(runner.chunks)
        return dry_run, False
    if groups:
        dry_run.run(runs, steps_of_part)
        dry_run.multiply(groups)
    if rest:
        dry_run.run(rest, steps_of_part)
    return dry_run, True


def time_steps(dry_run: TimedDryRun) -> float:
    """Seconds of all counted steps: each kind counts with the median of a few measurements."""
    block, total = dry_run.runner.embed([0]), 0.0
    for kind, repeat in sorted(dry_run.kinds.items(), key=lambda item: item[0] != ("sources",)):  # others need these
        step, seconds = repeat(block), list[float]()
        jax.block_until_ready(step())  # compiles it
        while len(seconds) < 2 or (len(seconds) < TIMED_STEPS and sum(seconds) < TIMED_SECONDS):
            started = time.perf_counter()
            jax.block_until_ready(step())
            seconds.append(time.perf_counter() - started)
        total += dry_run.counts[kind] * median(seconds)
    return total
