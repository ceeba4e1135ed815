"""How fast is the sweep compared with its rivals on the same data and the same machine?

Single-head ablations of a BERT with random weights (speed does not depend on them) on examples of real lengths:
MRPC's or QNLI's (validation sets, word pieces of bert-base-uncased, `lengths.json`). All rivals take turns in several
rounds, and the table shows medians. A rival's runs all cost the same, so some of them are timed and scaled to all;
"timed" says how many.

    python -m benchmarks.sweep                      BERT-base, 32 MRPC pairs; about 20 minutes on two CPU cores
    python -m benchmarks.sweep --json sweep.json --only torch_padded torch_sorted_sdpa
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import (
    FAMILY_SIZES,
    SIZES,
    TASKS,
    config_of,
    describe_machine,
    draw_lengths,
    matmul_rate,
    random_examples,
)
from benchmarks.rivals import (
    BATCH,
    PADDED,
    TORCH_BATCHES,
    Rival,
    make_checkpoint,
    torch_batches,
    torch_rival,
    vmap_rival,
)
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.data import Encoding, batches_by_length
from bertjax.engine import Blocks, make_plan, price, reference, sweep
from bertjax.interventions import Ablation, readouts, single_heads, to_overrides
from bertjax.machine import peak_resident
from bertjax.models import PretrainedModel

RIVALS = (
    "torch_padded",
    "torch_sorted_sdpa",
    "torch_sorted_sdpa_bfloat16",
    "plain",
    "torch_vmap",
    "engine_bfloat16",
)
# The engine's other forms of attention, timed on request (on a CPU the kernel is interpreted, which is slow).
FORMS = ("engine_fused", "engine_pallas", "engine_bfloat16_fused", "engine_bfloat16_pallas")


def forget_peak() -> None:
    """Reset the peak that `peak_resident` reports."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def engine_rival(name: str, model: PretrainedModel, examples: list[Encoding], attention: str = "explicit") -> Rival:
    """The engine: the whole sweep. Heads of the last two layers are enough to compile all steps."""
    ablations = single_heads(model.config)
    last_layers = [
        ablation for ablation in ablations if ablation.changes[0].layer >= model.config.num_hidden_layers - 2
    ]

    def run(subset: list[Ablation]) -> float:
        return sweep(model, examples, subset, readouts.logits, attention=attention).seconds

    return Rival(name, len(ablations) + 1, lambda: run(ablations), lambda: run(last_layers))


def reference_rival(model: PretrainedModel, examples: list[Encoding], timed: int) -> Rival:
    """Plain `jax.vmap`: a full forward pass for each run, batches sorted by length."""
    ablations = single_heads(model.config)
    overrides = [
        to_overrides(model.config, ablation) for ablation in ablations[:: max(1, len(ablations) // timed)][:timed]
    ]
    batches = [
        (indices, bertjax.collate([examples[index] for index in indices], length))
        for indices, length in batches_by_length([len(example) for example in examples], 8)
    ]

    def run() -> float:
        started = time.perf_counter()
        reference.sweep(model, batches, overrides, readouts.logits)
        return (time.perf_counter() - started) / (len(overrides) + 1) * (len(ablations) + 1)

    return Rival("plain jax.vmap, batch 8", len(overrides), run, run)


def best_attention(directory: Path) -> str:
    """SDPA where transformers has it for this family, else eager attention."""
    from transformers import AutoModelForSequenceClassification

    try:
        AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation="sdpa")
    except ValueError:  # the family's models have no other form
        return "eager"
    return "sdpa"


def make_rivals(names: list[str], directory: Path, examples: list[Encoding], timed: int) -> dict[str, Rival]:
    """All requested rivals, by key."""
    import torch

    model = bertjax.load(directory)
    runs = len(single_heads(model.config)) + 1
    rivals: dict[str, Rival] = {}
    rivals["engine"] = engine_rival("engine, float32", model, examples)
    if "torch_padded" in names:
        batches = torch_batches(examples, BATCH, PADDED)
        name = f"PyTorch eager, padded {PADDED}, batch {BATCH}"
        rivals["torch_padded"] = torch_rival(name, directory, "eager", torch.float32, batches, runs=runs, timed=timed)
    best = best_attention(directory)
    for key, dtype in (("torch_sorted_sdpa", torch.float32), ("torch_sorted_sdpa_bfloat16", torch.bfloat16)):
        for size in TORCH_BATCHES if key in names else ():
            label = f"PyTorch {best}, sorted, batch {size}" + (", bfloat16" if dtype == torch.bfloat16 else "")
            batches = torch_batches(examples, size, None)
            rivals[f"{key}_{size}"] = torch_rival(label, directory, best, dtype, batches, runs=runs, timed=timed)
    if "plain" in names:
        rivals["plain"] = reference_rival(model, examples, timed)
    if "torch_vmap" in names:
        rivals["torch_vmap"] = vmap_rival(directory, torch_batches(examples, 8, None), runs, timed)
    if any(name.startswith("engine_bfloat16") for name in names):
        coarse = bertjax.load(directory, dtype="bfloat16")
    if "engine_bfloat16" in names:
        rivals["engine_bfloat16"] = engine_rival("engine, bfloat16", coarse, examples)
    for key in (name for name in names if name in FORMS):
        form, half = key.split("_")[-1], "bfloat16" in key
        label = f"engine, {'bfloat16' if half else 'float32'}, {form} attention"
        rivals[key] = engine_rival(label, coarse if half else model, examples, form)
    return rivals


def time_all(rivals: dict[str, Rival], rounds: int, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Seconds of every rival in every round, after `warm_up`, and peak memory. Removes rivals that do not run."""
    results: dict[str, dict[str, Any]] = {key: {"seconds": [], "peak_bytes": None} for key in rivals}
    for number in range(rounds):
        for key, rival in list(rivals.items()):
            forget_peak()
            try:
                seconds = rival.run()
            except RuntimeError as error:  # raised by a PyTorch without that kind of vmap
                say(f"{rival.name} does not run: {str(error).splitlines()[0]}")
                del rivals[key], results[key]
                continue
            results[key]["seconds"].append(seconds)
            results[key]["peak_bytes"] = peak_resident()
            say(f"round {number + 1}: {rival.name}: {seconds:.3g} s")
    return results


def warm_up(rivals: dict[str, Rival]) -> float:
    """Compile and load. Returns the seconds that XLA spent compiling for the engine in float32."""
    compiling: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiling.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    rivals["engine"].warm()
    spent = sum(compiling)
    for rival in rivals.values():
        rival.warm()
    return spent


def ratios(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Each rival's median over the engine's; of several batch sizes, the fastest."""
    medians = {key: statistics.median(result["seconds"]) for key, result in results.items()}
    for key in ("torch_sorted_sdpa", "torch_sorted_sdpa_bfloat16"):
        variants = [medians.pop(f"{key}_{size}") for size in TORCH_BATCHES if f"{key}_{size}" in medians]
        if variants:
            medians[key] = min(variants)
    ours = medians.pop("engine")
    return {key: seconds / ours for key, seconds in medians.items()}


def show(
    console: Console,
    rivals: dict[str, Rival],
    results: dict[str, dict[str, Any]],
    necessary: float,
    rates: dict[str, float],
) -> None:
    """Print the table."""
    table = Table(title=describe_machine())
    for column in ("", "timed", "seconds", "spread", "ratio", "GFLOP/s", "share", "GB"):
        table.add_column(column, justify="left" if not column else "right")
    ours = statistics.median(results["engine"]["seconds"])
    for key, result in results.items():
        seconds = statistics.median(result["seconds"])
        spread = f"{min(result['seconds']):.3g}-{max(result['seconds']):.3g}"
        peak = "-" if result["peak_bytes"] is None else f"{result['peak_bytes'] / 1e9:.1f}"
        timed = f"{rivals[key].timed}x{len(result['seconds'])}"
        speed, rate = necessary / seconds, rates["bfloat16" if "bfloat16" in key else "float32"]
        speeds = (f"{speed / 1e9:.0f}", f"{speed / rate:.2f}") if key.startswith("engine") else ("", "")
        table.add_row(rivals[key].name, timed, f"{seconds:.3g}", spread, f"{seconds / ours:.2f}", *speeds, peak)
    console.print(table)
    console.print("timed: runs x rounds; ratio: to the engine in float32; GFLOP/s: of necessary work;")
    console.print("share: of the matmul rate in its dtype; GB: peak resident memory of the process meanwhile")


FORMATTER = argparse.RawDescriptionHelpFormatter


def main() -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=FORMATTER, allow_abbrev=False)
    parser.add_argument("--size", choices=[*SIZES, *FAMILY_SIZES], default="base")
    parser.add_argument("--lengths", choices=TASKS, default="mrpc")
    parser.add_argument("--length", type=positive, help="all examples this long, in place of real lengths")
    parser.add_argument("--examples", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--timed", type=positive, default=10, help="runs of a rival that are timed in each round")
    text = "compared with the engine in float32; its other forms of attention only where named here"
    parser.add_argument("--only", nargs="+", choices=RIVALS + FORMS, default=list(RIVALS), help=text)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    lengths = [options.length or drawn for drawn in draw_lengths(options.lengths, options.examples)]
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), config_of(options.size))
        model = bertjax.load(folder)
        examples = random_examples(lengths, model.config.vocab_size)
        rivals = make_rivals(options.only, Path(folder), examples, options.timed)
        compiling = warm_up(rivals)
        results = time_all(rivals, options.rounds, console.print)
    plan = make_plan(model.config, single_heads(model.config))
    blocks = Blocks(1, model.config.num_attention_heads)
    cost = price(plan, model.config, blocks, rows=1, row_length=1, lengths=lengths, cls_only=True)
    necessary = cost.necessary
    rates = {dtype: matmul_rate(dtype) for dtype in ("float32", "bfloat16")}
    show(console, rivals, results, necessary, rates)
    console.print(f"{options.examples} examples, {sum(lengths):,} tokens; necessary work {necessary / 1e12:.1f} TFLOP;")
    measured = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {dtype}" for dtype, rate in rates.items())
    console.print(f"matmul rate {measured}; compiling {compiling:.1f} s")
    if options.json:
        facts = {
            "machine": describe_machine(),
            "options": {**vars(options), "json": str(options.json)},
            "ratios": ratios(results),
        }
        measurements = {"necessary_flops": necessary, "matmul_flops_per_second": rates, "compile_seconds": compiling}
        write_json(options.json, {**facts, **measurements, "rivals": results})


if __name__ == "__main__":
    main()
