"""Tables for a terminal: what a sweep will cost, and how far bertjax and PyTorch are apart."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.text import Text

from bertjax.console import PlainTable
from bertjax.engine import Estimate
from bertjax.formatting import count_of, format_bytes, format_duration
from bertjax.study.parity import Difference


def plan_table(estimate: Estimate) -> PlainTable:
    """What a sweep will cost, a line for each thing that it needs.

    Args:
        estimate: what `bertjax.estimate` returns.
    """
    cost, blocks = estimate.cost, estimate.blocks
    now, before = cost.necessary / 1e12, cost.plain / 1e12
    twice = f", {estimate.duplicates:,} of them twice" if estimate.duplicates else ""
    runs = f"{count_of(estimate.ablations, 'set')} of heads{twice}"
    stored, rows = cost.state_bytes * sum(cost.states), count_of(blocks.rows, "row")
    states = ", ".join(str(number) for number in cost.states)
    table = PlainTable(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in (
        ("ablations", runs),
        ("examples", f"{estimate.examples:,}, {count_of(estimate.tokens, 'token')}"),
        ("packed", f"{count_of(estimate.rows, 'row')} of {estimate.row_length}, {100 * estimate.filled:.1f} % filled"),
        ("hidden states", f"runs with their own after each layer: {states}"),
        ("", f"{format_bytes(cost.state_bytes)} a run and layer, {format_bytes(stored)} if all were kept"),
        ("work", f"{now:.3g} TFLOP; a full pass for each: {before:.3g}, {before / now:.1f} times that"),
        (
            "steps",
            f"{count_of(blocks.runs, 'run')} on {rows} at once; {cost.flops / 1e12:.3g} TFLOP with empty slots",
        ),
        ("outputs", format_bytes(estimate.output_bytes)),
        ("peak memory", f"{format_bytes(estimate.peak_bytes)} at most"),
        ("rate", f"{estimate.rate / 1e9:,.0f} GFLOP/s, measured on this device"),
        (
            "time",
            f"about {format_duration(estimate.seconds)}; "
            f"a full pass for each: {format_duration(estimate.plain_seconds)}",
        ),
    ):
        table.add_row(name, text)
    return table


def parity_table(rows: Sequence[Difference]) -> PlainTable:
    """The differences to PyTorch, one row for each component.

    Args:
        rows: `parity.Difference`s, or anything with their fields.
    """
    table = PlainTable(
        title="Difference to PyTorch at real tokens (padding left out)", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("component")
    for name in ("largest", "mean", "allowed"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        verdict = Text("pass", style="green") if row.passed else Text("FAIL", style="bold red")
        table.add_row(row.component, *(f"{x:.1e}" for x in (row.largest, row.mean, row.tolerance)), verdict)
    return table
