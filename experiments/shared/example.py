"""The attention maps of some heads on one sentence: the right side of the paper's figure 3."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.plots import make_attention, save_page
from experiments.shared.attention import reduce_attention, whole_maps
from experiments.shared.run import Run

SENTENCE = "He was becoming agitated ."  # the paper's


def attend(
    run: Run, sentence: str, second: str | None = None
) -> tuple[list[str], Float[np.ndarray, "layers heads query key"]]:
    """The tokens of a sentence, or of a pair, and every head's weights."""
    longest = run.model.config.max_tokens
    encoding = run.tokenizer.encode([sentence], None if second is None else [second], longest)[0]
    tokens = list(encoding.tokens)
    maps = reduce_attention(run.model, [encoding], whole_maps, norms=run.norms)[0]
    return tokens, maps[:, :, : len(tokens), : len(tokens)].astype(np.float64)


def describe_example(
    sentence: str, tokens: Sequence[str], maps: Float[np.ndarray, "layers heads query key"], heads: Sequence[str]
) -> dict[str, Any]:
    """The maps of some heads, for `numbers.json`."""
    chosen = {name: maps[tuple(map(int, name.split(".")))].round(4).tolist() for name in heads}
    return {"sentence": sentence, "tokens": list(tokens), "maps": chosen}


def draw_example(path: Path, example: Mapping[str, Any], title: str, subtitle: str, notes: Mapping[str, str]) -> None:
    """Draw what `describe_example` returns.

    Args:
        path: a PNG or PDF, by its suffix.
        notes: a remark on a head, by its name.
    """
    names = [f"{name}{f': {notes[name]}' if name in notes else ''}" for name in example["maps"]]
    maps = [np.array(weights) for weights in example["maps"].values()]
    save_page(make_attention(example["tokens"], maps, names, title, subtitle), path)
