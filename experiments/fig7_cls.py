"""Figure 7: what does [CLS] attend to, and do heads link subjects with verbs? (Kovaleva et al. 2019, 4.5)

For each head and relation (subject to verb, verb to subject, pronoun to noun, noun to pronoun; defined in
`words/relations.py`): the largest weight from a token of a source to a token of its target, averaged over the examples
that have the relation; and how often the word that a source attends to most, special tokens left out, is its target.
Heads that follow no relation find targets too, so each is compared with four controls that follow none:

- distance: the best fixed distance in words, chosen on the same examples (Clark et al. 2019);
- nearest: the nearest word of the target's kind, before or after (the next verb for a subject, and so on);
- others: the head itself from all other words of the text, since a head that looks at the target from everywhere passes
  the first two;
- neighbours: the same from the words at most two words from the source.

A head follows a relation if it beats all four: random signs of the examples, q < 0.05 over all heads for each
(Benjamini and Hochberg 1995). Its weight is also compared with its weight at the same distances in tokens elsewhere.

For pairs of texts, also: the share of a word's attention that goes to the same word in the other text (or another form
of its stem; nltk), against the same query with other words, words in the same places, and the same key from other words
(`words/shared_words.py`); q over all heads, normal theory.

The [CLS] row of the last layer (figure 7): the largest weight on a feature's tokens, over the examples that have it, as
the authors show it; the same times the number of tokens of the input, which is 1 where attention is uniform; and the
mean weight on the feature's tokens times the number of tokens of the input, which does not grow with the number of the
feature's tokens.

--as-published also computes what the authors' code does: the pieces of all sources and of all targets, wherever they
stand, paired one to one in order; the largest weight; 0 for an example without the relation.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from 200 sentences of the English Web Treebank that
come with the program, or from any number of tasks (--task). Relations of a task's words need spaCy (--spacy); without
it they are left out. Pronoun and noun need entities, as GUM has them (`Entity=` in its files). With --tuned, a model
fine-tuned on each task (named once for each seed). --patterns takes the `numbers.json` of
`fig2_patterns` on the same model, and reports how diagonal the heads that link words are.

    python -m experiments.fig7_cls --conllu en_gum-ud-dev.conllu         71 s of processor time (1,000 sentences)
    python -m experiments.fig7_cls --task mrpc stsb --data GLUE_DIR --tuned DIR_OF_MRPC DIR_OF_STSB
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.shared.agreement import compare_maps
from experiments.shared.run import Found, Run, make_parser, run_script
from experiments.shared.tables import name_head
from experiments.words.annotated import ROLES
from experiments.words.annotation import Source, Values, add_annotation_options, measure_sources
from experiments.words.cls_row import report_row
from experiments.words.estimates import LEVEL, listed
from experiments.words.features import feature_masks
from experiments.words.links import follow_links, follow_published, measure
from experiments.words.pairs import measure_pairs
from experiments.words.pattern_join import read_patterns
from experiments.words.positions import Margin
from experiments.words.relation_report import figures, tables
from experiments.words.shared_words import Shared, report_change, report_shared

__all__ = ["compute", "figures", "main", "tables"]


def compute(run: Run) -> Found:
    """Relations, shared words and [CLS] row of each task, in one mode or both."""
    results, values = measure_sources(run, measure_source)
    return results | ({"patterns": read_patterns(run.options.patterns)} if run.options.patterns else {}), values


def measure_source(source: Source) -> tuple[dict[str, Any], Values]:
    """The numbers of one task, and the values of each example behind them."""
    sample, run = source.sample, source.run
    masks, lengths = feature_masks(sample), np.array([len(text) for text in sample.texts])
    reports: list[dict[str, Any]] = []
    values: Values = {"lengths": lengths, "features": np.asarray(masks.any(-1)), "ids": np.array(sample.ids)}
    shared_by_model: list[Shared] = []
    for number, model in enumerate(source.models()):
        row, shared = measure_pairs(run, model, sample, masks)
        shared_by_model.append(shared)
        report: dict[str, Any] = {"cls_row": report_row(row, masks, lengths), "shared_words": report_shared(shared)}
        values |= {f"{number}_row": row.largest, f"{number}_row_mean": row.mean, f"{number}_shared": shared.values}
        values["shared_links"] = shared.links
        if not set(ROLES) & set(sample.unknown):
            report["relations"], arrays = measure_relations(source, model)
            values |= {f"{number}_{name}": value for name, value in arrays.items()}
        reports.append(report)
    results: dict[str, Any] = {"models": reports}
    if len(shared_by_model) > 1:
        results["shared_words_change"] = report_change(shared_by_model[0], shared_by_model[1:])
    if source.published is not None:
        published, arrays = measure_published(source, reports[0])
        results |= published
        values |= arrays
    return results, values


def measure_relations(source: Source, model: Any) -> tuple[dict[str, Any], Values]:
    """The relations of one model."""
    links = follow_links(source.run, model, source.sample)
    relations = {name: report_relation(measures) for name, measures in measure(source.run, links).items()}
    return relations, {name: getattr(links, name) for name in ("sources", "largest", "hits", "same_key")}


def report_relation(measures: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one relation; `followed_by` names the heads that beat all controls."""
    report = {name: measures[name] for name in ("examples", "sources", "best_distance", "nearest")}
    report |= {name: listed(measures[name]) for name in ("mean", "share")}
    report["control_shares"] = {name: listed(share) for name, share in measures["shares"].items()}
    report["margins"] = {name: _margin_dict(margin) for name, margin in measures["margins"].items()}
    beyond = np.all([margin.q_values < LEVEL for margin in measures["margins"].values()], axis=0)
    return report | {"followed_by": [name_head(int(place), beyond.shape[1]) for place in np.flatnonzero(beyond)]}


def _margin_dict(margin: Margin) -> dict[str, Any]:
    report = {name: listed(values) for name, values in vars(margin).items()}
    return report | {"significant_heads": int((margin.q_values < LEVEL).sum())}


def measure_published(source: Source, report: Mapping[str, Any]) -> tuple[dict[str, Any], Values]:
    """What the authors' code computes with the base model, and its difference from the corrected form."""
    assert source.published is not None
    all_maps, row, values = follow_published(source.run, source.run.model, source.published)
    maps = {name: all_maps[name] for name in report.get("relations", {})}
    corrected = report["cls_row"]
    agreement = {name: compare_maps(maps[name], np.array(report["relations"][name]["mean"])) for name in maps}
    agreement |= {
        f"[CLS] to {feature}": compare_maps(weights, np.array(corrected[feature]["largest"]))
        for feature, weights in row.items()
        if feature in corrected
    }
    numbers = {
        "maps": {name: listed(weights) for name, weights in maps.items()},
        "cls_row": {name: listed(weights) for name, weights in row.items()},
    }
    arrays = {"published": values, "published_ids": np.array(source.published.ids)}
    return {"as_published": numbers, "published_against_corrected": agreement}, arrays


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, published=True, norms=True)
    add_annotation_options(parser)
    parser.add_argument("--draws", type=int, default=10000, metavar="N", help="random signs (default %(default)s)")
    parser.add_argument("--patterns", metavar="FILE", help="numbers.json of fig2_patterns for the same model")
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
