"""Do heads link subjects with verbs, pronouns with nouns? What does [CLS] attend to? (Kovaleva et al. 2019, 4.5)

For each head and relation (subject to verb, verb to subject, pronoun to noun, noun to pronoun; `words/relations.py`
says which): the largest weight from a token of a source to a token of its target, averaged over the examples that have
the relation; and how often the word that a source attends to most, special tokens left out, is its target. Heads that
follow no relation find targets too, so each is held against four that do not:

- distance: the best fixed distance in words, chosen on the same examples (Clark et al. 2019);
- nearest: the nearest word of the target's kind, before or after (the next verb for a subject, and so on);
- others: the head itself from all other words of the text: one that looks at the target from everywhere passes the
  first two;
- neighbours: the same from the words that stand at most two words from the source.

A head follows a relation where it beats all four: random signs of the examples, q < 0.05 over all heads for each
(Benjamini and Hochberg 1995). Its weight is also held against what it gives at the same distances in tokens elsewhere.

In pairs of texts, also: the share of a word's attention that goes to the same word in the other text (or another form
of its stem; nltk), against the same query with other words, words in the same places, and the same key from other words
(`words/shared_words.py`); q over all heads, normal theory.

The [CLS] row of the last layer (figure 7): the largest weight on a feature's tokens, over the examples that have it, as
the authors show it; the same times the tokens of the input, which is 1 where attention is uniform; and the mean weight
on the feature's tokens times the tokens of the input, which does not grow with the number of the feature's tokens.

--as-published also takes what the authors' code takes: the pieces of all sources and of all targets, wherever they
stand, paired one to one in order; the largest weight; 0 for an example without the relation.

Words come from CoNLL-U (--conllu; the package `conllu` reads it), from 200 sentences of the English Web Treebank that
come with the program, or from tasks (--task), as many as you like. Relations of a task's words need spaCy (--spacy);
without it they are left out. Pronoun and noun need entities, as GUM has them (`Entity=` in its files). With --tuned, a
model fine-tuned on each task (named once for each seed). --patterns takes the `numbers.json` of
`experiments.attention_patterns` on the same model, and says how diagonal the heads are that link words.

    python -m experiments.token_to_token --conllu en_gum-ud-dev.conllu         71 s of processor time (1,000 sentences)
    python -m experiments.token_to_token --task mrpc stsb --data GLUE_DIR --tuned DIR_OF_MRPC DIR_OF_STSB
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.cli import positive
from bertjax.errors import DataError
from bertjax.model import PretrainedModel
from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.tuned import add_tuned_option
from experiments.words.annotated import ROLES
from experiments.words.annotation import add_annotation_options
from experiments.words.cls_row import report_row
from experiments.words.estimates import LEVEL, listed, name_head
from experiments.words.features import feature_masks
from experiments.words.links import CONTROLS, follow_links, follow_published, measure
from experiments.words.pairs import measure_pairs
from experiments.words.pattern_join import read_patterns
from experiments.words.positions import Margin
from experiments.words.relation_pages import figures, say_shared, tables
from experiments.words.relations import RELATIONS
from experiments.words.shared_words import Shared, report_change, report_shared
from experiments.words.sources import Source, Values, measure_sources

__all__ = ["compute", "figures", "main", "tables"]


def compute(run: Run) -> Outcome:
    """Relations, shared words and [CLS] row of each task, in one mode or both."""
    patterns = read_patterns(run.options.patterns, run.options.model) if run.options.patterns else None
    return measure_sources(run, measure_source, summarise, figures, {"patterns": patterns} if patterns else None)


def measure_source(source: Source) -> tuple[dict[str, Any], Values]:
    """The numbers of one task, and the values of each example that they are made of.

    Raises:
        DataError: a file in which no relation at all is annotated.
    """
    sample, run = source.sample, source.run
    masks, lengths = feature_masks(sample), np.array([len(text) for text in sample.texts])
    reports: list[dict[str, Any]] = []
    values: Values = {"lengths": lengths, "features": np.asarray(masks.any(-1)), "ids": np.array(sample.ids)}
    several: list[Shared] = []
    for number, model in enumerate(source.models()):
        row, shared = measure_pairs(run, model, sample, masks)
        several.append(shared)
        report: dict[str, Any] = {"cls_row": report_row(row, masks, lengths), "shared_words": report_shared(shared)}
        values |= {f"{number}_row": row.largest, f"{number}_row_mean": row.mean, f"{number}_shared": shared.values}
        values["shared_links"] = shared.links
        if not set(ROLES) & set(sample.unknown):
            report["relations"], kept = measure_relations(source, model)
            values |= {f"{number}_{name}": value for name, value in kept.items()}
        reports.append(report)
    found: dict[str, Any] = {"models": reports}
    if len(several) > 1:
        found["shared_words_change"] = report_change(several[0], several[1:])
    if source.published is not None:
        published, kept = measure_published(source, reports[0])
        found |= published
        values |= kept
    return found, values


def measure_relations(source: Source, model: PretrainedModel) -> tuple[dict[str, Any], Values]:
    """The relations of one model. Raises `DataError` where there is none."""
    found = follow_links(source.run, model, source.sample)
    relations = measure(source.run, found)
    if not relations:
        where = source.sample.source
        raise DataError(f"{where}: no subject of a verb, and no pronoun and noun of one entity, is annotated")
    taken = ("sources", "largest", "hits", "same_key", "excess")
    return {name: report_relation(one) for name, one in relations.items()}, {
        name: getattr(found, name) for name in taken
    }


def report_relation(one: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one relation; `followed_by` are the heads that beat all controls."""
    kept = {name: one[name] for name in ("examples", "sources", "best_distance", "nearest")}
    kept |= {name: listed(one[name]) for name in ("mean", "share")}
    kept["control_shares"] = {name: listed(share) for name, share in one["shares"].items()}
    kept["margins"] = {name: _told(margin) for name, margin in one["margins"].items()}
    kept["excess"] = _told(one["excess"])
    beyond = np.all([margin.q_values < LEVEL for margin in one["margins"].values()], axis=0)
    return kept | {"followed_by": [name_head(int(place), beyond.shape[1]) for place in np.flatnonzero(beyond)]}


def _told(margin: Margin) -> dict[str, Any]:
    found = {name: listed(values) for name, values in vars(margin).items()}
    return found | {"significant_heads": int((margin.q_values < LEVEL).sum())}


def measure_published(source: Source, report: Mapping[str, Any]) -> tuple[dict[str, Any], Values]:
    """What the authors' code computes with the base model, and how far it is from the corrected form."""
    assert source.published is not None
    all_maps, row, values = follow_published(source.run, source.run.model, source.published)
    maps = {name: all_maps[name] for name in report.get("relations", {})}
    corrected = report["cls_row"]
    apart = {name: compare_maps(maps[name], np.array(report["relations"][name]["mean"])) for name in maps}
    apart |= {
        f"[CLS] to {feature}": compare_maps(one, np.array(corrected[feature]["largest"]))
        for feature, one in row.items()
        if feature in corrected
    }
    told = {
        "maps": {name: listed(one) for name, one in maps.items()},
        "cls_row": {name: listed(one) for name, one in row.items()},
    }
    kept = {"published": values, "published_ids": np.array(source.published.ids)}
    return {"as_published": told, "published_against_corrected": apart}, kept


def summarise(name: str, source: Source, found: Mapping[str, Any]) -> list[str]:
    """What is printed of a task."""
    lines = [f"{name}: {len(source.sample):,} examples ({source.sample.source})"]
    base = found["models"][0]
    for relation, one in base.get("relations", {}).items():
        lines += _say_relation(relation, one)
    lines += say_shared(base["shared_words"])
    if "relations" not in base:
        lines.append("  no relations: a task's need a parser (--spacy)")
    elif missing := [relation for relation in RELATIONS if relation not in base["relations"]]:
        lines.append(f"  {', '.join(missing)}: none here; pronoun and noun need entities, as GUM's files have them")
    apart = found.get("published_against_corrected", {})
    same = [name for name, one in apart.items() if one["largest_difference"] < SAME]
    lines += [f"  {say_agreement(name, one)}" for name, one in apart.items() if name not in same]
    if same:
        lines.append(f"  the same as published and corrected: {', '.join(same)}")
    return lines


SAME = 1e-6  # of weights, which numbers.json rounds


def _say_relation(relation: str, one: Mapping[str, Any]) -> list[str]:
    share = np.array(one["share"])
    place, heads = int(share.argmax()), share.shape[1]
    lines = [
        f"  {relation}: {one['sources']:,} in {one['examples']:,} texts, head {name_head(place, heads)} finds most, "
        f"{100 * share.max():.1f} %"
    ]
    said = {
        "distance": f"the word at {one['best_distance']:+d}",
        "nearest": f"the nearest word of the kind {one['nearest']}",
    }
    for control in CONTROLS:
        margin, found = one["margins"][control], np.array(one["control_shares"][control])
        own, half = (100 * np.array(margin[name]).ravel()[place] for name in ("mean", "interval"))
        there = found if found.ndim == 0 else found.ravel()[place]
        lines.append(
            f"    {said.get(control, f'it from {control}')} finds {100 * there:.1f} %: margin {own:+.1f} ± {half:.1f}; "
            f"{margin['significant_heads']} of {share.size} heads find more (q < {LEVEL})"
        )
    heads_found = ", ".join(one["followed_by"]) or "none"
    return [*lines, f"    heads that find more than all of these: {heads_found}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("token_to_token", __doc__)
    add_annotation_options(parser)
    add_tuned_option(parser, optional=True)
    text = "random signs of the null (default %(default)s)"
    parser.add_argument("--draws", type=positive, default=10000, metavar="N", help=text)
    text = "numbers.json of experiments.attention_patterns on the same model"
    parser.add_argument("--patterns", metavar="FILE", help=text)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
