"""How much do heads attend to nouns, verbs, subjects, negation, [CLS], [SEP]? (Kovaleva et al. 2019, 4.4, figure 6)

For each example and head: the mean weight that a token gets from all real tokens, and the largest of these among the
tokens of a feature; averaged over the examples that have the feature, with a 95 % interval (normal theory). Tokens
are those that a word overlaps by its place in the text. With --tuned, for a base and a fine-tuned model and their
difference. Sets of tags, roles and negation: `annotated.py`, `features.py`.

--as-published also takes what the authors' code takes and shows that: a word's pieces wherever the same pieces stand in
the input; 0 for an example without the feature; negation by a list of words looked for as a part of the text, capitals
as they stand, and examples where it stands nowhere left out; the larger of both [SEP]; a task's TSV file read with
quote handling.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from spaCy for a task (--task with --spacy), or from
200 sentences of the English Web Treebank that come with the program:

    python -m experiments.linguistic_features                                  20 s of processor time
    python -m experiments.linguistic_features --conllu en_ewt-ud-dev.conllu    45 s (1,000 sentences, all-MiniLM-L6-v2)

There all heads together rest on [CLS] (0.51 on average, 2.9 most: 0.85), the last layer on nouns (5.3: 0.19); counting
texts without the feature as 0 makes pronouns and objects half as attended to and hardly changes the order of the heads
(`RESULTS.md`). It has been run neither on bert-base-uncased, of which the paper's maps are, nor with a model of spaCy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import bertjax
from bertjax.tokenizer import Encoding
from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.attention import reduce_attention
from experiments.shared.map_grid import draw_grid
from experiments.shared.maps import Panel
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.tuned import check_tuned, tell_tuned
from experiments.words.annotated import AnnotatedSample
from experiments.words.annotation import add_annotation_options, read_annotated
from experiments.words.features import FEATURES, Masks, columns_of, counted_as_published, feature_masks, published_masks

Maps = Float[np.ndarray, "models features layers heads"]


@dataclass(frozen=True)
class Scores:
    """The statistic of every example, and which examples count.

    Args:
        values: for each model.
        counted: whether an example is part of a feature's mean.
    """

    values: Float[np.ndarray, "examples models features layers heads"]
    counted: Any

    @property
    def means(self) -> Maps:
        """The mean over the examples that count; NaN where none does."""
        weights = self.counted.astype(np.float64)
        total = np.einsum("ef,emflh->mflh", weights, self.values.astype(np.float64))
        with np.errstate(invalid="ignore"):
            return total / weights.sum(0)[:, None, None]

    @property
    def margins(self) -> Maps:
        """Half the width of the means' 95 % intervals."""
        weights, count = self.counted.astype(np.float64), self.counted.sum(0)[:, None, None]
        apart = (self.values - np.nan_to_num(self.means)) ** 2
        total = np.einsum("ef,emflh->mflh", weights, apart)
        with np.errstate(invalid="ignore", divide="ignore"):
            return 1.96 * np.sqrt(np.where(count > 1, total / (count - 1) / count, np.nan))


def feature_columns(*arrays: Array) -> Float[Array, "batch models features layers heads"]:
    """The largest column mean of each feature: of maps of one or several models, then mask and features' tokens."""
    *models, keep, masks = arrays
    return jnp.stack([columns_of(maps, keep, masks) for maps in models], axis=1)


def score_features(run: Run, models: tuple[Any, ...], texts: Sequence[Encoding], masks: Masks) -> Scores:
    """The statistic of every example; an example without a feature does not count for it."""
    config = run.model.config
    size = 8 * masks.shape[-1] * config.num_hidden_layers * config.num_attention_heads * len(models)
    values = reduce_attention(models, texts, feature_columns, [masks], example_bytes=size, report=run.report)
    return Scores(values, masks.any(-1))


def load_models(run: Run, sample: AnnotatedSample) -> tuple[Any, ...]:
    """The base model, and the fine-tuned one where there is one. Raises as `check_tuned`."""
    if not run.options.tuned:
        return (run.model,)
    first, *second = zip(*([text.text for text in texts] for texts in sample.annotations), strict=True)
    return run.model, bertjax.load(check_tuned(run, first, second[0] if second else None))


def compute(run: Run) -> Outcome:
    """The maps of all features, of one mode or both."""
    sample = read_annotated(run)
    models, samples = load_models(run, sample), {"corrected": sample}
    scores = {"corrected": score_features(run, models, sample.texts, feature_masks(sample))}
    if run.options.as_published:
        samples["as_published"] = read = read_annotated(run, published=True)
        found = score_features(run, models, read.texts, published_masks(read, run.tokenizer))
        scores["as_published"] = Scores(found.values, counted_as_published(read))
    return _outcome(run, samples, scores)


def _outcome(run: Run, samples: dict[str, AnnotatedSample], scores: dict[str, Scores]) -> Outcome:
    names, source = ["base", "tuned"][: 1 + bool(run.options.tuned)], samples["corrected"].source
    numbers: dict[str, Any] = {"data": {mode: sample.told() for mode, sample in samples.items()}}
    if run.options.tuned:
        numbers["tuned"] = tell_tuned(run.options.tuned)
    values: dict[str, np.ndarray] = {}
    for mode, found in scores.items():
        numbers[mode] = _report(found, names)
        values |= {f"{mode}_values": found.values, f"{mode}_counted": found.counted}
        values[f"{mode}_ids"] = np.array(samples[mode].ids)
    shown = scores["as_published" if run.options.as_published else "corrected"]
    absent = [name for name, some in zip(FEATURES, shown.counted.any(0), strict=True) if not some]
    lines = [source, *_summary(shown), *([f"in no text: {', '.join(absent)}"] if absent else [])]
    if run.options.as_published:
        both = zip(scores["as_published"].means, scores["corrected"].means, strict=True)
        apart = {name: compare(*maps) for name, maps in zip(names, both, strict=True)}
        numbers["published_against_corrected"] = apart
        for model, features in apart.items():
            lines += [say_agreement(f"{model}, {name}", found) for name, found in features.items()]
    mode = ", as published" if run.options.as_published else ""
    tuned = f" (base) and {run.options.tuned} (fine-tuned)" if run.options.tuned else ""
    subtitle = f"{run.options.model}{tuned}, {source}{mode}"

    def draw(path: Path) -> None:
        rows = _panels(shown)
        title = "Attention to linguistic features and special tokens"
        note = "weight that a feature's most attended token gets, mean over texts"
        draw_grid(path, rows, title, subtitle, note, shared=bool(run.options.tuned))

    return Outcome(numbers, values, draw, lines)


def compare(
    published: Float[np.ndarray, "features layers heads"], corrected: Float[np.ndarray, "features layers heads"]
) -> dict[str, Any]:
    """How far the maps of each feature that both have are apart."""
    return {
        name: compare_maps(one, other)
        for name, one, other in zip(FEATURES, published, corrected, strict=True)
        if np.isfinite(one).all() and np.isfinite(other).all()
    }


def _report(scores: Scores, names: Sequence[str]) -> dict[str, Any]:
    means, margins = scores.means, scores.margins
    found: dict[str, Any] = {"examples": dict(zip(FEATURES, scores.counted.sum(0).tolist(), strict=True))}
    for number, name in enumerate(names):
        found[name] = {}
        for place, feature in enumerate(FEATURES):
            count = int(scores.counted[:, place].sum())
            half = margins[number, place].round(6).tolist() if count > 1 else None  # one example has no spread
            if count:
                found[name][feature] = {"mean": means[number, place].round(6).tolist(), "interval": half}
    return found


def _summary(scores: Scores) -> list[str]:
    lines = []
    for place, feature in enumerate(FEATURES):
        count, means = int(scores.counted[:, place].sum()), scores.means[:, place]
        if not count:
            continue
        layer, head = np.unravel_index(means[0].argmax(), means[0].shape)
        margin = scores.margins[0, place, layer, head]
        spread = f" ± {margin:.3f}" if count > 1 else ""
        line = f"{feature}: {count} texts, head {layer}.{head} most, {means[0].max():.3f}{spread}"
        if len(means) > 1:
            change = means[1] - means[0]
            line += f"; fine-tuned {change.mean():+.3f} on average, {change.min():+.3f} to {change.max():+.3f}"
        lines.append(line)
    return lines


def _panels(scores: Scores) -> list[list[Panel]]:
    """A row of base, fine-tuned and difference for each feature; of one model, three features to a row."""
    rows = []
    for place, feature in enumerate(FEATURES):
        if not scores.counted[:, place].any():
            continue
        maps = scores.means[:, place]
        title = f"{feature}{', base' * (len(maps) > 1)} ({int(scores.counted[:, place].sum()):,} texts)"
        rows.append([Panel(title, maps[0])])
        if len(maps) > 1:
            rows[-1] += [Panel("fine-tuned", maps[1]), Panel("difference", maps[1] - maps[0])]
    if len(scores.means) > 1:
        return rows
    return [[panel for row in rows[place : place + 3] for panel in row] for place in range(0, len(rows), 3)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("linguistic_features", __doc__)
    add_annotation_options(parser)
    parser.add_argument("--tuned", metavar="M", help="a fine-tuned model to compare with, of the same size")
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
