"""Does everything compile for TPU, and how fast would it be at best? Needs no TPU, only the compiler (`libtpu`).

Compiles ahead of time for a topology of chips: the model's forward pass, every step of the sweep, a step of
fine-tuning, and the Pallas kernels, with the examples split over all chips. For each: compiled, or the compiler's
error; FLOPs and bytes of one chip as the compiler counts them; its memory against the chip's; and the roofline time,
the larger of FLOPs over peak and bytes over bandwidth. Then the predicted time of all single heads on MRPC's 408
validation pairs, from how often the engine's own schedule takes each step. This ignores the host and assumes that the
chip reaches its peaks: a bound, not a measurement. (Of a Pallas kernel the compiler counts what the kernel says of
itself: that of a sweep's attention says it, the other kernels do not.)

    make test-tpu-aot                                                   the environment, and a small model, in minutes
    .venv-tpu/bin/python -m benchmarks.tpu_compile --topology v5e:2x2   BERT-base and BERT-large

`libtpu` is large and prints messages at start-up: keep it in its own environment. Peaks are from Google's documentation
("TPU v5e", "TPU v6e") and are for bfloat16; float32 products of full precision take six passes.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from benchmarks.common import FAMILY_SIZES, SIZES, config_of, describe_machine
from benchmarks.tpu_programs import (
    Lower,
    Sizes,
    Target,
    choose_sizes,
    kernel_programs,
    model_programs,
    sweep_programs,
)
from bertjax import BertConfig
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.engine import AXIS, fastest_attention
from bertjax.models import make_numerics, unsupported_features

EXAMPLES = 408  # of MRPC's validation set
PREDICTED = ("v5e:2x2", "v5e:4x4", "v6e:2x2")
FULL_PRECISION = 6  # bfloat16 products for one float32 product


@dataclass(frozen=True)
class Chip:
    """A chip's bfloat16 FLOP/s, its memory's bytes/s and bytes."""

    flops: float
    bandwidth: float
    memory: int


CHIPS = {"v5e": Chip(197e12, 819e9, 16 * 10**9), "v6e": Chip(918e12, 1600e9, 32 * 10**9)}


@dataclass(frozen=True)
class Compiled:
    """The compiler's report on a program, for one chip.

    Args:
        error: why it could not be compiled; all numbers are then 0.
        flops, moved: operations, and bytes read and written.
        memory: bytes of arguments, results and temporaries.
        seconds: the roofline time.
        compiling: seconds that the compiler took.
        collectives: how often chips exchange data.
    """

    name: str
    error: str = ""
    flops: float = 0.0
    moved: float = 0.0
    memory: int = 0
    seconds: float = 0.0
    compiling: float = 0.0
    collectives: int = 0


def compile_program(name: str, lower: Lower, chip: Chip, passes: int) -> Compiled:
    """Lower and compile; an error becomes part of the result."""
    started = time.perf_counter()
    try:
        program = lower().compile()
    except Exception as error:  # of many kinds; none may stop the rest from being tried
        return Compiled(name, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    cost, memory = program.cost_analysis() or {}, program.memory_analysis()
    flops, moved = float(cost.get("flops", 0)), float(cost.get("bytes accessed", 0))
    parts = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    memory_bytes = sum(getattr(memory, part) for part in parts) - getattr(memory, "alias_size_in_bytes", 0)
    seconds = max(flops * passes / chip.flops, moved / chip.bandwidth)
    collectives, compiling = count_collectives(program.as_text() or ""), time.perf_counter() - started
    return Compiled(
        name=name,
        error="",
        flops=flops,
        moved=moved,
        memory=memory_bytes,
        seconds=seconds,
        compiling=compiling,
        collectives=collectives,
    )


def count_collectives(text: str) -> int:
    """How many instructions of a compiled program exchange data between chips.

    >>> count_collectives("x = f32[2] all-reduce(y), y = f32[2] add(z, z)")
    1
    """
    kinds = ("all-reduce(", "all-gather(", "all-to-all(", "reduce-scatter(", "collective-permute(")
    starts = (kind.replace("(", "-start(") for kind in kinds)
    return sum(text.count(kind) for kind in (*kinds, *starts))


def predict(sizes: Sizes, programs: Sequence[Compiled]) -> float | None:
    """Seconds of a sweep: each step's roofline time times its count, summed; None where a step was not compiled."""
    by_name = {program.name: program for program in programs}
    if any(by_name[name].error for name in sizes.steps):
        return None
    return sum(count * by_name[name].seconds for name, count in sizes.steps.items())


def make_target(topology: str, precision: str) -> tuple[Target, Chip]:
    """The chips of a topology, as the compiler describes them."""
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except (RuntimeError, ValueError) as error:
        raise SystemExit(f"topology {topology!r} is none ({' '.join(str(error).split())[:200]})") from error
    chip = CHIPS[topology.partition(":")[0]]
    return Target(Mesh(np.array(description.devices), (AXIS,)), make_numerics(precision), chip.memory), chip


def make_table(programs: Sequence[Compiled], chip: Chip, title: str, steps: dict[str, int]) -> Table:
    """A line for each program."""
    table = Table(title=title, title_justify="left")
    for name in ("program", "compiled"):
        table.add_column(name, overflow="fold")
    for name in ("GFLOP", "MB", "memory MB", "of chip", "roofline ms", "exchanges", "in a sweep"):
        table.add_column(name, justify="right")
    for program in programs:
        if program.error:
            table.add_row(program.name, program.error)
            continue
        share = f"{100 * program.memory / chip.memory:.1f} %"
        numbers = [f"{program.flops / 1e9:.2f}", f"{program.moved / 1e6:.1f}", f"{program.memory / 1e6:.1f}", share]
        count = str(steps.get(program.name, "")) if steps else ""
        row = [*numbers, f"{1e3 * program.seconds:.3f}", str(program.collectives), count]
        table.add_row(program.name, f"yes, {program.compiling:.0f} s", *row)
    return table


def as_in_sweeps(target: Target, config: BertConfig, attention: str) -> Target:
    """A target with the numerics of a sweep on an accelerator."""
    form = fastest_attention("tpu", target.numerics, config) if attention == "auto" else attention
    return replace(target, numerics=replace(target.numerics, attention=form, narrow=True))


def compile_all(
    config: BertConfig, target: Target, in_sweeps: Target, chip: Chip, sizes: Sizes, only_sweep: bool
) -> Iterator[Compiled]:
    """Every program for a topology, or only those that the sweep of all single heads takes.

    Args:
        in_sweeps: the target with a sweep's numerics.
    """
    passes = FULL_PRECISION if target.numerics.precision == "highest" else 1
    programs = list(sweep_programs(config, sizes, in_sweeps))
    if only_sweep:
        programs = [(name, lower) for name, lower in programs if name in sizes.steps]
    else:
        programs += [*model_programs(config, target), *kernel_programs(config, target)]
    for name, lower in programs:
        compiled = compile_program(name, lower, chip, passes)
        print(f"{name}: {'failed' if compiled.error else 'compiled'}", file=sys.stderr)
        yield compiled


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What to compile, and for which chips."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--topology", default="v5e:2x2", help="chips that everything is compiled for")
    parser.add_argument("--predict", nargs="*", default=list(PREDICTED), metavar="T", help="topologies of the sweep")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"], choices=[*SIZES, *FAMILY_SIZES])
    parser.add_argument("--layers", type=positive, help="so many in place of the model's own, to be quick")
    parser.add_argument("--precision", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--attention", default="auto", choices=["auto", "explicit", "pallas"], help="of the sweep")
    parser.add_argument("--output", default="tpu-compile", metavar="DIR")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("libtpu") is None:
        parser.error("libtpu is not installed here; `make test-tpu-aot` makes an environment that has it")
    if unknown := [name for name in (options.topology, *options.predict) if name.partition(":")[0] not in CHIPS]:
        parser.error(f"{unknown[0]}: chips are {', '.join(CHIPS)}, such as v5e:2x2")
    lacking = [size for size in options.sizes if unsupported_features(config_of(size), options.attention)]
    if lacking:
        parser.error(f"--attention {options.attention} cannot compute the layers of {', '.join(lacking)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the tables, write the file. Returns 1 if anything failed to compile."""
    options = read_arguments(arguments)
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3"}
    jax.config.update("jax_platforms", "cpu")
    console = Console(width=max(120, Console().width))
    failed, results = 0, []
    for size in options.sizes:
        config = config_of(size) if options.layers is None else config_of(size, num_hidden_layers=options.layers)
        for topology in dict.fromkeys([options.topology, *options.predict]):
            target, chip = make_target(topology, options.precision)
            sizes = choose_sizes(config, "mrpc", EXAMPLES, target)
            only_sweep = topology != options.topology
            in_sweeps = as_in_sweeps(target, config, options.attention)
            programs = list(compile_all(config, target, in_sweeps, chip, sizes, only_sweep))
            failed += sum(bool(program.error) for program in programs)
            block = f"{sizes.blocks.runs} runs x {sizes.blocks.rows} rows x {sizes.row_length} tokens"
            form = in_sweeps.numerics.attention
            title = f"{size}, {options.precision}, {form} attention, {topology}, blocks of {block}"
            console.print(make_table(programs, chip, title, sizes.steps))
            seconds = predict(sizes, programs)
            bound = "not known" if seconds is None else f"{seconds:.3f} s at best"
            if topology in options.predict:
                heads = config.num_hidden_layers * config.num_attention_heads
                console.print(f"all {heads} heads on {EXAMPLES} examples of MRPC, {target.mesh.size} chips: {bound}\n")
            result = {
                "size": size,
                "topology": topology,
                "attention": form,
                "sizes": asdict(sizes),
                "predicted_seconds": seconds,
            }
            results.append(result | {"programs": [asdict(program) for program in programs]})
    facts = {"precision": options.precision, "machine": describe_machine(), "libtpu": version("libtpu")}
    write_json(Path(options.output) / "tpu_compile.json", {**facts, "results": results})
    return min(1, failed)


if __name__ == "__main__":
    raise SystemExit(main())
