"""Whether heads that link words have diagonal maps (joins 4.5 with 4.1)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.shared.agreement import compare_maps
from experiments.shared.tables import make_table, name_head

DIAGONAL = ("diagonal", "vertical+diagonal")
HIGHEST = 3  # how many heads of highest weight to look at, as the authors do


def read_patterns(path: str) -> dict[str, Any]:
    """Each head's shares of pattern classes, from the `numbers.json` of `fig2_patterns` for the same model."""
    numbers = json.loads(Path(path).read_text())
    return {"heads": {name: task["by_head"] for name, task in numbers["results"]["corrected"].items()}}


def diagonal_shares(patterns: Mapping[str, Any]) -> Float[np.ndarray, "layers heads"]:
    """The share of maps in which each head shows a diagonal, alone or with columns; the mean over tasks."""
    tasks = [np.sum([np.array(heads[name]) for name in DIAGONAL], axis=0) for heads in patterns["heads"].values()]
    return np.mean(tasks, axis=0)


def join_patterns(relations: Mapping[str, Any], patterns: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each relation the rank correlation over heads with the share of diagonal maps, and its highest heads' shares.

    Args:
        relations: those of one model, from the `numbers.json` of `fig7_cls`.
        patterns: what `read_patterns` returns.

    Returns:
        For each relation `weight_ranks` and `share_ranks` (Spearman's, with the weight and with how often the target is
        found), `highest` and `followed_by` (the share of diagonal maps by head) and `all` (the mean over all heads).
    """
    diagonal = diagonal_shares(patterns)
    joined = {}
    for name, relation in relations.items():
        weight, share = (np.array(relation[name], np.float64) for name in ("mean", "share"))
        order = [int(index) for index in np.argsort(-weight.ravel(), kind="stable")[:HIGHEST]]
        names = [name_head(index, weight.shape[1]) for index in order]
        by_name = {name_head(index, weight.shape[1]): float(value) for index, value in enumerate(diagonal.ravel())}
        joined[name] = {
            "weight_ranks": compare_maps(weight, diagonal)["rank_correlation"],
            "share_ranks": compare_maps(share, diagonal)["rank_correlation"],
            "highest": {head: by_name[head] for head in names},
            "followed_by": {head: by_name[head] for head in relation["followed_by"]},
            "all": float(diagonal.mean()),
        }
    return joined


def join_table(relations: Mapping[str, Any], patterns: Mapping[str, Any]) -> str:
    """The result of `join_patterns` in Markdown."""
    rows = []
    for name, entry in join_patterns(relations, patterns).items():
        heads = [
            ", ".join(f"{head} {share:.0%}" for head, share in entry[key].items()) for key in ("highest", "followed_by")
        ]
        correlations = [entry[key] for key in ("weight_ranks", "share_ranks")]
        ranks = ["undefined" if rank is None else f"{rank:.2f}" for rank in correlations]
        rows.append([name, *ranks, heads[0], heads[1] or "none", f"{entry['all']:.0%}"])
    header = ["share of diagonal maps", "rank correlation with the weight", "with finding the target"]
    return make_table([*header, "heads of most weight", "heads that follow the relation", "all heads"], rows)
