"""Do attention weights show which tokens matter? (Abnar and Zuidema 2020; Kobayashi et al. 2020)

Each word of a text is replaced by the mask token in turn, and the change of the model's output is measured: the
log-probability of a classifier's predicted label, or 1 minus the cosine of sentence vectors. Attributions to the same
tokens are compared with these changes by rank correlation over the tokens of a text (without special tokens). The mean
over texts has a 95 % interval (bootstrap of texts):

    weights        the last layer's weights, mean over heads, from the tokens that are read: [CLS], or all for a mean
    all layers     the same, mean over layers
    norms          the last layer's norms, ||sum over heads of weight x transformed value||
    norms, all     the same, mean over layers
    rollout        attention rollout
    flow           attention flow
    gradients      the first-order change when a token's embedding becomes that of the mask token
    words          a control that does not read the model: 1 for words, 0 for punctuation
    random         a random number for each token

    python -m experiments.beyond.faithfulness --model DIR --task mrpc --data GLUE --limit 200
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.style import context
from tqdm import tqdm

from bertjax.attention import tokens_of
from bertjax.models import BertForSentenceEmbedding
from bertjax.plots import GREY, INK, PALE, WIDTH, add_axes, save_page, start_page
from experiments.shared.data import add_task_options, read_examples
from experiments.shared.run import Figures, Found, Numbers, Run, make_parser, run_script, short_name
from experiments.shared.tables import format_interval, make_table
from experiments.words.attributions import ATTRIBUTIONS, Text, study_text

FEWEST, DRAWS = 5, 10_000  # tokens of a text; bootstrap draws


def compute(run: Run) -> Found:
    """The correlations of each text, for a sentence embedder or a classifier that chooses one label."""
    model, tokenizer = run.model, run.tokenizer
    embeds = isinstance(model, BertForSentenceEmbedding)
    examples = read_examples(run.options)
    second = None if embeds else examples.second  # an embedder reads texts one by one: the first of each pair
    length = min(run.options.max_length, model.config.max_tokens)
    encodings = tokenizer.encode(examples.first, second, length, word_ids=True)
    rng, texts = np.random.default_rng(run.options.seed), list[Text]()
    pairs = zip(encodings, examples.first, second or ("",) * len(examples), strict=True)
    for encoding, *pair in tqdm(list(pairs), disable=None, leave=False):
        tokens = tokens_of(encoding, pair)
        if tokens.plain.sum() >= FEWEST:
            plain = np.flatnonzero(tokens.plain)
            texts.append(study_text(model, encoding, plain, tokens.punctuation, tokenizer.mask_token_id, rng))
    found = np.array([text.correlations() for text in texts])
    results = {**summarise(found, run.options.seed), "texts": len(texts), "read": "vector" if embeds else "label"}
    results |= {"source": examples.source, "task": examples.task.name, "sha256": examples.sha256}
    return results, {"correlations": found}


def summarise(found: Float[np.ndarray, "texts attributions"], seed: int) -> dict[str, Any]:
    """Means over texts with 95 % intervals, and their differences from the last layer's weights."""
    drawn = np.random.default_rng(seed).integers(0, len(found), (DRAWS, len(found)))
    counts = np.apply_along_axis(partial(np.bincount, minlength=len(found)), 1, drawn)

    def estimates(values: Float[np.ndarray, "texts attributions"]) -> dict[str, list[float]]:
        ends = np.quantile(counts @ values / len(values), [0.025, 0.975], axis=0)
        rows = np.stack([values.mean(axis=0), *ends], axis=1)
        return {name: [round(x, 4) for x in row] for name, row in zip(ATTRIBUTIONS, rows.tolist(), strict=True)}

    return {"correlation": estimates(found), "less_weights": estimates(found - found[:, :1])}


def tables(numbers: Numbers) -> str:
    """The table in Markdown, from a run's `numbers.json`."""
    results = numbers["results"]
    rows = [
        [name, *(_with_ends(results[part][name]) for part in ("correlation", "less_weights"))] for name in ATTRIBUTIONS
    ]
    what = f"{short_name(numbers['settings']['model'])}, {results['task']}, {results['texts']} texts"
    return make_table([what, "rank correlation (95 % CI)", "less that of weights"], rows)


def overview(runs: Mapping[str, Numbers]) -> str:
    """The correlations of several runs side by side, in Markdown, from their `numbers.json`."""
    columns = [
        f"{short_name(numbers['settings']['model'])}, {numbers['results']['task']} ({numbers['results']['texts']})"
        for numbers in runs.values()
    ]
    rows = [
        [name, *(_with_ends(numbers["results"]["correlation"][name]) for numbers in runs.values())]
        for name in ATTRIBUTIONS
    ]
    return make_table(["rank correlation (95 % CI)", *columns], rows)


def _with_ends(row: Sequence[float]) -> str:
    return format_interval(row[0], row[1:])


def figures(numbers: Numbers) -> Figures:
    """The figure, from a run's `numbers.json`."""
    return {"figure": partial(_draw, numbers)}


def _draw(numbers: Mapping[str, Any], path: Path) -> None:
    results, height, left = numbers["results"], 0.32 * len(ATTRIBUTIONS), 1.5
    with context("default"):
        subtitle = f"{short_name(numbers['settings']['model'])} on {results['task']}, {results['texts']} texts"
        figure = start_page("Do attention weights show which tokens matter?", subtitle, 0.8, height)
        axes = add_axes(figure, left, 0.8, WIDTH - left - 0.4, height)
        for index, name in enumerate(ATTRIBUTIONS):
            mean, low, high = results["correlation"][name]
            colour = GREY if name in ("words", "random") else INK
            axes.hlines(index, low, high, color=colour, linewidth=1.8)
            axes.scatter(mean, index, s=36, color=colour, zorder=3)
        axes.set_yticks(range(len(ATTRIBUTIONS)), ATTRIBUTIONS, fontsize=9)
        axes.set_ylim(len(ATTRIBUTIONS) - 0.5, -0.5)
        axes.axvline(0, color=INK, linewidth=1.0)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel(
            "rank correlation with the change when a token is masked; 95 % intervals", fontsize=9, color=INK
        )
    save_page(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_task_options(parser, limit=200, max_length=128)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
