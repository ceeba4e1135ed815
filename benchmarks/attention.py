"""How fast are the forms of attention, how exact, and how much memory do they take?

Each form x length x batch x dtype, alone and with overrides (gates and uniform weights, of all heads): median time, the
rate of the two matrix products (4 x batch x heads x length^2 x head_dim FLOPs) and of the necessary reads and writes
(queries, keys, values, outputs), memory besides inputs and outputs as reported by the compiler, and the largest error
against float64 NumPy on one example. The device's peaks are measured with a large matrix product and a large copy.
Where PyTorch is installed, its eager attention and SDPA are timed in the same rounds (without overrides, which they do
not have). The Pallas kernel is timed on TPU; elsewhere it would be interpreted and is left out.

    python -m benchmarks.attention --output attention        two minutes on two CPU cores

"Blocks" is the kernel's plain form, a block of queries at a time. Writes DIR/attention.json, and DIR/attention.png:
rates against the roofline.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import describe_machine, matmul_rate
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.models import Numerics, Overrides, fused_attention, ops, pallas_attention
from bertjax.plots import INK, PALE, WIDTH, add_axes, save_page, start_page

LENGTHS = (32, 64, 128, 256, 512)
AT_LEAST = 0.05  # least seconds of a timed loop
COLOURS = {"explicit": "#999999", "fused": "#e69f00", "blocks": "#56b4e9", "pallas": "#0072b2"}
COLOURS |= {"PyTorch eager": "#cc79a7", "PyTorch SDPA": "#d55e00"}


@dataclass
class Timed:
    """A form at one size, and its measurements; memory in bytes, None where unknown."""

    form: str
    dtype: str
    batch: int
    length: int
    overridden: bool
    run: Callable[[], Any]
    memory: int | None = None
    error: float | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of one call."""
        return statistics.median(self.seconds)


def explicit(
    queries: Any, keys: Any, values: Any, keep: Any, change: Overrides | None, *, layer: int, numerics: Numerics
) -> Any:
    """The model's own form, which computes the weights."""
    weights = ops.attention_weights(ops.attention_scores(queries, keys, numerics), keep[:, None])
    if change is not None:
        weights = ops.override_weights(weights, keep, change, layer)
    outputs = ops.mix(weights, values, numerics)
    return outputs if change is None else ops.override_outputs(outputs, change, layer)


def in_blocks(
    queries: Any, keys: Any, values: Any, keep: Any, change: Overrides | None, *, layer: int, numerics: Numerics
) -> Any:
    """A block of queries at a time, in plain JAX."""
    marks = keep[:, 0].astype(jnp.int32)
    gates = None
    if change is not None:
        gates = pallas_attention.HeadGates(change.weights_gate[layer], change.uniform[layer], change.output_gate[layer])
    return pallas_attention.attend_by_blocks(queries, keys, values, (jnp.ones_like(marks), marks), gates, numerics)


def make_inputs(batch: int, heads: int, length: int, head_dim: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Queries, keys and values of variance 1, and a mask: the last tenth of the second half of the batch is padding."""
    rng = np.random.default_rng(length)
    parts = [rng.normal(size=(batch, length, heads, head_dim)).astype(np.float32) for _ in range(3)]
    keep = np.ones((batch, 1, length), np.float32)
    keep[batch // 2 :, :, length - length // 10 :] = 0
    return parts, keep


def reference(parts: list[np.ndarray], keep: np.ndarray, change: Overrides | None) -> np.ndarray:
    """Outputs of the last example, in float64."""
    queries, keys, values = (part[-1].astype(np.float64) for part in parts)
    real = keep[-1] > 0
    share = np.exp(np.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5) * real
    weights = share / share.sum(-1, keepdims=True)
    factor = np.ones(queries.shape[1])
    if change is not None:
        gate, uniform, factor = (
            np.asarray(part[0], np.float64) for part in (change.weights_gate, change.uniform, change.output_gate)
        )
        even = uniform[:, None, None] * real / real.sum()
        weights = gate[:, None, None] * weights + (1 - gate)[:, None, None] * even
    return np.einsum("hqk,khd->qhd", weights, values) * factor[:, None]


def make_jax(parts: list[np.ndarray], keep: np.ndarray, dtype: str) -> list[Timed]:
    """Our forms at one size, compiled."""
    batch, length, heads, _ = parts[0].shape
    numerics = Numerics(dtype, "highest" if dtype == "float32" else "default")
    names = {"explicit": explicit, "fused": None, "blocks": in_blocks}
    names |= {"pallas": None} if jax.default_backend() == "tpu" else {}
    inputs = [jnp.asarray(part).astype(dtype) for part in parts]
    rng, forms = np.random.default_rng(0), []
    gates = [jnp.asarray(rng.uniform(size=(1, heads)), jnp.float32) for _ in range(2)]
    change = Overrides(gates[0], jnp.ones_like(gates[0]), gates[1])
    for name, function in names.items():
        form_numerics = numerics if function else Numerics(numerics.dtype, numerics.precision, name)
        for overrides in (None, change):
            call = partial(function or fused_attention.attend, layer=0, numerics=form_numerics)
            compiled = jax.jit(call).lower(*inputs, jnp.asarray(keep), overrides).compile()
            run = partial(compiled, *inputs, jnp.asarray(keep), overrides)
            memory = getattr(compiled.memory_analysis(), "temp_size_in_bytes", None)
            error = float(np.abs(np.asarray(run(), np.float64)[-1] - reference(parts, keep, overrides)).max())
            forms.append(
                Timed(
                    form=name,
                    dtype=dtype,
                    batch=batch,
                    length=length,
                    overridden=overrides is not None,
                    run=run,
                    memory=memory,
                    error=error,
                )
            )
    return forms


def make_torch(parts: list[np.ndarray], keep: np.ndarray, dtype: str) -> list[Timed]:
    """PyTorch's forms at one size; none where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    kind = getattr(torch, dtype)
    queries, keys, values = (torch.from_numpy(part).to(device, kind).transpose(1, 2).contiguous() for part in parts)
    mask = torch.from_numpy(keep > 0).to(device)[:, None]

    def finish(outputs: Any) -> Any:
        if device == "cuda":
            torch.cuda.synchronize()
        return outputs

    def eager() -> Any:
        with torch.inference_mode():
            scores = queries @ keys.transpose(2, 3) * queries.shape[-1] ** -0.5
            return finish(scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values)

    def sdpa() -> Any:
        with torch.inference_mode():
            return finish(torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask))

    forms = []
    for name, run in (("PyTorch eager", eager), ("PyTorch SDPA", sdpa)):
        last = run()[-1].transpose(0, 1).float().cpu().numpy()
        error = float(np.abs(last - reference(parts, keep, None)).max())
        batch, length = parts[0].shape[:2]
        label = name if device == "cpu" else f"{name} ({device})"
        forms.append(
            Timed(
                form=label, dtype=dtype, batch=batch, length=length, overridden=False, run=run, memory=None, error=error
            )
        )
    return forms


def time_once(run: Callable[[], Any]) -> float:
    """Seconds of one call, averaged over enough calls to be timed."""
    calls, started = 0, time.perf_counter()
    while True:
        result = run()
        if isinstance(result, jax.Array):
            result.block_until_ready()
        calls += 1
        if (elapsed := time.perf_counter() - started) > AT_LEAST:
            return elapsed / calls


def measure_peaks(dtype: str, rounds: int) -> dict[str, float]:
    """FLOP/s of a large matrix product, and bytes/s of a large copy (read and written)."""
    long = jax.random.normal(jax.random.key(0), (2**24 if jax.default_backend() == "cpu" else 2**28,))
    copy = jax.jit(lambda x: x + 1)
    copy(long).block_until_ready()
    seconds = min(time_once(lambda: copy(long)) for _ in range(rounds))
    return {"flops": matmul_rate(dtype, rounds), "bytes": 2 * long.nbytes / seconds}


def describe(timed: Timed, heads: int, head_dim: int) -> dict[str, Any]:
    """The entries of table and file for a form at one size."""
    work = 4 * timed.batch * heads * timed.length**2 * head_dim
    moved = 4 * timed.batch * heads * timed.length * head_dim * (2 if timed.dtype == "bfloat16" else 4)
    fields = {name: value for name, value in asdict(timed).items() if name != "run"}
    rates = {"flops_per_second": work / timed.median, "bytes_per_second": moved / timed.median}
    return fields | {"median": timed.median, "flops_per_byte": work / moved} | rates


def make_table(rows: list[dict[str, Any]], peaks: dict[str, dict[str, float]], title: str) -> Table:
    """A line for each form at each size."""
    table = Table(title=title)
    for name in (
        "dtype",
        "length",
        "batch",
        "form",
        "ms",
        "spread",
        "GFLOP/s",
        "of peak",
        "GB/s",
        "memory MB",
        "error",
    ):
        table.add_column(name, justify="left" if name in ("dtype", "form") else "right", no_wrap=True)
    for row in rows:
        name = row["form"] + (" + overrides" if row["overridden"] else "")
        low, high = (1e3 * edge(row["seconds"]) for edge in (min, max))
        share = row["flops_per_second"] / peaks[row["dtype"]]["flops"]
        memory = "" if row["memory"] is None else f"{row['memory'] / 1e6:.1f}"
        sizes = [row["dtype"], str(row["length"]), str(row["batch"]), name]
        rates = [f"{row['flops_per_second'] / 1e9:.1f}", f"{100 * share:.0f} %", f"{row['bytes_per_second'] / 1e9:.1f}"]
        table.add_row(
            *sizes, f"{1e3 * row['median']:.2f}", f"{low:.2f}-{high:.2f}", *rates, memory, f"{row['error']:.0e}"
        )
    return table


def draw_roofline(path: Path, rows: list[dict[str, Any]], peaks: dict[str, dict[str, float]], title: str) -> None:
    """Rates of the forms without overrides by length, against the limit set by the peaks, one plot for each dtype.

    Of several batches, the largest of each length is shown.
    """
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

    largest = {row["length"]: max(peer["batch"] for peer in rows if peer["length"] == row["length"]) for row in rows}
    rows = [row for row in rows if row["batch"] == largest[row["length"]]]
    high, bottom = 2.6, 1.0
    figure = start_page("Attention against the roofline", title, bottom, high + 0.25)
    width = (WIDTH - 0.7 - 0.2) / len(peaks) - 0.4
    for number, (dtype, peak) in enumerate(peaks.items()):
        axes = add_axes(figure, 0.7 + number * (width + 0.5), bottom, width, high)
        chosen = [row for row in rows if row["dtype"] == dtype and not row["overridden"]]
        density = {row["length"]: row["flops_per_byte"] for row in chosen}
        limit = [min(peak["flops"], intensity * peak["bytes"]) / 1e9 for intensity in density.values()]
        axes.plot(list(density), limit, color=INK, linewidth=1.2, label="what the peaks allow")
        for form in dict.fromkeys(row["form"] for row in chosen):
            points = [(row["length"], row["flops_per_second"] / 1e9) for row in chosen if row["form"] == form]
            style: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1}
            axes.plot(*zip(*points, strict=True), color=COLOURS[form.partition(" (")[0]], label=form, **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(density)))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.grid(color=PALE, linewidth=0.6)
        axes.set_xlabel("tokens", fontsize=9, color=INK)
        axes.set_title(dtype, fontsize=9, color=INK, pad=4)
        if number == 0:
            axes.set_ylabel("GFLOP/s", fontsize=9, color=INK)
            style = {"loc": "lower left", "ncols": 4, "frameon": False, "fontsize": 8.5, "labelcolor": INK}
            figure.legend(*axes.get_legend_handles_labels(), **style)
    save_page(figure, path)


def main() -> None:
    """Time all forms, print the table, write the file and the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--lengths", nargs="+", type=positive, default=LENGTHS)
    parser.add_argument("--tokens", type=positive, default=4096, help="of a batch: its size is this by the length")
    parser.add_argument("--batches", nargs="+", type=positive, help="sizes of batches, in place of --tokens")
    parser.add_argument("--heads", type=positive, default=12)
    parser.add_argument("--head-dim", type=positive, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--output", default="attention", metavar="DIR")
    options = parser.parse_args()
    forms: list[Timed] = []
    for dtype in options.dtypes:
        for length, batch in product(options.lengths, options.batches or [None]):
            batch = batch or max(2, options.tokens // length)
            parts, keep = make_inputs(batch, options.heads, length, options.head_dim)
            timed = [*make_jax(parts, keep, dtype), *make_torch(parts, keep, dtype)]
            for _ in range(options.rounds):
                for form in timed:
                    form.seconds.append(time_once(form.run))
            print(f"{dtype}, {length} tokens, batch {batch} done", file=sys.stderr)
            forms += timed
            for form in timed:
                form.run = _spent
    peaks = {dtype: measure_peaks(dtype, options.rounds) for dtype in options.dtypes}
    rows = [describe(form, options.heads, options.head_dim) for form in forms]
    title = f"{options.heads} heads x {options.head_dim}; {describe_machine()}"
    console = Console(width=max(130, Console().width))
    console.print(make_table(rows, peaks, title))
    for dtype, peak in peaks.items():
        console.print(f"{dtype}: {peak['flops'] / 1e9:.0f} GFLOP/s, {peak['bytes'] / 1e9:.1f} GB/s measured at most")
    folder = Path(options.output)
    write_json(folder / "attention.json", {"title": title, "peaks": peaks, "rows": rows})
    draw_roofline(folder / "attention.png", rows, peaks, title)


def _spent() -> None:
    """Replaces a form's `run`, so that its arrays are released."""


if __name__ == "__main__":
    main()
