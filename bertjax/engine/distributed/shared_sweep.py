"""Several processes, on one machine or many, share the examples of a sweep: `bertjax ablate --distributed`.

Each process tokenises its share of the examples (`shared_encodings`), and the examples are cut into shares of a sweep.
In each round every process sweeps one of these on its own devices, without a word to the others; then the outputs come
together, and process 0 writes them into the journal. A journal keeps its shares whatever the number of processes, so an
unfinished sweep resumes with any number of them. A process that ends ends all, within seconds (`watch`).
"""

import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from bertjax.data import Encoding
from bertjax.engine import run as engine
from bertjax.engine.distributed.one_machine import use_all_cores
from bertjax.engine.distributed.processes import agree, check_alike, gather, is_first
from bertjax.engine.distributed.shared_encodings import GivenEncodings, SharedEncodings
from bertjax.engine.fingerprint import facts_of
from bertjax.engine.journal import Journal, open_journal
from bertjax.engine.packing import first_fit, total_lengths
from bertjax.engine.plain import SweepResult
from bertjax.engine.sizes import Sizes, choose_length, choose_sizes, default_budget, memory_in_use
from bertjax.engine.sweep_input import SweepInput, make_sweep_input
from bertjax.errors import SweepInterrupted
from bertjax.interventions import Ablation, Readout
from bertjax.model import PretrainedModel
from bertjax.progress import Progress, silent

# Runs of an example that a share has at most: 32 and 512 examples with BERT-base's 144 heads and the base run.
RUNS_OF_SHARE = {"cpu": 32 * 145, "other": 512 * 145}


def sweep_distributed(
    model: PretrainedModel,
    encodings: SharedEncodings | Sequence[Encoding],
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: engine.Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    at: Int[np.ndarray, "examples wanted"] | None = None,
    targets: Shaped[np.ndarray, "examples ..."] | None = None,
    memory: int | None = None,
    attention: str = "auto",
    journal: str | Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> SweepResult | None:
    """`engine.sweep` on all processes, which give the same arguments; the outputs are process 0's.

    Args:
        encodings: the texts of which each process makes its share, or a text for each example, made by all; the other
            arguments are those of `engine.sweep`.

    Returns: what `engine.sweep` does; None on the other processes.

    Raises:
        ProcessLostError: another process has ended.
        SweepInterrupted: Ctrl-C; with a journal, what is finished is in it.
        BertjaxError: as `engine.sweep`; or the processes were given something else each.
    """
    started = time.monotonic()
    texts = encodings if isinstance(encodings, SharedEncodings) else GivenEncodings(encodings)
    sweep_input = make_sweep_input(
        model,
        texts.blanks(),
        ablations,
        readout,
        combine=combine,
        means=means,
        at=at,
        targets=targets,
        attention=attention,
    )
    facts = facts_of(sweep_input, f"{texts.examples}, {texts.digest}")
    check_alike({name: fact for name, fact in facts.items() if name != "device"})
    with contextlib.ExitStack() as opened:
        notes = None
        if journal is not None and is_first():
            facts |= {"shares": "of several processes"}
            begun = {"shares": _count_shares(sweep_input)}
            kept = open_journal(Path(journal), facts, begun, settings=settings, replace=replace_journal)
            notes = opened.enter_context(kept)
            if notes.finished:
                say(f"{notes.finished} finished shares in {notes.directory.parent}, resuming there")
        wanted = notes.sizes["shares"] if notes else _count_shares(sweep_input)
        shares = divide_examples(len(sweep_input.texts), int(agree(np.int32(wanted))))
        finished = _finished(sweep_input, shares, notes)
        missing = np.flatnonzero(agree(np.array([number not in finished for number in range(len(shares))]))).tolist()
        sizes = _choose_sizes(sweep_input, shares, memory or _own_memory())
        run = partial(_run_share, sweep_input, texts, sizes)
        try:
            _run_rounds(shares, missing, run, finished, notes, progress)
        except KeyboardInterrupt as interruption:
            if notes is None:
                raise
            raise SweepInterrupted(len(finished), len(shares)) from interruption
    if not is_first():
        return None
    outputs = _put_together(shares, finished)
    return SweepResult(*outputs, tuple(ablations), sweep_input.attention, time.monotonic() - started)


def _run_share(
    sweep_input: SweepInput, texts: SharedEncodings | GivenEncodings, sizes: Sizes, share: range, report: Progress
) -> np.ndarray:
    """Outputs of the base and of all ablations on a share of the examples."""
    positions, targets = sweep_input.positions, sweep_input.targets
    own = replace(
        sweep_input,
        texts=texts.texts_of(share),
        positions=None if positions is None else positions[np.array(share)],
        targets=None if targets is None else targets[np.array(share)],
    )
    base, outputs = engine.run_with_sizes(own, sizes, report)
    return np.concatenate([base[None], outputs])


def divide_examples(examples: int, shares: int) -> list[range]:
    """The examples of each share: every n-th one, so that all shares are alike.

    >>> divide_examples(7, 3)
    [range(0, 7, 3), range(1, 7, 3), range(2, 7, 3)]
    """
    return [range(number, examples, shares) for number in range(shares)]


def _count_shares(sweep_input: SweepInput) -> int:
    """How many shares a sweep that begins has: as many for each process, unless there are fewer examples."""
    processes, examples, runs = jax.process_count(), len(sweep_input.texts), len(sweep_input.plan.ablations) + 1
    size = max(1, RUNS_OF_SHARE.get(jax.default_backend(), RUNS_OF_SHARE["other"]) // runs)
    return min(examples, -(-examples // (size * processes)) * processes)


def _choose_sizes(sweep_input: SweepInput, shares: Sequence[range], memory: int) -> Sizes:
    """The sizes of all pieces, the same for all shares: each step is compiled once."""
    config = sweep_input.model.config
    lengths = total_lengths(sweep_input.texts)
    length = choose_length(config, lengths)
    largest = max(shares, key=lambda share: int(lengths[np.array(share)].sum()))
    sizes = choose_sizes(
        replace(sweep_input, texts=[sweep_input.texts[place] for place in largest]), row_length=length, memory=memory
    )
    most = max(len(row) for share in shares for row in first_fit(lengths[np.array(share)], length))
    return replace(sizes, places=most * len(sweep_input.texts[0]))


def _own_memory() -> int:
    """What this process may hold where those on the same machine take as much."""
    host = np.frombuffer(platform.node().encode().ljust(64)[:64], np.uint8).astype(np.int32)
    alike = int((gather(host) == host).all(-1).sum()) if jax.default_backend() == "cpu" else 1
    used = memory_in_use()
    return used + max(0, default_budget() - used) // alike


def _finished(sweep_input: SweepInput, shares: Sequence[range], notes: Journal | None) -> dict[int, np.ndarray]:
    """The outputs that the journal has, by share."""
    finished: dict[int, np.ndarray] = {}
    if notes is not None:
        for number, share in enumerate(shares):
            part = notes.read(number)
            if part is not None and part.shape[:2] == (len(sweep_input.plan.ablations) + 1, len(share)):
                finished[number] = part
    return finished


def _run_rounds(
    shares: Sequence[range],
    missing: Sequence[int],
    run: Callable[[range, Progress], np.ndarray],
    finished: dict[int, np.ndarray],
    notes: Journal | None,
    progress: Progress,
) -> None:
    """Deal the missing shares, a round of one for each process at a time; process 0 adds what they gave to `found`."""
    processes, longest = jax.process_count(), max(map(len, shares))
    done, total = sum(len(shares[number]) for number in finished), sum(map(len, shares))
    for start in range(0, len(missing), processes):
        dealt = missing[start : start + processes]
        own_share = shares[dealt[min(jax.process_index(), len(dealt) - 1)]]  # repeated by processes left over
        examples = sum(len(shares[number]) for number in dealt)

        def report(part: float, whole: float, before: int = done, count: int = examples) -> None:
            progress(before + count * part / max(whole, 1.0), float(total))

        own = run(own_share, report)
        room = [(0, 0), (0, longest - len(own_share)), *[(0, 0)] * (own.ndim - 2)]
        for number, part in zip(dealt, gather(np.pad(own, room)), strict=False):
            if is_first():
                finished[number] = part[:, : len(shares[number])]
                if notes is not None:
                    notes.write(number, finished[number])
        done += examples
    use_all_cores()
    progress(float(total), float(total))


def _put_together(shares: Sequence[range], outputs_of: Mapping[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Base outputs, and the ablations', in the order of the examples."""
    first = outputs_of[0]
    outputs = np.zeros((len(first), sum(map(len, shares)), *first.shape[2:]), first.dtype)
    for number, share in enumerate(shares):
        outputs[:, np.array(share)] = outputs_of[number]
    return outputs[0], outputs[1:]
