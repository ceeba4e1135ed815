"""Minimal pairs and masked words compared with a loop in PyTorch: how fast, and within the planned memory?

A sample of minimal pairs (pseudo-log-likelihoods) and of texts with 15 % of their words masked, all heads of a BERT
of base size with random weights, zero. The engine sweeps all heads in a process of its own; of PyTorch's loop (a pass
for each head) some passes are timed and scaled to all, since they cost the same. PyTorch has the best of several batch
sizes, with eager attention or SDPA. Both take turns; seconds are medians. What they give is compared as well.

    python -m benchmarks.tasks --data BLIMP --lines WIKITEXT.txt       about 20 minutes on two CPU cores
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import SIZES, config_of, describe_machine, matmul_rate
from benchmarks.tasks_engine import Job, Swept, ask_plan, serve, started
from bertjax.atomic_files import write_json
from bertjax.checkpoints import DEFAULT_MODEL, locate
from bertjax.cli import positive
from bertjax.data import Tokenizer
from bertjax.engine import Blocks, make_plan, price
from bertjax.tasks import EncodedDataset, TokenEncodings, load_examples

Head = tuple[int, int]
PAIRS, LINES = "minimal-pairs", "mlm"
WORDS_OF_PAIR = 8


@dataclass
class Measured:
    """What came out for a task.

    Args:
        task: its name.
        examples, texts, tokens, words: how many, those of masked copies too.
        batches: seconds of a run of PyTorch's loops, by name.
        loop: the best of them.
        engine, torch: seconds of all runs in each round.
        processor: seconds of all threads, the engine's and PyTorch's in each round.
        rates: FLOP/s of a large matrix product in each round.
        necessary: operations.
        planned, held: bytes, as planned, and at most.
        difference: the largest of an output, over its size where that is above 1.
    """

    task: str
    examples: int
    texts: int
    tokens: int
    words: int
    necessary: float
    planned: int
    batches: dict[str, float] = field(default_factory=dict)
    loop: str = ""
    engine: list[float] = field(default_factory=list)
    torch: list[float] = field(default_factory=list)
    processor: list[tuple[float, float]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    held: int = 0
    difference: float = 0.0

    @property
    def ratio(self) -> float:
        """PyTorch's seconds over the engine's."""
        return statistics.median(self.torch) / statistics.median(self.engine)

    @property
    def processor_ratio(self) -> float:
        """The same of the seconds of all threads."""
        ours, theirs = zip(*self.processor, strict=True)
        return statistics.median(theirs) / statistics.median(ours)

    @property
    def speed(self) -> float:
        """Necessary operations a second."""
        return self.necessary / statistics.median(self.engine)

    @property
    def share(self) -> float:
        """Of the matrix rate."""
        return self.speed / statistics.median(self.rates)


def make_checkpoint(directory: Path, size: str) -> None:
    """A random BERT with a masked-LM head, and the default model's tokenizer, which has BERT's vocabulary."""
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**config_of(size).to_dict())).save_pretrained(directory)
    Tokenizer.from_pretrained(locate(DEFAULT_MODEL)).save_pretrained(directory)


def make_pairs(path: Path) -> Path:
    """Sentences as long as those of BLiMP, the bad ones with two words exchanged."""
    rows = []
    for text in load_examples(LINES).first:
        good = text.split()[:WORDS_OF_PAIR]
        if len(good) == WORDS_OF_PAIR:
            bad = [*good[:3], good[4], good[3], *good[5:]]
            rows.append(json.dumps({"good": " ".join(good), "bad": " ".join(bad)}))
    path.write_text("\n".join(rows) + "\n")
    return path


def necessary_work(model: Any, encoded: EncodedDataset, job: Job) -> float:
    """Operations of all runs on real tokens, and the vocabulary's scores at target tokens only."""
    plan, config = make_plan(model.config, job.ablations(model)), model.config
    lengths = encoded.lengths.tolist()
    blocks = Blocks(1, config.num_attention_heads)
    assert isinstance(encoded, TokenEncodings)
    words = len(encoded.positions)
    priced = price(plan, config, blocks, rows=1, row_length=1, lengths=lengths, cls_only=True, readings=words)
    word = 2 * config.hidden_size * (config.hidden_size + config.vocab_size)
    return priced.necessary + (len(plan.ablations) + 1) * words * word


def measure(job: Job, options: argparse.Namespace, say: Callable[[str], None]) -> Measured:
    """Time the engine and PyTorch's best loop in turn."""
    # Imported here: the engine's process imports this file too, and is to hold no PyTorch.
    from benchmarks.tasks_torch import choose_loop, make_loops

    model = bertjax.load(job.directory)
    encoded = job.encode(model)
    heads = [ablation.changes[0] for ablation in job.ablations(model)]
    timed = [(change.layer, change.head) for change in heads[:: max(1, len(heads) // options.timed)]][: options.timed]
    measured = Measured(
        job.task,
        encoded.examples,
        len(encoded.encodings),
        int(encoded.lengths.sum()),
        len(encoded.positions) if isinstance(encoded, TokenEncodings) else 0,
        necessary_work(model, encoded, job),
        ask_plan(job).peak_bytes,
    )
    loop, measured.batches = choose_loop(make_loops(job.directory, encoded, options.batches))
    measured.loop = loop.name
    say(f"{job.task}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in measured.batches.items()))
    with started(serve, job) as pipe:
        pipe.recv()
        for number in range(options.rounds):
            pipe.send(True)
            swept = pipe.recv()
            measured.engine.append(swept.seconds)
            seconds, processor = (spent * (len(heads) + 1) for spent in loop.time(timed))
            measured.torch.append(seconds)
            measured.processor.append((swept.processor, processor))
            measured.rates.append(matmul_rate(repeats=5))
            say(f"round {number + 1}: engine {measured.engine[-1]:.1f} s, PyTorch {measured.torch[-1]:.1f} s")
        pipe.send(False)
        measured.held = pipe.recv()
    sized = encoded.form.sized
    swept = replace(swept, base=swept.base[..., :sized], outputs=swept.outputs[..., :sized])
    measured.difference = compare(
        swept, lambda head: loop.run(head)[..., :sized], timed, model.config.num_attention_heads
    )
    return measured


def compare(swept: Swept, run: Callable[[Head | None], np.ndarray], timed: Sequence[Head], heads: int) -> float:
    """The largest difference of an output of the base and the timed heads, over its size where that is above 1.

    Of words log-probabilities are compared, no ranks: logits that are equal but for rounding change places.
    """
    differences = []
    for head in (None, *timed):
        ours = swept.base if head is None else swept.outputs[head[0] * heads + head[1]]
        theirs = run(head)
        differences.append(np.abs(ours - theirs) / np.maximum(1, np.abs(theirs)))
    return float(np.max(differences))


def show(console: Console, several: list[Measured]) -> None:
    """Print the table."""
    table = Table(title=describe_machine())
    for column in (
        "task",
        "texts",
        "engine s",
        "PyTorch s",
        "ratio",
        "of threads",
        "GFLOP/s",
        "share",
        "planned GB",
        "held GB",
        "diff",
    ):
        table.add_column(column, justify="right")
    for one in several:
        table.add_row(
            f"{one.examples} {one.task}",
            f"{one.texts} ({one.tokens:,} tokens)",
            _spread(one.engine),
            _spread(one.torch),
            f"{one.ratio:.2f}",
            f"{one.processor_ratio:.2f}",
            f"{one.speed / 1e9:.0f}",
            f"{one.share:.2f}",
            f"{one.planned / 1e9:.2f}",
            f"{one.held / 1e9:.2f}",
            f"{one.difference:.0e}",
        )
    console.print(table)
    for one in several:
        rate = statistics.median(one.rates) / 1e9
        console.print(f"{one.task}: {one.loop}; {one.necessary / 1e12:.2f} TFLOP necessary; {rate:.0f} GFLOP/s at best")
    console.print(
        "engine, PyTorch: medians (lowest to highest); ratio: PyTorch's over the engine's; of threads: that of"
    )
    console.print(
        "the seconds of all threads; GFLOP/s: of necessary work; share: of the matrix rate; diff: the largest"
    )
    console.print("of an output, over its size above 1")


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tasks", nargs="+", choices=(PAIRS, LINES), default=[PAIRS, LINES])
    parser.add_argument("--data", type=Path, help="minimal pairs; default made-up ones")
    parser.add_argument("--lines", type=Path, help="texts whose words are masked; default those of qnli-sample")
    parser.add_argument("--pairs", type=positive, default=20, help="how many pairs are drawn")
    parser.add_argument("--texts", type=positive, default=20, help="how many texts are drawn")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--model", type=Path, help="a checkpoint with a masked-LM head, in place of random weights")
    parser.add_argument("--batches", type=positive, nargs="+", default=[8, 32, 128], help="PyTorch's batch sizes")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--timed", type=positive, default=4, help="PyTorch's passes that are timed in each round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    """Print the table, and write it as JSON."""
    options = parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    with tempfile.TemporaryDirectory() as folder:
        directory = options.model or Path(folder)
        if options.model is None:
            make_checkpoint(directory, options.size)
        jobs = {
            PAIRS: Job(directory, PAIRS, options.data or make_pairs(Path(folder) / "pairs.jsonl"), options.pairs),
            LINES: Job(directory, LINES, options.lines, options.texts),
        }
        several = [measure(jobs[task], options, console.print) for task in options.tasks]
    show(console, several)
    if options.json:
        facts = [
            {**asdict(one), "ratio": one.ratio, "processor_ratio": one.processor_ratio, "share": one.share}
            for one in several
        ]
        write_json(options.json, {"machine": describe_machine(), "tasks": facts})


if __name__ == "__main__":
    main()
