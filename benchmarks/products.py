"""Which matrix products of a sweep's steps miss the CPU's fast path?

XLA's CPU compiler gives products to the YNNPACK library, which has kernels for the CPU's own instructions, where their
form allows it; in the compiled program these are custom fusions named `__ynn_fusion`, and every other product runs in
XLA's own loops. Products of bfloat16 stay in bfloat16 only where they return float32: those that return bfloat16 are
computed in float32. For each step of a sweep of all single heads: its products, shapes, operations, and path.

    python -m benchmarks.products                         float32, a minute
    python -m benchmarks.products --precision bfloat16
"""

import argparse
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import FAMILY_SIZES, SIZES, config_of, describe_machine, draw_lengths, random_examples
from benchmarks.rivals import make_checkpoint
from bertjax.engine import BlockRunner, choose_sizes, compiled_steps, make_runner, make_sweep_input
from bertjax.interventions import readouts, single_heads

FAST = "__ynn_fusion"
# In a program as XLA prints it: the head of a computation, a value with its shape, what a fusion calls, a product.
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
VALUE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\w+)\[([\d,]*)\]")
CALLED = re.compile(r"calls=%?([\w.\-]+)")
PRODUCT = re.compile(r" dot\(%?([\w.\-]+), %?([\w.\-]+)\).*lhs_contracting_dims=\{([\d,]+)\}")
NAME = re.compile(r'op_name="[^"]*?([^"/]*)/dot_general')


@dataclass(frozen=True)
class Product:
    """A matrix product of a compiled program.

    Args:
        name: as the source has it: an einsum.
        shapes: of both sides and the output, with their dtypes.
        flops: operations.
        fast: whether the fast path takes it.
        dtype: in which it is computed.
    """

    name: str
    shapes: str
    flops: int
    fast: bool
    dtype: str


def products_of(text: str) -> Iterator[Product]:
    """The matrix products of a compiled program.

    >>> program = '''%one (a: f32[2,3], b: f32[3,5]) -> f32[2,5] {
    ...   %a = f32[2,3]{1,0} parameter(0)
    ...   %b = f32[3,5]{1,0} parameter(1)
    ...   ROOT %c = f32[2,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, metadata={op_name="f/ij,jk->ik/dot_general"}
    ... }
    ... ENTRY %main (x: f32[2,3], y: f32[3,5]) -> f32[2,5] {
    ...   ROOT %d = f32[2,5]{1,0} fusion(%x, %y), calls=%one, backend_config={"kind":"__ynn_fusion"}
    ... }'''
    >>> list(products_of(program))
    [Product(name='ij,jk->ik', shapes='f32[2,3] f32[3,5] -> f32[2,5]', flops=60, fast=True, dtype='f32')]
    """
    fast = {found[1] for line in text.splitlines() if FAST in line and (found := CALLED.search(line))}
    computation, shapes = "", dict[str, tuple[str, list[int]]]()
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            computation, shapes = head[1], {}
        if not (value := VALUE.match(line)):
            continue
        shapes[value[1]] = value[2], [int(size) for size in value[3].split(",") if size]
        if not (product := PRODUCT.search(line)):
            continue
        left, right, output = shapes[product[1]], shapes[product[2]], shapes[value[1]]
        contracted = math.prod(left[1][int(axis)] for axis in product[3].split(","))
        sides = [f"{dtype}[{','.join(map(str, sizes))}]" for dtype, sizes in (left, right, output)]
        name = NAME.search(line)
        yield Product(
            name=name[1] if name else "",
            shapes=f"{sides[0]} {sides[1]} -> {sides[2]}",
            flops=2 * contracted * math.prod(output[1]),
            fast=computation in fast,
            dtype=left[0],
        )


def compile_steps(runner: BlockRunner) -> Iterator[tuple[str, str]]:
    """The steps of a sweep of single heads, as compiled for this device: name and program."""
    runs, last, root = runner.blocks.runs, runner.layers - 1, runner.plan.root
    block = runner.embed([0])
    for name, layer in (("layer", 0), ("last layer", last)):
        options = {"recipe": runner.recipes[layer], "mesh": runner.mesh, "cls_only": layer == last}
        rows = runner.rows([0] * runs, layer == last)
        program = compiled_steps.apply_layer.lower(runner.weights[layer], block, rows, None, None, **options)
        yield name, program.compile().as_text() or ""
    for name, layer in (("fork", 0), ("last fork", last)):
        options = {"recipe": runner.recipes[layer], "mesh": runner.mesh, "cls_only": layer == last}
        changes = runner.changes(layer, [child.changes for child in root.children[layer][:runs]])
        arrays = runner.weights[layer], block, 0, runner.rows([0], layer == last), changes, None
        yield name, compiled_steps.fork_from_parent.lower(*arrays, **options).compile().as_text() or ""


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where a product misses the fast path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--size", choices=[*SIZES, *FAMILY_SIZES], default="base")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    if jax.default_backend() != "cpu":
        parser.error(f"this is about the CPU's compiler, but JAX computes on {jax.default_backend()} here")
    config = config_of(options.size)
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), config)
        model = bertjax.load(folder, dtype=options.precision)
    texts = random_examples(draw_lengths("mrpc", 32), config.vocab_size)
    sweep_input = make_sweep_input(model, texts, single_heads(config), readouts.logits)
    runner = make_runner(sweep_input, choose_sizes(sweep_input))
    console = Console() if Console().is_terminal else Console(width=120)
    table = Table(title=f"{describe_machine()}; {options.size}, {options.precision}", title_justify="left")
    for column in ("step", "product", "shapes", "MFLOP", "path"):
        table.add_column(column, justify="right" if column == "MFLOP" else "left", overflow="fold")
    slow = widened = every = 0
    for step, text in compile_steps(runner):
        for product in products_of(text):
            in_half = product.dtype == "bf16" or options.precision == "float32"
            path = ("fast" if product.fast else "XLA's loops") + ("" if in_half else ", in float32")
            table.add_row(step, product.name, product.shapes, f"{product.flops / 1e6:,.1f}", path)
            every, slow = every + product.flops, slow + product.flops * (not product.fast)
            widened, step = widened + product.flops * (not in_half), ""
        table.add_section()
    console.print(table)
    console.print(f"of the operations of one step of each kind {slow / every:.2%} miss the fast path")
    if options.precision == "bfloat16":
        console.print(f"{widened / every:.2%} are computed in float32")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
