"""The sweep: all ablations on all examples, each hidden state computed once, nothing lost when interrupted."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax import arguments
from bertjax.data import Tokenizer
from bertjax.engine.blocks import BlockRunner
from bertjax.engine.journal import Journal, facts_of, open_journal, read_journal
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

# What a process holds before a sweep varies a little from start to start.
SLACK = 1.05


def sweep(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    sources: Examples | None = None,
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples wanted"] | None = None,
    targets: Any = None,
    spans: Sequence[Any] | None = None,
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
) -> SweepResult:
    """Run every ablation on every example.

    Args:
        model: any model of bertjax.
        examples: tokenised texts or pairs (`Tokenizer.encode`), a batch as tokenizers make it, rows of token ids (all
            real), or plain texts; for each example one, or a tuple of several that are run apart, the same number
            everywhere.
        ablations: sets of heads (`bertjax.ablations`).
        readout: what to keep of each run (`bertjax.readouts`, or any function of a `ModelOutput`); a function defined
            once, since each new one is compiled again.
        combine: makes one output of the readouts of an example's texts, `[examples, *readout]` each: a similarity.
        means: the heads' outputs that mode 'mean' puts in place of their own.
        sources: texts of which mode 'patched' puts head outputs, or what else it names, in place of the examples': as
            many, of equal lengths.
        at: for each example the tokens, counted from 0, at which the readout is taken: the same number everywhere.
        targets: an array with an entry for each example, which the readout takes as its second argument: the ids of
            true words, say (`readouts.words`).
        spans: for each example the span of each token, -1 for none, where ablations act at some of them (`Change.at`);
            of several texts those of each.
        row_length: slots of a row; default what costs least for these examples.
        one_per_row: do not pack several examples into a row.
        tokens_at_once: about how many tokens a step holds; default what suits the device.
        memory: bytes, or '4GB', that the process (on a CPU) or each device may hold; default most of what is free.
        devices: share the examples; default all of this process. Outputs differ by rounding from those of another
            number of devices.
        attention: 'explicit', 'fused' or 'pallas' (`Numerics.attention`); 'auto' is the model's own where that is not
            explicit, else what is fastest on this device. A last layer at [CLS] alone has a form of its own.
        tokenizer: for plain texts among examples and sources, by default the model's own; it cuts none of them.
        journal: a directory in which finished parts are kept, from which a killed sweep resumes;
            its outputs are then the same bytes as those of one that was not.
        replace_journal: discard the journal of another sweep that is there.
        settings: what the user chose, by name; the error about another sweep's journal names those that differ.
        progress: True shows a bar in terminals and notebooks; or a function called with the work done and the total
            in all, in layers of one run on one chunk of rows.
        say: called with a line when an unfinished sweep resumes.

    Raises:
        OutputError: the journal is of another sweep, in use, or cannot be written.
        SweepInterrupted: Ctrl-C; with a journal, what is finished is in it.
        OverrideError: a head that the model does not have, mode 'mean' without means, 'patched' without sources, spans
            that are not given.
        InputError: examples that do not fit the model, too little memory, or outputs that are not finite without
            any override.
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
    )
    _check_reporting(replace_journal, settings, progress, say)
    memory, devices = read_budget(memory), _devices(devices)
    sizes = choose_sizes(
        sweep_input,
        row_length=row_length,
        one_per_row=one_per_row,
        tokens_at_once=tokens_at_once,
        memory=memory,
        devices=devices,
    )
    runner = make_runner(sweep_input, sizes, devices)  # what cannot run is refused before a journal is touched
    with contextlib.ExitStack() as opened:
        notes = None
        if journal is not None:
            path, facts = user_path(journal, InputError), facts_of(sweep_input)
            opened_journal = open_journal(path, facts, sizes.to_dict(), settings=settings, replace=replace_journal)
            notes = opened.enter_context(opened_journal)
            if Sizes.from_dict(notes.sizes) != sizes:
                sizes, runner = _begun(sweep_input, notes, memory, devices)
            if notes.finished:
                say(f"{notes.finished} finished parts in {notes.directory.parent}, resuming there")
        report = opened.enter_context(shown(progress, "sweep"))
        base, outputs = _run(sweep_input, runner, sizes, notes, report)
    return SweepResult(base, outputs, tuple(ablations), sweep_input.attention, time.monotonic() - started)


def sweep_shard(
    sweep_input: SweepInput,
    number: int,
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
        number: of the shard, from 1.
        count: of all shards.
        journal, memory, replace_journal, settings, progress, say: as in `sweep`.

    Returns: the sizes of the sweep's pieces, which must be equal for all shards.

    Raises:
        OutputError, SweepInterrupted, InputError: as in `sweep`.
    """
    sizes = choose_sizes(sweep_input, memory=memory)
    runner, facts = make_runner(sweep_input, sizes), facts_of(sweep_input, f"{number}/{count}")
    with open_journal(journal, facts, sizes.to_dict(), settings=settings, replace=replace_journal) as notes:
        if Sizes.from_dict(notes.sizes) != sizes:
            sizes, runner = _begun(sweep_input, notes, memory, None)
        parts = _parts(sweep_input, runner, sizes)
        own = share_parts(parts, count)[number - 1]
        before = f", {notes.finished} of them finished before" if notes.finished else ""
        whole = count_of(len(parts), "part")
        say(f"shard {number} of {count}: {f'{len(own)} of {whole}{before}' if own else f'nothing to do, of {whole}'}")
        if own:
            _run_parts(runner, own, _Outputs(sweep_input, runner, notes), progress)
    return sizes.to_dict()


def merge_shards(sweep_input: SweepInput, journals: Sequence[Path]) -> SweepResult:
    """The result of a sweep from the journals of its shards, in their order; nothing is computed.

    Raises:
        OutputError: a part is missing or damaged, or a journal is of another sweep.
    """
    started, count, facts = time.monotonic(), len(journals), facts_of(sweep_input)
    notes = [
        read_journal(directory, facts | {"shard": f"{number}/{count}"}) for number, directory in enumerate(journals, 1)
    ]
    sizes = Sizes.from_dict(notes[0].sizes)
    runner = make_runner(sweep_input, sizes)
    shares = share_parts(_parts(sweep_input, runner, sizes), count)
    outputs = _Outputs(sweep_input, runner, None)
    for own, share in zip(notes, shares, strict=True):
        outputs.journal = own
        lacking = [part.number for part in share if not outputs.restore(part)]
        if lacking:
            raise OutputError(
                f"{own.directory.parent} lacks part {lacking[0]} of the sweep, or it is damaged: run its shard again"
            )
    base, values = outputs.arrays()
    return SweepResult(base, values, sweep_input.plan.ablations, sweep_input.attention, time.monotonic() - started)


def _check_reporting(
    replace_journal: bool,
    settings: Mapping[str, Any] | None,
    progress: Progress | bool,
    say: Callable[[str], None],
) -> None:
    """Raise `InputError` where what a sweep tells, and to whom, is not of the right kind."""
    arguments.check_bool(replace_journal, "replace_journal")
    if settings is not None:
        arguments.check_instance(settings, "settings", Mapping, "a dict of what was chosen, by name")
    arguments.check_function(say, "say", "a function of a line")
    check_progress(progress)


def _devices(devices: Sequence[jax.Device] | None) -> tuple[jax.Device, ...] | None:
    if devices is None:
        return None
    checked = arguments.check_sequence(devices, "devices", "a list of JAX's devices (jax.devices())", jax.Device)
    if not checked:
        raise InputError("devices is an empty list: leave it out for all devices of this process")
    return checked


def _run(
    sweep_input: SweepInput, runner: BlockRunner, sizes: Sizes, journal: Journal | None, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    parts = _parts(sweep_input, runner, sizes)
    outputs = _Outputs(sweep_input, runner, journal)
    _run_parts(runner, parts, outputs, progress)
    return outputs.arrays()


def _parts(sweep_input: SweepInput, runner: BlockRunner, sizes: Sizes) -> list[Part]:
    return split_into_parts(sweep_input.plan, runner.chunks, sizes.runs, sizes.steps_of_part * sizes.runs)


def make_runner(sweep_input: SweepInput, sizes: Sizes, devices: Sequence[jax.Device] | None = None) -> BlockRunner:
    """Pack the examples, and their sources alike, and make the steps ready.

    Raises:
        InputError: examples that do not fit the model or a row.
    """
    packing = partial(pack, row_length=sizes.row_length, one_per_row=sizes.one_per_row)
    packed, given = packing(sweep_input.texts), sweep_input.sources
    sources = packed if given is sweep_input.texts or given is None else packing(given)
    return BlockRunner(sweep_input, packed, None if given is None else sources, sizes.blocks, devices)


def _begun(
    sweep_input: SweepInput, journal: Journal, memory: int | None, devices: Sequence[jax.Device] | None
) -> tuple[Sizes, BlockRunner]:
    """The sizes and steps with which a sweep was begun.

    Raises:
        InputError: they need more memory than there may be now.
    """
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
    """Bytes that a sweep takes at most beside the model and the outputs, of the process (on CPUs) or of each device.

    Args:
        alive: blocks of hidden states that there are at a time; None for the most that there may be.
    """
    packed, itemsize = runner.packed, np.dtype(sweep_input.model.numerics.dtype).itemsize
    asked = packed.starts if runner.picks is None else runner.picks.tokens
    row_bytes = sweep_input.row_bytes(asked.shape[1], AHEAD)
    source_blocks = sweep_input.plan.source_blocks
    own_blocks = Blocks(runner.blocks.rows // runner.devices, runner.blocks.runs)
    needed = sweep_bytes(
        runner.config, itemsize, packed.row_length, own_blocks, row_bytes, alive=alive, source_blocks=source_blocks
    )
    if runner.picks is not None and jax.default_backend() == "cpu":
        needed += STEPS_BYTES * (len(runner.picks.widths(runner.blocks.rows)) - 1)
    return needed * (runner.devices if jax.default_backend() == "cpu" else 1)


def _run_parts(runner: BlockRunner, parts: Sequence[Part], outputs: "_Outputs", progress: Progress) -> None:
    """Run what is not finished yet, group by group."""
    missing = [part for part in parts if not outputs.restore(part)]
    groups = {part.chunks: [other for other in missing if other.chunks == part.chunks] for part in missing}
    total = sum(part.work for part in parts) + runner.layers * sum(map(len, {part.chunks for part in parts}))
    ahead = sum(part.work for part in missing) + runner.layers * sum(map(len, groups))
    pace = Throttle(total - ahead, total, progress)
    schedule = Schedule(runner, outputs.add, pace)
    try:
        for chunks, several in groups.items():
            base = run_base(runner, chunks, pace)
            for part in several:
                schedule.run(part, base)
                outputs.finish(part)
        pace.finish()
        outputs.drain()
    except KeyboardInterrupt as interruption:
        if outputs.journal is None:
            raise
        raise SweepInterrupted(len(parts) - len(missing) + outputs.finished, len(parts)) from interruption


class _Outputs:
    """The outputs, filled in as readouts arrive or from a journal, and written down part by part."""

    def __init__(self, sweep_input: SweepInput, runner: BlockRunner, journal: Journal | None):
        self.size = (len(sweep_input.plan.ablations) + 1, len(sweep_input.texts))
        self.runner, self.combine, self.journal = runner, sweep_input.combine, journal
        self.waiting: deque[tuple[Array, list[tuple[Node, int]]] | Part] = deque()
        self.outputs: np.ndarray | None = None
        self.finished = 0

    def add(self, readouts: Array, runs: list[tuple[Node, int]]) -> None:
        """A readout of a block whose slots are these runs on these chunks."""
        self.waiting.append((readouts, runs))
        while len(self.waiting) > AHEAD:  # by then the device has come that far
            self._settle()

    def finish(self, part: Part) -> None:
        """Every readout of this part was added."""
        self.waiting.append(part)

    def drain(self) -> None:
        """Wait for all readouts."""
        while self.waiting:
            self._settle()

    def restore(self, part: Part) -> bool:
        """Take a part's outputs from the journal; whether they are there."""
        saved = None if self.journal is None else self.journal.read(part.number)
        places = self._places(part)
        if saved is None or saved.shape[:2] != (places[0].size, places[1].size):
            return False
        self._room(saved.shape[2:], saved.dtype)[places] = saved
        return True

    def _settle(self) -> None:
        """Wait for the oldest readout, or write down the part that is complete by now."""
        oldest = self.waiting.popleft()
        if not isinstance(oldest, Part):
            self._fill(*oldest)
        elif self.journal is not None:
            self.journal.write(oldest.number, self._filled()[self._places(oldest)])
            self.finished += 1

    def _fill(self, readouts: Array, runs: list[tuple[Node, int]]) -> None:
        values = np.asarray(readouts)
        for slot, (node, chunk) in enumerate(runs):
            members, where = self.runner.examples(chunk)
            texts = values[slot][where]
            outputs = self.combine(*np.moveaxis(texts, 1, 0))
            if -1 in node.ablations and not np.isfinite(outputs).all():
                if self.journal is not None:
                    self.journal.discard()
                raise InputError("the model's own outputs are not finite: look for NaN or infinity in its weights")
            self._room(outputs.shape[1:], outputs.dtype)[np.array(node.ablations)[:, None] + 1, members[None]] = outputs

    def _room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array of all outputs, made when the shape of one is known."""
        if self.outputs is None:
            self.outputs = np.zeros((*self.size, *shape), dtype)
        return self.outputs

    def _places(self, part: Part) -> tuple[np.ndarray, ...]:
        """Where a part's outputs are among all."""
        members = np.unique(np.concatenate([self.runner.examples(chunk)[0] for chunk in part.chunks]))
        return np.ix_(np.array(part.ablations) + 1, members)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of the base run and of the ablations."""
        outputs = self._filled()
        return outputs[0], outputs[1:]

    def _filled(self) -> np.ndarray:
        assert self.outputs is not None  # a readout was added
        return self.outputs
