"""How much time and memory do the statistics of a sweep take? (10,000 draws of 145 runs)

Made-up outputs of a base run and 144 ablations; each metric at the size of its largest GLUE task. The bootstrap alone
and everything (bootstrap, jackknife, swaps, corrections, halves) are timed separately. For comparison,
`scipy.stats.bootstrap` with scikit-learn's and SciPy's scores, as you would write it for a single ablation: 200 draws
of one are timed and scaled to 10,000 draws of 144.

    python -m benchmarks.statistics --output statistics        three minutes on two CPU cores
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import describe_machine
from bertjax.atomic_files import write_json
from bertjax.cli import positive
from bertjax.engine import memory_in_use
from bertjax.machine import peak_resident
from bertjax.statistics import METRICS, RESAMPLES, bootstrap_counts, compute_statistics, make_scorer, score_draws

# Sizes of the validation sets of MNLI, QQP, CoLA and STS-B (QQP's cut to MNLI's).
EXAMPLES = {"accuracy": 9815, "f1": 9815, "matthews": 1043, "pearson": 1500, "spearman": 1500}
EXAMPLES |= {"roc_auc": 1500, "average_precision": 1500}
RUNS = 145
SCIPY_DRAWS = 200


def make_outputs(metric: str, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of a base run and of ablations that differ from it increasingly, and labels."""
    rng = np.random.default_rng(0)
    classes = METRICS[metric].targets == "classes"
    labels = rng.integers(0, 2, examples) if classes else rng.normal(size=examples)
    target = np.eye(2)[labels] if METRICS[metric].reads == "predictions" else labels.astype(np.float64)
    base = target + 0.8 * rng.normal(size=target.shape)
    noise = rng.normal(size=(RUNS, *base.shape))
    share = np.linspace(0, 0.5, RUNS).reshape(-1, *[1] * base.ndim)
    return (base + share * noise).astype(np.float32), labels


def time_scipy(metric: str, outputs: np.ndarray, labels: np.ndarray) -> float:
    """Seconds for one draw of one ablation and the base run."""
    from scipy import stats
    from sklearn import metrics as rival

    scores = {
        "accuracy": rival.accuracy_score,
        "f1": rival.f1_score,
        "matthews": rival.matthews_corrcoef,
        "pearson": lambda labels, values: stats.pearsonr(values, labels).statistic,
        "spearman": lambda labels, values: stats.spearmanr(values, labels).statistic,
        "roc_auc": rival.roc_auc_score,
        "average_precision": rival.average_precision_score,
    }
    first, second = outputs[:2].argmax(-1) if METRICS[metric].reads == "predictions" else outputs[:2]

    def difference(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
        return float(scores[metric](labels, second) - scores[metric](labels, first))

    started = time.perf_counter()
    options: dict[str, Any] = {"paired": True, "vectorized": False, "method": "percentile", "n_resamples": SCIPY_DRAWS}
    stats.bootstrap((labels, first, second), difference, **options, rng=np.random.default_rng(0))
    return (time.perf_counter() - started) / SCIPY_DRAWS


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--metrics", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--examples", type=positive, help="in place of each metric's own number")
    parser.add_argument("--output", default="statistics", metavar="DIR")
    options = parser.parse_args(arguments)
    rows = []
    for metric in options.metrics:
        examples = options.examples or EXAMPLES[metric]
        outputs, labels = make_outputs(metric, examples)
        started = time.perf_counter()
        score_draws(make_scorer(metric, outputs, labels), bootstrap_counts(examples, RESAMPLES, 0, RUNS))
        middle = time.perf_counter()
        computed = compute_statistics(metric, outputs[0], outputs[1:], labels)
        ended = time.perf_counter()
        scipy_seconds = time_scipy(metric, outputs, labels) * RESAMPLES * (RUNS - 1)
        row = {"metric": metric, "examples": examples, "swaps": computed.draws, "scipy_seconds": scipy_seconds}
        times = {"bootstrap_seconds": middle - started, "seconds": ended - middle}
        rows.append({**row, **times, "peak_bytes": peak_resident()})
    table = Table(title=describe_machine(), title_justify="left")
    for name in ("metric", "examples", "bootstrap s", "SciPy min", "swaps", "everything s", "peak GB so far"):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for row in rows:
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.2f}"
        seconds = f"{row['bootstrap_seconds']:.1f}", f"{row['scipy_seconds'] / 60:.0f}"
        table.add_row(
            row["metric"], f"{row['examples']:,}", *seconds, f"{row['swaps']:,}", f"{row['seconds']:.1f}", peak
        )
    Console(width=110).print(table)
    Path(options.output).mkdir(parents=True, exist_ok=True)
    facts = {"machine": describe_machine(), "in_use_bytes": memory_in_use(), "rows": rows}
    write_json(Path(options.output) / "statistics.json", facts)


if __name__ == "__main__":
    main()
