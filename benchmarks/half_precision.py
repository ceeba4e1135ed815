"""What does `--precision bfloat16` cost in exactness? The same ablations of a real model in both precisions.

For each model and task: base scores; the largest difference of an output; predictions that differ, over all runs, where
the outputs are logits; how far heads' effects move, compared with their spread; whether heads keep their order; and
which effects are significant in both.

    python -m benchmarks.half_precision                                    the shipped sample, minutes on two CPU cores
    python -m benchmarks.half_precision --on MODEL mrpc GLUE --on MODEL stsb GLUE --json half.json
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

import bertjax
from benchmarks.common import describe_machine
from bertjax.atomic_files import write_json
from bertjax.checkpoints import DEFAULT_MODEL
from bertjax.results import Results

LEVEL = 0.05  # of significance, corrected over all heads


def compare(model: str, task: str, data: str | None) -> dict[str, Any]:
    """Ablate all heads in float32 and in bfloat16, and say how they differ; effects in points, 100 times the score."""
    results: dict[str, Results] = {}
    seconds: dict[str, float] = {}
    for precision in ("float32", "bfloat16"):
        started = time.perf_counter()
        results[precision] = bertjax.ablate(model, task, mode="zero", data=data, precision=precision, progress=False)
        seconds[precision] = time.perf_counter() - started
    frames = {precision: found.frame.query("main").set_index("name") for precision, found in results.items()}
    arrays = (found.outputs for found in results.values())
    whole, rounded = (np.concatenate([own["base"][None], own["outputs"]]) for own in arrays)
    effects, moved = (100 * frames[precision]["difference"].to_numpy() for precision in ("float32", "bfloat16"))
    sure, still = ((frames[precision]["q"] < LEVEL).to_numpy() for precision in ("float32", "bfloat16"))
    logits = whole.ndim == 3 and whole.shape[-1] > 1
    return {
        "model": model,
        "task": task,
        "examples": whole.shape[1],
        "base": [float((frame["score"] - frame["difference"]).iloc[0]) for frame in frames.values()],
        "largest_output_difference": float(np.abs(whole - rounded).max()),
        "predictions": int(whole[..., 0].size) if logits else None,
        "predictions_differing": int((whole.argmax(-1) != rounded.argmax(-1)).sum()) if logits else None,
        "largest_effect_difference": float(np.abs(effects - moved).max()),
        "rms_effect_difference": float(np.sqrt(((effects - moved) ** 2).mean())),
        "spread_of_effects": float(effects.std()),
        "rank_correlation": float(stats.spearmanr(effects, moved).statistic),
        "significant": [int(sure.sum()), int(still.sum()), int((sure & still).sum())],
        "seconds": list(seconds.values()),
    }


def make_table(found: list[dict[str, Any]]) -> Table:
    """A column for each model and task."""
    table = Table(title=describe_machine(), title_justify="left")
    table.add_column("")
    for one in found:
        table.add_column(f"{one['model']}, {one['task']}", justify="right", overflow="fold")
    lines = {
        "examples": lambda one: f"{one['examples']:,}",
        "base, float32 and bfloat16": lambda one: ", ".join(f"{score:.5f}" for score in one["base"]),
        "largest difference of an output": lambda one: f"{one['largest_output_difference']:.1e}",
        "predictions that differ": lambda one: (
            "-" if one["predictions"] is None else f"{one['predictions_differing']:,} of {one['predictions']:,}"
        ),
        "effects, standard deviation (points)": lambda one: f"{one['spread_of_effects']:.3f}",
        "difference of an effect, largest": lambda one: f"{one['largest_effect_difference']:.3f}",
        "difference of an effect, root mean square": lambda one: f"{one['rms_effect_difference']:.3f}",
        "rank correlation of heads": lambda one: f"{one['rank_correlation']:.4f}",
        "significant: float32, bfloat16, both": lambda one: ", ".join(map(str, one["significant"])),
        "seconds in total": lambda one: ", ".join(f"{spent:.0f}" for spent in one["seconds"]),
    }
    for name, tell in lines.items():
        table.add_row(name, *(tell(one) for one in found))
    return table


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--on", nargs="+", action="append", metavar="MODEL TASK [DATA]", help="a model and its task")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    jobs = options.on or [[DEFAULT_MODEL, "qnli-sample"]]
    if wrong := [job for job in jobs if len(job) not in (2, 3)]:
        parser.error(f"--on takes a model, a task and perhaps data, found {' '.join(wrong[0])}")
    found = [compare(model, task, *(rest or [None])) for model, task, *rest in jobs]
    console = Console() if Console().is_terminal else Console(width=120)
    console.print(make_table(found))
    if options.json:
        write_json(options.json, {"machine": describe_machine(), "results": found})


if __name__ == "__main__":
    main()
