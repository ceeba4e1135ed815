"""Are the heads that link words those whose maps are diagonal? (Joins 4.5 with 4.1.)"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.errors import DataError
from experiments.shared.agreement import compare_maps
from experiments.words.estimates import name_head
from experiments.words.markdown import make_table

DIAGONAL = ("diagonal", "vertical+diagonal")
HIGHEST = 3  # heads by weight that are looked at, as the authors look at the highest


def read_patterns(path: str, model: str) -> dict[str, Any]:
    """The shares of pattern classes of each head, from `numbers.json` of `experiments.attention_patterns`.

    Raises:
        DataError: it cannot be read, is of another program or version, or of another model.
    """
    try:
        numbers = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        tasks = {name: one["by_head"] for name, one in numbers["results"]["corrected"].items()}
        found = numbers["settings"]["model"]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"holds no shares of patterns by head ({error!r})"
        raise DataError(f"{path}: {reason}; give the numbers.json of experiments.attention_patterns") from error
    if found != model or numbers["settings"].get("tuned"):
        raise DataError(f"{path}: is of {found}, fine-tuned or not; give one of {model} itself")
    return {"heads": tasks}


def diagonal_shares(patterns: Mapping[str, Any]) -> Float[np.ndarray, "layers heads"]:
    """In how many maps each head shows a diagonal, alone or with columns; the mean over tasks."""
    tasks = [np.sum([np.array(heads[name]) for name in DIAGONAL], axis=0) for heads in patterns["heads"].values()]
    return np.mean(tasks, axis=0)


def join_patterns(relations: Mapping[str, Any], patterns: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For each relation the rank correlation over heads with the share of diagonal maps, and its highest heads' shares.

    Args:
        relations: of one model, as `numbers.json` of `experiments.token_to_token` holds them.
        patterns: what `read_patterns` gives.

    Returns:
        For each relation `weight_ranks` and `share_ranks` (Spearman's, with the weight and with how often the target is
        found), `highest` and `followed_by` (the share of diagonal maps by head) and `all` (the mean over all heads).

    Raises:
        DataError: the models have not as many heads.
    """
    diagonal = diagonal_shares(patterns)
    found = {}
    for name, one in relations.items():
        weight, share = (np.array(one[name], np.float64) for name in ("mean", "share"))
        if weight.shape != diagonal.shape:
            raise DataError(f"relations of {weight.shape} layers and heads, patterns of {diagonal.shape}: two models")
        order = [int(place) for place in np.argsort(-weight.ravel(), kind="stable")[:HIGHEST]]
        names = [name_head(place, weight.shape[1]) for place in order]
        by_name = {name_head(place, weight.shape[1]): float(own) for place, own in enumerate(diagonal.ravel())}
        found[name] = {
            "weight_ranks": compare_maps(weight, diagonal)["rank_correlation"],
            "share_ranks": compare_maps(share, diagonal)["rank_correlation"],
            "highest": {head: by_name[head] for head in names},
            "followed_by": {head: by_name[head] for head in one["followed_by"]},
            "all": float(diagonal.mean()),
        }
    return found


def join_table(relations: Mapping[str, Any], patterns: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    rows = []
    for name, one in join_patterns(relations, patterns).items():
        heads = [
            ", ".join(f"{head} {share:.0%}" for head, share in one[key].items()) for key in ("highest", "followed_by")
        ]
        found = [one[key] for key in ("weight_ranks", "share_ranks")]
        ranks = ["undefined" if rank is None else f"{rank:.2f}" for rank in found]
        rows.append([name, *ranks, heads[0], heads[1] or "none", f"{one['all']:.0%}"])
    head = ["share of diagonal maps", "rank correlation with the weight", "with finding the target"]
    return make_table([*head, "heads of most weight", "heads that follow the relation", "all heads"], rows)
