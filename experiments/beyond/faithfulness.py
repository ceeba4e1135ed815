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

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from bertjax.attention import tokens_of
from bertjax.models import BertForSentenceEmbedding
from experiments.shared.data import add_task_options, read_examples
from experiments.shared.figures import Series, Texts, draw_estimates
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, run_script, short_name
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


def tables(runs: Runs) -> str:
    """The correlations of runs side by side."""
    results = [numbers["results"] for numbers in runs.values()]
    models = [short_name(numbers["settings"]["model"]) for numbers in runs.values()]
    columns = [f"{name}, {one['task']} ({one['texts']})" for name, one in zip(models, results, strict=True)]
    rows = [[name, *(_with_ends(one["correlation"][name]) for one in results)] for name in ATTRIBUTIONS]
    return make_table(["rank correlation (95 % CI)", *columns], rows)


def _with_ends(row: Sequence[float]) -> str:
    return format_interval(row[0], row[1:])


def figures(numbers: Numbers) -> Figures:
    """The correlation of each attribution."""
    results = numbers["results"]
    rows = np.array([results["correlation"][name] for name in ATTRIBUTIONS])
    subtitle = f"{short_name(numbers['settings']['model'])} on {results['task']}, {results['texts']} texts"
    label = "rank correlation with the change when a token is masked; 95 % intervals"
    texts = Texts("Do attention weights show which tokens matter?", subtitle, label)
    series = [Series("", rows[:, 0], rows[:, 1:])]
    return {"figure": partial(draw_estimates, names=ATTRIBUTIONS, series=series, texts=texts, limits=(-0.3, 1))}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_task_options(parser, limit=200, max_length=128)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
