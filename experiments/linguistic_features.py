"""How much do heads attend to nouns, verbs, subjects, negation, [CLS], [SEP]? (Kovaleva et al. 2019, 4.4, figure 6)

For each example and head, a token gets some weight on average over all real tokens as queries. Of a feature's tokens
two numbers are taken, and averaged over the examples that have the feature, with 95 % intervals (normal theory):

- relative: their mean, times the tokens of the input: 1 is what uniform attention gives. Neither many tokens of a
  feature nor a short input make it larger, so that features, texts and tasks can be compared: pictures show this one,
  with one scale, and pale where q >= 0.05 of being other than 1 (over all heads and features of a task).
- largest: that of the token that gets most, the paper's. A maximum of many is larger than one of few.

Beside them stands what a feature gets more than the other tokens of the texts: where [CLS] takes half of all attention,
nouns may be far below 1, and above other words. Tokens are those that a word overlaps by its place in the text. Sets of
tags, roles, negation and punctuation: `words/annotated.py`, `words/features.py`.

With --tuned, a model fine-tuned on each task (named once for each seed): the change, its mean over seeds.

--as-published also takes what the authors' code takes: the largest; a word's pieces wherever the same pieces stand in
the input; 0 for an example without the feature; negation by a list of words looked for as a part of the text, capitals
as they stand, and examples where it stands nowhere left out; the larger of both [SEP]; a task's TSV file read with
quote handling.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from 200 sentences of the English Web Treebank that
come with the program, or from tasks (--task), as many as you like. Of a task's words the places alone are known, which
is enough for negation and punctuation. Parts of speech come from spaCy (--spacy), which also gives subjects and
objects, or from a tagger that learns from annotated sentences first (--tagger; nltk); without either they are left out.

    python -m experiments.linguistic_features                                                20 s of processor time
    python -m experiments.linguistic_features --conllu en_ewt-ud-dev.conllu                  45 s (1,000 sentences)
    python -m experiments.linguistic_features --task mrpc sst2 --data GLUE_DIR --tuned DIR_OF_MRPC DIR_OF_SST2
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.tuned import add_tuned_option
from experiments.words.annotation import add_annotation_options
from experiments.words.columns import Columns, largest_means, measure_columns, report_base, report_tuned
from experiments.words.estimates import Estimate, name_head, read_estimate
from experiments.words.feature_pages import figures, tables
from experiments.words.features import FEATURES, TEXT, Masks, counted_as_published, feature_masks, published_masks
from experiments.words.sources import Source, measure_sources

__all__ = ["compute", "figures", "main", "tables"]


def compute(run: Run) -> Outcome:
    """The estimates of all features of each task, in one mode or both."""
    return measure_sources(run, measure_source, summarise, figures)


def measure_source(source: Source) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers of one task, and the values of each example that they are made of."""
    sample, read = source.sample, source.published
    masks = feature_masks(sample)
    corrected, published = [], []
    for model in source.models():
        corrected.append(measure_columns(source.run, model, sample.texts, masks))
        if read is not None:
            marks = published_masks(read, source.run.tokenizer)
            published.append(measure_columns(source.run, model, read.texts, marks))
    known = [name for number, name in enumerate(FEATURES) if name not in sample.unknown and masks[:, number].any()]
    found: dict[str, Any] = {"features": {name: report_feature(corrected, masks, name) for name in known}}
    several = name_models(corrected)
    values = {f"{model}_relative": one.relative for model, one in several.items()}
    values |= {f"{model}_largest": one.largest for model, one in several.items()}
    values |= {"counted": masks.any(-1), "ids": np.array(sample.ids)}
    if read is not None:
        counted, names = counted_as_published(read), [name for name in FEATURES if name != TEXT]
        maps = [largest_means(one, counted, names) for one in published]
        found["as_published"] = [{name: one.told() for name, one in several.items()} for several in maps]
        found["published_examples"] = {name: int(some) for name, some in zip(FEATURES, counted.sum(0), strict=True)}
        found["published_against_corrected"] = compare(
            maps[0], largest_means(corrected[0], np.asarray(masks.any(-1)), known)
        )
        values |= {f"published_{model}": one.largest for model, one in name_models(published).items()}
        values |= {"published_counted": counted, "published_ids": np.array(read.ids)}
    return found, values


def report_feature(models: Sequence[Columns], masks: Masks, feature: str) -> dict[str, Any]:
    """All numbers of one feature."""
    own = masks[:, FEATURES.index(feature)].sum(-1)
    found: dict[str, Any] = {"examples": int((own > 0).sum()), "tokens": round(float(own[own > 0].mean()), 3)}
    base, *tuned = models
    found["base"] = report_base(base, masks, feature)
    if tuned:
        found["tuned"] = report_tuned(base, tuned, masks, feature)
    return found


def name_models(several: Sequence[Any]) -> dict[str, Any]:
    """The base model's, then each tuned one's."""
    return {f"tuned_{number}" if number else "base": one for number, one in enumerate(several)}


def compare(published: dict[str, Estimate], corrected: dict[str, Estimate]) -> dict[str, Any]:
    """How far the maps of each feature that both have are apart, by the measure that both have."""
    return {name: compare_maps(one.mean, corrected[name].mean) for name, one in published.items() if name in corrected}


def summarise(name: str, source: Source, found: dict[str, Any]) -> list[str]:
    """What is printed of a task."""
    lines = [f"{name}: {len(source.sample):,} examples ({source.sample.source})"]
    for feature, own in found["features"].items():
        lines.append(f"  {feature} ({own['examples']:,} examples): {_say_feature(own)}")
    if source.sample.unknown:
        absent = ", ".join(source.sample.unknown)
        lines.append(f"  not known without a tagger or parser, and left out (--spacy, --tagger): {absent}")
    apart = found.get("published_against_corrected", {})
    same = [feature for feature, one in apart.items() if not one["largest_difference"]]
    lines += [f"  largest, {say_agreement(feature, one)}" for feature, one in apart.items() if feature not in same]
    if same:
        lines.append(f"  largest, the same as published and corrected: {', '.join(same)}")
    return lines


def _say_feature(own: dict[str, Any]) -> str:
    relative, largest = (read_estimate(own["base"][name]) for name in ("relative", "largest"))
    heads, place = relative.mean.shape[1], int(relative.mean.argmax())
    said = f"{relative.mean.mean():.2f} times uniform, {name_head(place, heads)} most, {relative.mean.max():.2f}"
    place_largest = int(largest.mean.argmax())
    said += f"; largest weight {name_head(place_largest, heads)} {largest.mean.max():.3f}"
    if "tuned" in own:
        change = read_estimate(own["tuned"]["change"]).mean
        seeds = len(own["tuned"]["relative_by_seed"])
        said += f"; fine-tuned ({seeds} seed{'s' * (seeds > 1)}) {change.mean():+.2f}"
        said += f", {change.min():+.2f} to {change.max():+.2f}"
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("linguistic_features", __doc__)
    add_annotation_options(parser)
    add_tuned_option(parser, optional=True)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
