"""Figure 6: how much do heads attend to nouns, verbs, subjects, negation, [CLS], [SEP]? (Kovaleva et al. 2019, 4.4)

For each example and head, a token's weight is averaged over all real tokens as queries. Two numbers summarise the
tokens of a feature; they are averaged over the examples that have the feature, with 95 % intervals (normal theory):

- relative: the mean of the tokens' weights times the number of tokens of the input; uniform attention gives 1. Neither
  many tokens of a feature nor a short input make it larger, so features, texts and tasks can be compared. Figures show
  this number on one scale, struck through where it does not differ from 1 at q < 0.05 (over all heads and features of
  a task).
- largest: the largest of the tokens' weights, the paper's number. The maximum of many is larger than that of few.

Beside them is the excess of a feature over the other tokens of the texts: where [CLS] takes half of all attention,
nouns may be far below 1 and yet above other words. A word's tokens are those that overlap it by place in the text. Sets
of tags, roles, negation and punctuation: `words/annotated.py`, `words/features.py`.

With --tuned, a model fine-tuned on each task (named once for each seed): the change, its mean over seeds.

--as-published also computes what the authors' code does: the largest; a word's pieces wherever the same pieces stand in
the input; 0 for an example without the feature; negation by a list of words searched for as substrings of the text,
case-sensitive, leaving out examples without a match; the larger of both [SEP]; a task's TSV file read with quote
handling.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from 200 sentences of the English Web Treebank that
come with the program, or from any number of tasks (--task). For a task's words only the places are known, which is
enough for negation and punctuation. Parts of speech come from spaCy (--spacy), which also gives subjects and objects,
or from a tagger that is first trained on annotated sentences (--tagger; nltk); without either they are left out.

    python -m experiments.fig6_features                                                20 s of processor time
    python -m experiments.fig6_features --conllu en_ewt-ud-dev.conllu                  45 s (1,000 sentences)
    python -m experiments.fig6_features --task mrpc sst2 --data GLUE_DIR --tuned DIR_OF_MRPC DIR_OF_SST2
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.published import counted_as_published, published_masks
from experiments.shared.agreement import compare_maps
from experiments.shared.run import Found, Run, make_parser, run_script
from experiments.words.annotation import Source, add_annotation_options, measure_sources
from experiments.words.columns import Columns, largest_means, measure_columns, report_base, report_tuned
from experiments.words.estimates import Estimate
from experiments.words.feature_report import figures, tables
from experiments.words.features import FEATURES, TEXT, Masks, feature_masks

__all__ = ["compute", "figures", "main", "tables"]


def compute(run: Run) -> Found:
    """The estimates of all features of each task, in one mode or both."""
    return measure_sources(run, measure_source)


def measure_source(source: Source) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers of one task, and the values of each example behind them."""
    sample, published_sample = source.sample, source.published
    masks = feature_masks(sample)
    corrected, published = [], []
    for model in source.models():
        corrected.append(measure_columns(source.run, model, sample.texts, masks))
        if published_sample is not None:
            marks = published_masks(published_sample, source.run.tokenizer)
            published.append(measure_columns(source.run, model, published_sample.texts, marks))
    available = [name for number, name in enumerate(FEATURES) if name not in sample.unknown and masks[:, number].any()]
    report: dict[str, Any] = {"features": {name: report_feature(corrected, masks, name) for name in available}}
    columns_by_model = name_models(corrected)
    values = {f"{model}_relative": columns.relative for model, columns in columns_by_model.items()}
    values |= {f"{model}_largest": columns.largest for model, columns in columns_by_model.items()}
    values |= {"counted": masks.any(-1), "ids": np.array(sample.ids)}
    if published_sample is not None:
        counted, names = counted_as_published(published_sample), [name for name in FEATURES if name != TEXT]
        maps = [largest_means(model_columns, counted, names) for model_columns in published]
        report["as_published"] = [
            {name: estimate.to_dict() for name, estimate in estimates.items()} for estimates in maps
        ]
        report["published_examples"] = {name: int(count) for name, count in zip(FEATURES, counted.sum(0), strict=True)}
        report["published_against_corrected"] = compare(
            maps[0], largest_means(corrected[0], np.asarray(masks.any(-1)), available)
        )
        values |= {f"published_{model}": columns.largest for model, columns in name_models(published).items()}
        values |= {"published_counted": counted, "published_ids": np.array(published_sample.ids)}
    return report, values


def report_feature(models: Sequence[Columns], masks: Masks, feature: str) -> dict[str, Any]:
    """All numbers of one feature."""
    counts = masks[:, FEATURES.index(feature)].sum(-1)
    report: dict[str, Any] = {"examples": int((counts > 0).sum()), "tokens": round(float(counts[counts > 0].mean()), 3)}
    base, *tuned = models
    report["base"] = report_base(base, masks, feature)
    if tuned:
        report["tuned"] = report_tuned(base, tuned, masks, feature)
    return report


def name_models(models: Sequence[Any]) -> dict[str, Any]:
    """The values by model name: the base model's, then each tuned model's."""
    return {f"tuned_{number}" if number else "base": model for number, model in enumerate(models)}


def compare(published: dict[str, Estimate], corrected: dict[str, Estimate]) -> dict[str, Any]:
    """How far the two forms of the maps differ, for each feature that both have."""
    return {
        name: compare_maps(estimate.mean, corrected[name].mean)
        for name, estimate in published.items()
        if name in corrected
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, published=True, norms=True)
    add_annotation_options(parser)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
