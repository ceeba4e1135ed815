"""Tables for a terminal: what a sweep will cost, how far bertjax and PyTorch are apart, and what gradients say."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.text import Text

from bertjax.attribution import Trust
from bertjax.console import PlainTable
from bertjax.engine import Estimate
from bertjax.evidence import Q
from bertjax.formatting import count_of, format_bytes, format_duration
from bertjax.results import Results, Row, column, describe_silhouette
from bertjax.study.pytorch.parity import Difference


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
            f"about {format_duration(estimate.seconds)}; a full pass for each: "
            f"{format_duration(estimate.plain_seconds)}; not counting loading, compilation and statistics",
        ),
    ):
        table.add_row(name, text)
    return table


def importance_table(results: Results, count: int = 10) -> PlainTable:
    """The heads of the largest importance, with how gradients predict the loss to change without them.

    Args:
        results: of `importance`.
        count: how many heads are shown.
    """
    loss = results.summary["gradients"]
    changes = {row.name: row for row in results.rows_of("predicted_loss")}
    rows = sorted(results.rows_of("importance"), key=lambda row: -(row.score or 0.0))[:count]
    unit = f", in {loss['unit']}" if loss["unit"] else ""
    base = changes[rows[0].name].base
    table = PlainTable(
        title=f"Loss: {loss['loss']}{unit}; {base:.4g} as it is. Changes are to first order.",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for name in ("head", "importance", "95 % CI", "loss change", "95 % CI"):
        table.add_column(name, justify="right")
    for row in rows:
        change = changes[row.name]
        table.add_row(
            row.name, f"{row.score:.2g}", _ends(row, "{:.2g}"), f"{change.difference:+.2g}", _ends(change, "{:+.2g}")
        )
    return table


def _ends(row: Row, form: str) -> str:
    """The ends of a row's interval; empty where it has none."""
    return "" if row.low is None or row.high is None else f"{form.format(row.low)} to {form.format(row.high)}"


def trust_table(trust: Trust, exact: Results) -> PlainTable:
    """How well gradients order heads, a line for each thing that is measured.

    Args:
        trust: what `trust_in` gives.
        exact: the results of `ablate` that it was given.
    """
    effects = f"exact effects on {exact.measure().label}, mode {exact.summary['mode']['name']}"
    table = PlainTable(title=f"Order of heads by gradients beside {effects}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("measure")
    table.add_column("gradients", justify="right")
    table.add_column("random heads", justify="right")
    interval = "" if math.isnan(trust.low) else f" ({trust.low:.2f} to {trust.high:.2f})"
    table.add_row("rank correlation (95 % CI)", f"{trust.correlation:.2f}{interval}", "0")
    for depth, share in trust.precision.items():
        table.add_row(f"of the first {depth}, found", f"{share * depth:.0f}", f"{trust.chance[depth] * depth:.1f}")
    worst = "; ".join(f"{name}: {estimated} for {exact}" for name, estimated, exact in trust.worst)
    table.caption, table.caption_justify = f"Farthest apart (place by gradients for exact place): {worst}", "left"
    return table


def pruning_table(results: Results, metric: str | None = None) -> PlainTable:
    """Scores of each order at each point; of orders at random the mean, and the least and the most.

    Args:
        results: of `prune`.
        metric: by default the main one.
    """
    measure, told = results.measure(metric), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of(metric)}
    if not told["orders"]:
        return gates_table(results, metric)
    single = [order for order in told["orders"] if not order["name"].startswith("random")]
    drawn = [order for order in told["orders"] if order["name"].startswith("random")]
    base = next(iter(rows.values())).base
    every = len(told["orders"][0]["heads"])
    title = f"{measure.label}{f' in {measure.unit}' if measure.unit else ''}: {measure.score(base)} with all {every}"
    table = PlainTable(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("heads left", justify="right")
    for name in [order["name"] for order in single] + (["random", "from", "to"] if drawn else []):
        table.add_column(name, justify="right")
    for left in map(str, told["points"]):
        cells = [measure.score(rows[order["runs"][left]].score) for order in single]
        if drawn:
            scores = [rows[order["runs"][left]].score for order in drawn]
            known = [score for score in scores if score is not None]
            ends = (sum(known) / len(known), min(known), max(known)) if known else (None, None, None)
            cells += [measure.score(end) for end in ends]
        table.add_row(left, *cells)
    table.caption, table.caption_justify = _judged_on(results), "left"
    return table


def gates_table(results: Results, metric: str | None = None) -> PlainTable:
    """Scores with the heads whose learned gates are open, at each price.

    Args:
        results: of `prune`, with gates.
        metric: by default the main one.
    """
    measure, told = results.measure(metric), results.summary["pruning"]
    rows = {row.name: row for row in results.rows_of(metric)}
    base = next(iter(rows.values())).base
    table = PlainTable(title="Learned gates", title_justify="left", box=SIMPLE_HEAD)
    for name in ("price", "heads left", measure.label_in_unit, "change", "95 % CI"):
        table.add_column(name, justify="right")
    for learned in told["gates"]:
        row = rows.get(learned["run"])
        if row is None:  # no gate is closed
            table.add_row(f"{learned['strength']:g}", str(learned["left"]), measure.score(base), "", "")
            continue
        change = "" if row.difference is None else measure.change(row.difference)
        ends = "" if row.low is None or row.high is None else f"{measure.change(row.low)} to {measure.change(row.high)}"
        table.add_row(f"{learned['strength']:g}", str(learned["left"]), measure.score(row.score), change, ends)
    price = "price: of all open gates together, in losses of the whole model"
    table.caption, table.caption_justify = f"{price}; {_judged_on(results)}", "left"
    return table


def _judged_on(results: Results) -> str:
    """Which examples chose the orders, and which judge them."""
    chosen, counts = results.summary["pruning"]["chosen_on"], count_of(results.summary["data"]["examples"], "example")
    return f"{f'{chosen:,} other examples chose the orders; these' if chosen else 'these'} scores are of {counts}"


def patching_table(results: Results, most: int = 3) -> PlainTable:
    """Of each place the cells that restore most.

    Args:
        results: of `patch`.
        most: how many cells are named.
    """
    told, measure = results.summary["patching"], results.measure()
    table = PlainTable(title=f"{measure.label}, in points", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("place", no_wrap=True)
    table.add_column("q < 0.05", justify="right", no_wrap=True)
    table.add_column("most")
    rows = results.rows_of()
    for place in told["places"]:
        own = [(row, cell) for row, cell in zip(rows, told["cells"], strict=True) if cell["place"] == place]
        found = sum(row.q is not None and row.q < Q for row, _ in own)
        later = [
            (row, cell) for row, cell in own if cell["layer"] or place != "hidden_states"
        ]  # 0: the texts themselves
        first = sorted(later, key=lambda one: -abs(one[0].score or 0.0))[:most]
        named = []
        for row, cell in first:
            name = f"{cell['layer']}{'' if cell['head'] is None else '.{}'.format(cell['head'])}"
            name += f" at {told['spans'][cell['span']]}" if len(told["spans"]) > 1 else ""
            named.append(f"{name} ({measure.factor * (row.score or 0.0):.0f})")
        table.add_row(place, f"{found} of {len(own)}", ", ".join(named))
    table.caption_justify = "left"
    table.caption = (
        f"{told['score']}: {told['own_score']:.3g} in {told['into']} texts, {told['donor_score']:.3g} in the others; "
        f"{results.too_few_contrasts or count_of(results.summary['data']['examples'], 'contrast')}"
    )
    return table


def roles_table(results: Results, most: int = 2) -> PlainTable:
    """Each role's share of attention: uniform, of all heads by weights and by norms, of the heads with most of it.

    Args:
        results: of `roles`.
        most: how many heads are named.
    """
    table = PlainTable(
        title=f"Attention of {count_of(len(results.names), 'head')}, in points", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("to", no_wrap=True)
    for name in ("uniform", "mean", "by norms"):
        table.add_column(name, justify="right")
    table.add_column("most", no_wrap=True)
    for name in results.summary["roles"]["definitions"]:
        measure, rows = results.measure(name), results.rows_of(name)
        by_norms = column(results.rows_of(f"norm_{name}"), "score").mean()
        first = sorted(rows, key=lambda row: -(row.score or 0.0))[:most]
        heads = ", ".join(f"{row.name} ({measure.factor * (row.score or 0.0):.0f})" for row in first)
        numbers = (rows[0].base, column(rows, "score").mean(), by_norms)
        shares = (f"{measure.factor * float(number or 0.0):.1f}" for number in numbers)
        table.add_row(measure.label.removeprefix("Attention to "), *shares, heads)
    entropy, confidence = results.rows_of("entropy"), results.rows_of("confidence")
    table.caption_justify = "left"
    table.caption = (
        f"entropy {column(entropy, 'score').mean():.2f} nats on average, {entropy[0].base:.2f} of uniform attention; "
        f"largest weight {100 * column(confidence, 'score').mean():.0f} points on average"
    )
    return table


def kinds_lines(results: Results) -> list[str]:
    """Which heads meet which criterion, a line each.

    Args:
        results: of `roles`.
    """
    told = results.summary["roles"]
    lines = []
    for kind, criterion in told["criteria"].items():
        heads = [name for name, kinds in told["kinds"].items() if kind in kinds]
        lines.append(f"{kind} ({criterion}): {', '.join(heads) if heads else 'none'}")
    if "silhouette" in told:
        lines.append(describe_silhouette(told["silhouette"]))
    return lines


def shapley_line(results: Results) -> str:
    """How well Shapley values are known, and what they sum to, in a line.

    Args:
        results: of `shapley`.
    """
    found, score, measure = results.summary["shapley"], results.summary["derived"], results.measure()
    base, without = (measure.factor * value for value in (score["base"], found["without"]))
    ends = f"{base:.{measure.digits}f} as it is, {without:.{measure.digits}f} with all of these heads replaced"
    total = (
        f"values sum to {measure.with_unit(measure.change((base - without) / measure.factor))}: {score['label']} {ends}"
    )
    if found["exact"]:
        return f"Every set of heads was run: values are exact for these examples. The {total}."
    widths = [math.inf if width is None else measure.factor * width for width in found["half_widths"]]
    if not math.isfinite(max(widths)):
        return f"{found['orders']} orders are too few to tell how well values are known. The {total}."
    middle = sorted(widths)[len(widths) // 2]
    known = f"±{max(widths):.2g} or better ({measure.with_unit(f'median ±{middle:.2g}')})"
    return f"{found['orders']} orders: each value is known to {known} for these examples, at 95 %. The {total}."


def parity_table(rows: Sequence[Difference]) -> PlainTable:
    """The differences to PyTorch, one row for each component.

    Args:
        rows: each a `parity.Difference`, or anything with its fields.
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
