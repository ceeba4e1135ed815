"""The sweep: runs all ablations on all examples, computes shared hidden states once, and resumes if interrupted."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import arguments
from bertjax.data import Tokenizer
from bertjax.engine.blocks import BlockRunner
from bertjax.engine.journal import Journal, discard_journal, facts_of, open_journal, read_journal
from bertjax.engine.packing import pack
from bertjax.engine.plan import Node
from bertjax.engine.reference import SweepResult
from bertjax.engine.schedule import Part, Schedule, Throttle, run_base, share_parts, split_into_parts
from bertjax.engine.sizes import (
    AHEAD,
    STEPS_BYTES,
    Blocks,
    Sizes,
    choose_sizes,
    default_budget,
    memory_in_use,
    sweep_bytes,
)
from bertjax.engine.sweep_input import Combine, Examples, SweepInput, make_sweep_input
from bertjax.errors import InputError, OutputError, SweepInterrupted
from bertjax.formatting import count_of, format_bytes
from bertjax.interventions import Ablation, Readout
from bertjax.machine import read_budget
from bertjax.models import PretrainedModel
from bertjax.paths import user_path
from bertjax.progress import Progress, check_progress, shown

# Called with indices of ablations, indices of examples, and their outputs.
OnOutputs: TypeAlias = Callable[[list[int], np.ndarray, np.ndarray], None]
SLACK = 1.05  # the memory of a process before a sweep varies from start to start


def sweep(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    sources: Examples | None = None,
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples targets"] | None = None,
    targets: Any = None,
    spans: Sequence[Any] | None = None,
    source_model: PretrainedModel | None = None,
    row_length: int | None = None,
    one_per_row: bool = False,
    tokens_at_once: int | None = None,
    memory: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
    journal: str | Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | bool = True,
    say: Callable[[str], None] = lambda line: None,
    on_outputs: OnOutputs | None = None,
) -> SweepResult:
    """Run every ablation on every example.

    Args:
        model: any model of bertjax.
        examples: tokenised texts or pairs (`Tokenizer.encode`), a batch of a tokenizer, rows of token ids without
            padding, or strings. Each example is one of these, or a tuple of several that are run separately; the
            number must be the same for all examples.
        ablations: sets of heads (`bertjax.ablations`).
        readout: what to keep of each run: a function of `bertjax.readouts`, or any function of a `ModelOutput`. Define
            it once, since each new function is compiled again.
        combine: combines the readouts of an example's texts, `[examples, *readout]` each, into one output, such as a
            similarity.
        means: the heads' mean outputs, for mode 'mean'.
        sources: texts whose activations mode 'patched' uses: one for each example, of the same length.
        at: token positions of each example that the readout reads, from 0; the same number for all examples.
        targets: an array with an entry for each example, passed to the readout as its second argument: the ids of
            true words, for instance (`readouts.words`).
        spans: the span of each token of each example, -1 for none, for ablations that act at some spans (`Change.at`).
            If examples have several texts, a list for each text.
        source_model: the model whose parameters modes 'restored' and 'redrawn' use, of the same shape as `model`.
        row_length: tokens of a row; by default what costs least for these examples.
        one_per_row: do not pack several examples into a row.
        tokens_at_once: approximate number of tokens of a step; by default what is fastest on the device.
        memory: bytes, or a str such as '4GB', that the process (on a CPU) or each device may use; by default most of
            the free memory.
        devices: devices that share the examples; by default all of this process. The number of devices changes outputs
            by rounding.
        attention: 'explicit', 'fused' or 'pallas' (`Numerics.attention`). 'auto' is the model's form if that is not
            'explicit', else the fastest form on this device. A last layer that is computed only at [CLS] ignores it.
        tokenizer: tokenises strings, without truncation; by default the model's tokenizer.
        journal: a directory that stores finished parts. A killed sweep resumes from it, and its outputs have the same
            bytes as those of an uninterrupted one.
        replace_journal: discard the journal of another sweep in that directory.
        settings: the user's options, by name. An error about the journal of another sweep lists those that differ.
        progress: True shows a bar in terminals and notebooks. A function is called with the work done and the total
            work, in layers of one run on one chunk.
        say: called with a line when an unfinished sweep resumes.
        on_outputs: called with outputs as soon as they are computed: the indices of the ablations, -1 for the base
            run; the indices of the examples; and the outputs `[ablations, examples, *readout]`, read-only. Outputs that
            come from a journal, also those of the base run, are left out. An exception in this function, or in
            `progress`, ends the sweep and is raised.

    Raises:
        OutputError: the journal is of another sweep, in use, or cannot be written.
        SweepInterrupted: Ctrl-C; finished parts are in the journal, if there is one.
        OverrideError: a head that the model does not have, mode 'mean' without means, 'patched' without sources,
            'restored' without a source model, or changes at spans that do not exist.
        InputError: examples or a source model that do not fit the model, too little memory, or outputs that are not
            finite without any override.
    """
    started = time.monotonic()
    sweep_input = make_sweep_input(
        model,
        examples,
        ablations,
        readout,
        combine=combine,
        means=means,
        sources=sources,
        at=at,
        targets=targets,
        attention=attention,
        tokenizer=tokenizer,
        spans=spans,
        source_model=source_model,
    )
    _check_options(replace_journal, settings, progress, say, on_outputs)
    memory, devices = read_budget(memory), _check_devices(devices)
    sizes = choose_sizes(
        sweep_input,
        row_length=row_length,
        one_per_row=one_per_row,
        tokens_at_once=tokens_at_once,
        memory=memory,
        devices=devices,
    )
    runner = make_runner(sweep_input, sizes, devices)  # raises errors before a journal is touched
    with contextlib.ExitStack() as stack:
        opened = None
        if journal is not None:
            path, facts, chosen = user_path(journal, InputError), facts_of(sweep_input), sizes.to_dict()
            opened = stack.enter_context(open_journal(path, facts, chosen, settings=settings, replace=replace_journal))
            sizes, runner = _resume(sweep_input, opened, sizes, runner, memory, devices)
            if opened.finished:
                say(f"{opened.finished} finished parts in {opened.directory.parent}, resuming there")
        report = stack.enter_context(shown(progress, "sweep"))
        found = _Outputs(sweep_input, runner, opened, on_outputs)
        _run_parts(runner, _parts(sweep_input, runner, sizes), found, report)
    return SweepResult(*found.arrays(), tuple(ablations), sweep_input.attention, time.monotonic() - started)


def compile_sweep(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    row_length: int,
    tokens_at_once: int | None = None,
    check: Callable[[], None] = lambda: None,
    **inputs: Any,
) -> None:
    """Compile all programs that sweeps with `one_per_row` of any ablations in one mode can need.

    Args:
        model: the model.
        examples: texts of the lengths that later sweeps have.
        ablations: ablations in the mode of later sweeps.
        readout: computes the outputs of a text, as in `sweep`.
        row_length: number of tokens of a row, as in `sweep`.
        tokens_at_once: number of tokens of a block, as in `sweep`.
        check: called between layers; an exception ends the function.
        inputs: further inputs of `sweep`: `combine`, `means`, `at` and `targets`.
    """
    sweep_input = make_sweep_input(model, examples, ablations, readout, **inputs)
    sizes = choose_sizes(sweep_input, row_length=row_length, one_per_row=True, tokens_at_once=tokens_at_once)
    for _ in make_runner(sweep_input, sizes).compile_steps():
        check()


def sweep_shard(
    sweep_input: SweepInput,
    index: int,
    count: int,
    journal: Path,
    *,
    memory: int | None,
    replace_journal: bool,
    settings: Mapping[str, Any],
    progress: Progress,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Compute one shard of a sweep into a journal: some of the parts that `sweep` computes, in the same steps.

    Args:
        sweep_input: the sweep.
        index: index of the shard, from 1.
        count: number of shards.
        journal: directory of the journal, as in `sweep`.
        memory: maximum number of bytes, as in `sweep`; None for the default.
        replace_journal: whether to discard another sweep's journal, as in `sweep`.
        settings: the user's options by name, for errors, as in `sweep`.
        progress: called with the work done and the total work.
        say: called with a line for the user, as in `sweep`.

    Returns: the sizes of the sweep, which must be equal for all shards.

    Raises:
        OutputError, SweepInterrupted, InputError: as in `sweep`.
    """
    sizes = choose_sizes(sweep_input, memory=memory)
    runner, facts = make_runner(sweep_input, sizes), facts_of(sweep_input, f"{index}/{count}")
    with open_journal(journal, facts, sizes.to_dict(), settings=settings, replace=replace_journal) as opened:
        sizes, runner = _resume(sweep_input, opened, sizes, runner, memory, None)
        parts = _parts(sweep_input, runner, sizes)
        share = share_parts(parts, count)[index - 1]
        before = f", {opened.finished} of them finished before" if opened.finished else ""
        total = count_of(len(parts), "part")
        work = f"{len(share)} of {total}{before}" if share else f"nothing to do, of {total}"
        say(f"shard {index} of {count}: {work}")
        if share:
            _run_parts(runner, share, _Outputs(sweep_input, runner, opened), progress)
    return sizes.to_dict()


def merge_shards(sweep_input: SweepInput, journals: Sequence[Path]) -> SweepResult:
    """Join the journals of all shards, in their order, into the result of a sweep. Nothing is computed.

    Raises:
        OutputError: a part is missing or damaged, or a journal is of another sweep.
    """
    started, count, facts = time.monotonic(), len(journals), facts_of(sweep_input)
    shards = [
        read_journal(directory, facts | {"shard": f"{index}/{count}"}) for index, directory in enumerate(journals, 1)
    ]
    sizes = Sizes.from_dict(shards[0].sizes)
    runner = make_runner(sweep_input, sizes)
    shares = share_parts(_parts(sweep_input, runner, sizes), count)
    outputs = _Outputs(sweep_input, runner, None)
    for shard, share in zip(shards, shares, strict=True):
        outputs.journal = shard
        missing = [part.index for part in share if not outputs.restore(part)]
        if missing:
            raise OutputError(
                f"{shard.directory.parent} lacks part {missing[0]} of the sweep, or it is damaged: run its shard again"
            )
    base, values = outputs.arrays()
    return SweepResult(base, values, sweep_input.plan.ablations, sweep_input.attention, time.monotonic() - started)


def _check_options(
    replace_journal: bool,
    settings: Mapping[str, Any] | None,
    progress: Progress | bool,
    say: Callable[[str], None],
    on_outputs: OnOutputs | None,
) -> None:
    arguments.check_bool(replace_journal, "replace_journal")
    if settings is not None:
        arguments.check_instance(settings, "settings", Mapping, "a dict of options, by name")
    arguments.check_function(say, "say", "a function of a line")
    check_progress(progress)
    if on_outputs is not None:
        arguments.check_function(on_outputs, "on_outputs", "a function of ablations, examples and outputs")


def _check_devices(devices: Sequence[jax.Device] | None) -> tuple[jax.Device, ...] | None:
    if devices is None:
        return None
    checked = arguments.check_sequence(devices, "devices", "a list of JAX's devices (jax.devices())", jax.Device)
    if not checked:
        raise InputError("devices is an empty list: leave it out for all devices of this process")
    return checked


def _parts(sweep_input: SweepInput, runner: BlockRunner, sizes: Sizes) -> list[Part]:
    return split_into_parts(sweep_input.plan, runner.chunks, sizes.runs, sizes.steps_of_part * sizes.runs)


def make_runner(sweep_input: SweepInput, sizes: Sizes, devices: Sequence[jax.Device] | None = None) -> BlockRunner:
    """Pack the examples and their sources, and prepare the compiled steps.

    Raises:
        InputError: examples that do not fit the model or a row.
    """
    pack_texts = partial(pack, row_length=sizes.row_length, one_per_row=sizes.one_per_row)
    packed, sources = pack_texts(sweep_input.texts), None
    if sweep_input.sources is not None:
        sources = packed if sweep_input.sources is sweep_input.texts else pack_texts(sweep_input.sources)
    return BlockRunner(sweep_input, packed, sources, sizes.blocks, devices, one_per_row=sizes.one_per_row)


def _resume(
    sweep_input: SweepInput,
    journal: Journal,
    sizes: Sizes,
    runner: BlockRunner,
    memory: int | None,
    devices: Sequence[jax.Device] | None,
) -> tuple[Sizes, BlockRunner]:
    """The journal's sizes and a runner for them: those of the arguments, unless the sweep was begun with others.

    Raises:
        InputError: the journal's sizes need more memory than there is now.
    """
    if Sizes.from_dict(journal.sizes) == sizes:
        return sizes, runner
    sizes = Sizes.from_dict(journal.sizes)
    runner = make_runner(sweep_input, sizes, devices)
    if memory is None and runner.devices < sizes.devices:  # each has more rows now
        memory = default_budget()
    needed = memory_in_use() + 2 * sweep_input.output_bytes + runner_bytes(runner, sweep_input)
    if memory is not None and needed > SLACK * memory:
        raise InputError(
            f"the unfinished sweep in {journal.directory.parent} was begun with steps that need about "
            f"{format_bytes(needed)} of memory, but the budget is {format_bytes(memory)}: give more to resume"
        )
    return sizes, runner


def runner_bytes(runner: BlockRunner, sweep_input: SweepInput, alive: int | None = None) -> int:
    """`sweep_bytes` of a runner, for the whole process (on CPUs) or for each device.

    Args:
        alive: number of blocks of hidden states in memory; by default `most_blocks`.
    """
    packed, itemsize = runner.packed, np.dtype(sweep_input.model.numerics.dtype).itemsize
    readings = packed.starts if runner.picks is None else runner.picks.tokens
    row_bytes = sweep_input.row_bytes(readings.shape[1], AHEAD)
    source_blocks = sweep_input.plan.source_blocks
    of_device = Blocks(runner.blocks.rows // runner.devices, runner.blocks.runs)
    needed = sweep_bytes(
        runner.config,
        itemsize,
        packed.row_length,
        of_device,
        row_bytes,
        alive=alive,
        source_blocks=source_blocks,
        models=sweep_input.models,
    )
    if runner.picks is not None and jax.default_backend() == "cpu":
        needed += STEPS_BYTES * (len(runner.picks.widths(runner.blocks.rows)) - 1)
    return needed * (runner.devices if jax.default_backend() == "cpu" else 1)


def _run_parts(runner: BlockRunner, parts: Sequence[Part], outputs: "_Outputs", progress: Progress) -> None:
    """Run the parts that are not finished, group by group."""
    missing = [part for part in parts if not outputs.restore(part)]
    groups = {part.chunks: [other for other in missing if other.chunks == part.chunks] for part in missing}
    total = sum(part.work for part in parts) + runner.layers * sum(map(len, {part.chunks for part in parts}))
    ahead = sum(part.work for part in missing) + runner.layers * sum(map(len, groups))

    def advance(done: float, total: float) -> None:
        progress(done, total)
        outputs.settle_ready()

    throttle = Throttle(total - ahead, total, advance)
    schedule = Schedule(runner, outputs.add, throttle)
    try:
        for chunks, parts_of_group in groups.items():
            base = run_base(runner, chunks, throttle)
            for part in parts_of_group:
                schedule.run(part, base)
                outputs.finish(part)
        throttle.finish()
        outputs.drain()
    except KeyboardInterrupt as interruption:
        if outputs.journal is None:
            raise
        raise SweepInterrupted(len(parts) - len(missing) + outputs.finished, len(parts)) from interruption


class _Outputs:
    """The outputs of a sweep. Readouts and journals fill them in; finished parts are saved to the journal."""

    def __init__(
        self,
        sweep_input: SweepInput,
        runner: BlockRunner,
        journal: Journal | None,
        on_outputs: OnOutputs | None = None,
    ):
        self.size = (len(sweep_input.plan.ablations) + 1, len(sweep_input.texts))
        self.runner, self.combine, self.journal, self.on_outputs = runner, sweep_input.combine, journal, on_outputs
        self.waiting: deque[tuple[Array, list[tuple[Node, int]]] | Part] = deque()
        self.outputs: np.ndarray | None = None
        self.finished = 0

    def add(self, readouts: Array, runs: list[tuple[Node, int]]) -> None:
        """Add the readout of a block whose slots hold these runs on these chunks."""
        self.waiting.append((readouts, runs))
        while len(self.waiting) > AHEAD:  # the device has finished the oldest by then
            self._settle()

    def settle_ready(self) -> None:
        """Pass the readouts that the device has finished to `on_outputs`, if there is one, without waiting."""
        while self.on_outputs is not None and self.waiting and _is_ready(self.waiting[0]):
            self._settle()

    def finish(self, part: Part) -> None:
        """Mark a part as complete: all its readouts were added."""
        self.waiting.append(part)

    def drain(self) -> None:
        """Wait for all readouts."""
        while self.waiting:
            self._settle()

    def restore(self, part: Part) -> bool:
        """Read a part's outputs from the journal. Returns whether they are there."""
        saved = None if self.journal is None else self.journal.read(part.index)
        cells = self._cells(part)
        if saved is None or saved.shape[:2] != (cells[0].size, cells[1].size):
            return False
        self._allocate(saved.shape[2:], saved.dtype)[cells] = saved
        return True

    def _settle(self) -> None:
        """Wait for the oldest readout, or save a part whose readouts have all arrived."""
        oldest = self.waiting.popleft()
        if not isinstance(oldest, Part):
            self._fill(*oldest)
        elif self.journal is not None:
            self.journal.write(oldest.index, self._filled()[self._cells(oldest)])
            self.finished += 1

    def _fill(self, readouts: Array, runs: list[tuple[Node, int]]) -> None:
        values = np.asarray(readouts)
        for slot, (node, chunk) in enumerate(runs):
            members, where = self.runner.examples(chunk)
            texts = values[slot][where]
            outputs = self.combine(*np.moveaxis(texts, 1, 0))
            if -1 in node.ablations and not np.isfinite(outputs).all():
                if self.journal is not None:
                    discard_journal(self.journal.directory)
                raise InputError("the model's own outputs are not finite: look for NaN or infinity in its weights")
            cells = np.array(node.ablations)[:, None] + 1, members[None]
            self._allocate(outputs.shape[1:], outputs.dtype)[cells] = outputs
            if self.on_outputs is not None:
                self.on_outputs(
                    list(node.ablations), members, np.broadcast_to(outputs, (len(cells[0]), *outputs.shape))
                )

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array of all outputs, created once the shape of one is known."""
        if self.outputs is None:
            self.outputs = np.zeros((*self.size, *shape), dtype)
        return self.outputs

    def _cells(self, part: Part) -> tuple[np.ndarray, ...]:
        """The indices of a part's outputs."""
        members = np.unique(np.concatenate([self.runner.examples(chunk)[0] for chunk in part.chunks]))
        return np.ix_(np.array(part.ablations) + 1, members)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of the base run and of the ablations."""
        outputs = self._filled()
        return outputs[0], outputs[1:]

    def _filled(self) -> np.ndarray:
        assert self.outputs is not None  # a readout was added
        return self.outputs


def _is_ready(entry: "tuple[Array, list[tuple[Node, int]]] | Part") -> bool:
    """Whether an entry that waits can be settled at once."""
    return isinstance(entry, Part) or bool(entry[0].is_ready())  # type: ignore[attr-defined]  # (of every jax.Array)
