"""Does this reproduction give the authors' numbers for bert-base-uncased without fine-tuning? (Kovaleva et al. 2019)

Anyone who has that model can check with one command, which compares what the authors' code computes with what they
published:

- two rows of attention maps, of the query "he" in "He was becoming agitated .": each weight to 0.005;
- the map over their 473 FrameNet sentences (4.2: for each sentence the largest weight of its pairs): each head to
  0.002. It was read from a picture, to 0.001; the number of heads within 0.002 and within 0.003 is printed beside the
  verdict;
- the maps over 1,000 examples of QQP (4.4, 4.5) of [CLS], [SEP] and negation, with --data, and of parts of speech,
  subjects, objects and the links between them, with --data and --spacy. These were read from pictures too, and one
  number of each picture is unknown: the value of its lowest colour. The lowest head of a map is therefore held to 0.03,
  one of the highest colour to one step of the colours (1/256 of the range), and those between in proportion. (The
  highest colour is known: it is that of the highest head before or after fine-tuning.) Four standard errors of a
  difference are added to each tolerance, since both sides are random samples.

The unknown lower bound stretches a map but keeps the order of its heads. Each map of QQP must therefore also have a
rank correlation (Spearman) of at least 0.9 with the published one, and so must the layers' means of [SEP]. (Two samples
of 1,000 examples reach .98 where a weight's standard deviation equals its mean, .93 where it is twice the mean.) The
highest head must be the paper's: 1.6 for [CLS], 10.1 for [SEP]. Maps that are 0, constant or shuffled all fail.

For each anchor the table shows the number that is furthest off and the rank correlation of all its numbers; other
reasons for failing are listed below it. What cannot be run is reported as not run.

    python -m experiments.anchors                                        with bert-base-uncased of the hub
    python -m experiments.anchors --model DIR --data GLUE --spacy en_core_web_sm

Without bert-base-uncased the code is tested with invented anchors. `RESULTS.md` says what was run.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.plots import Panel
from experiments.frames.links import measure_published
from experiments.frames.sources import PUBLISHED, read_published
from experiments.published import LENGTH, counted_as_published, published_masks
from experiments.shared.checks import Check, check_map, mean_and_error, reading_error
from experiments.shared.example import attend, describe_example, draw_example
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, run_script
from experiments.shared.tables import make_table
from experiments.words.annotated import AnnotatedSample
from experiments.words.annotation import make_annotator, read_annotated
from experiments.words.columns import measure_columns
from experiments.words.features import FEATURES
from experiments.words.links import follow_published
from experiments.words.relations import RELATIONS

ANCHORS = Path(__file__).parent / "data" / "anchors.json"
MODEL = "bert-base-uncased"
WITHOUT_WORDS = ("negation", "[CLS]", "[SEP]")  # the authors look for negation as a substring of the text
VERDICTS = ("pass", "FAIL", "not run")


def check_rows(
    tokens: Sequence[str], maps: Float[np.ndarray, "layers heads query key"], anchors: Mapping[str, Any]
) -> Iterator[Check]:
    """The rows of attention maps printed in the paper and the notebook."""
    for name, row in anchors["rows"].items():
        layer, head = map(int, name.split("."))
        found = maps[layer, head, tokens.index(anchors["query"])]
        allowed = np.full(len(row), anchors["allowed"])
        yield Check(f"{anchors['query']!r} {name}", tokens, np.array(row), allowed, found)


def read_sentence(run: Run, anchors: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """The tokens of the paper's sentence and its maps."""
    tokens, maps = attend(run, anchors["sentence"])
    if tokens != anchors["tokens"]:
        raise SystemExit(f"{run.options.model} reads {anchors['sentence']!r} as {' '.join(tokens)}; is it {MODEL}?")
    return tokens, maps


def check_framenet(published: Float[np.ndarray, "examples layers heads"], anchors: Mapping[str, Any]) -> Check:
    """The map over the authors' FrameNet sentences, as their code computes it."""
    found = published.mean(0, dtype=np.float64)
    return check_map("FrameNet", np.array(anchors["map"]), np.array(anchors["allowed"]), found)


def check_qqp(values: Mapping[str, np.ndarray], anchors: Mapping[str, Any]) -> Iterator[Check]:
    """The maps of features and relations over examples of QQP, and the layers' means of the [SEP] map.

    Args:
        values: what `measure_qqp` returns, as far as there are data.
    """
    for name, rows in anchors["maps"].items():
        published = np.array(rows)
        title = f"QQP {name}"
        reading = reading_error(published, anchors["uppermost"][name], anchors)
        if name not in values:
            reason = "for want of --data" + ("" if name in WITHOUT_WORDS else " and --spacy")
            yield replace(check_map(title, published, reading, None), reason=reason)
            continue
        order = {"ranks": anchors["ranks"], "highest": anchors["highest"].get(name, "")}
        mean, error = mean_and_error(values[name], anchors["examples"])
        yield replace(check_map(title, published, reading + error, mean), **order)
        if name == "[SEP]":
            mean, error = mean_and_error(values[name].mean(-1), anchors["examples"])
            layers = [f"layer {layer}" for layer in range(len(mean))]
            allowed = reading.mean(-1) + error
            yield Check(f"QQP {name} by layer", layers, published.mean(-1), allowed, mean, ranks=anchors["ranks"])


def measure_qqp(run: Run) -> dict[str, Float[np.ndarray, "examples layers heads"]]:
    """The authors' value of each example that counts, for each feature and relation."""
    sample = read_qqp(run)
    values = measure_columns(run, run.model, sample.texts, published_masks(sample, run.tokenizer)).largest
    counted = dict(zip(FEATURES, counted_as_published(sample).T, strict=True))
    names = [name for name in FEATURES if counted[name].any()]
    measures = {name: values[counted[name], FEATURES.index(name)].astype(np.float64) for name in names}
    if run.options.spacy:
        values = follow_published(run, run.model, sample)[2]
        measures |= {name: values[:, number].astype(np.float64) for number, name in enumerate(RELATIONS)}
    return measures


def read_qqp(run: Run) -> AnnotatedSample:
    """Examples of QQP as the authors' code reads them; without --spacy they have few annotations."""
    settings: dict[str, Any] = {"task": "qqp", "split": "validation", "tagger": None, "max_length": LENGTH}
    options = Namespace(**vars(run.options) | settings)
    return read_annotated(replace(run, options=options), options, make_annotator(options), published=True)


def compute(run: Run) -> Found:
    """All checks."""
    anchors = json.loads(ANCHORS.read_text(encoding="utf-8"))
    tokens, maps = read_sentence(run, anchors["he"])
    frames = measure_published(run, read_published(PUBLISHED))
    qqp = measure_qqp(run) if run.options.data else {}
    checks = [*check_rows(tokens, maps, anchors["he"]), check_framenet(frames, anchors["framenet"])]
    framenet, reading = checks[-1], anchors["framenet"]["reading"]
    checks += check_qqp(qqp, anchors["qqp"])
    counts = {verdict: [check.verdict for check in checks].count(verdict) for verdict in VERDICTS}
    results = {"source": anchors["source"], "verdicts": counts, "checks": [_report(check) for check in checks]}
    results["framenet_within_reading"] = framenet.within(reading)
    results["example"] = describe_example(anchors["he"]["sentence"], tokens, maps, list(anchors["he"]["rows"]))
    return results, {"FrameNet": frames, **{f"QQP {name}": values for name, values in qqp.items()}}


def figures(numbers: Numbers) -> Figures:
    """The FrameNet map, published and found, and the heads of the paper's figure 3."""
    results, model = numbers["results"], numbers["settings"]["model"]
    check = next(check for check in results["checks"] if check["anchor"] == "FrameNet")
    shape = numbers["model"]["layers"], numbers["model"]["heads"]
    panels = [Panel(name, np.array(check[name]).reshape(shape)) for name in ("published", "found")]
    subtitle = f"{model}: {check['verdict']}"
    texts = Texts("From frame elements to predicates", subtitle, "mean weight")
    title = "The two heads of the paper's figure 3"
    example = partial(draw_example, example=results["example"], title=title, subtitle=model, notes={})
    return {"figure": partial(draw_maps, panels=panels, texts=texts), "examples": example}


def tables(runs: Runs) -> str:
    """A row for each anchor, with the number furthest off relative to its tolerance, and what else is wrong."""
    rows = []
    for check in (check for numbers in runs.values() for check in numbers["results"]["checks"]):
        if "found" not in check:
            rows.append([check["anchor"], "", "", "", "", "", f"{check['verdict']}, {check['reason']}"])
            continue
        found, published, allowed = (np.array(check[name], float) for name in ("found", "published", "allowed"))
        worst = int(np.argmax(np.nan_to_num(np.abs(found - published) - allowed, nan=np.inf)))
        ranks = "" if check["rank_correlation"] is None else f"{check['rank_correlation']:.2f}"
        cells = [f"{values[worst]:.3f}" for values in (published, found, allowed)]
        verdict = "; ".join([check["verdict"], *check["disorder"]])
        rows.append([check["anchor"], check["places"][worst], *cells, ranks, verdict])
    return make_table(["anchor", "furthest off", "published", "found", "allowed", "ranks", ""], rows)


def _report(check: Check) -> dict[str, Any]:
    report: dict[str, Any] = {"anchor": check.name, "verdict": check.verdict}
    if check.found is None:
        return report | {"reason": check.reason}
    rounded = [None if np.isnan(number) else round(number, 6) for number in check.found.tolist()]
    report |= {"within_allowed": check.within(), "disorder": list(check.disorder())}
    report |= {"rank_correlation": check.rank_correlation, "places": list(check.places), "found": rounded}
    return report | {"published": check.published.tolist(), "allowed": check.allowed.round(6).tolist()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", metavar="PATH", help="GLUE directory or file with QQP's validation set")
    parser.add_argument("--spacy", metavar="NAME", help="a model of spaCy for the words of QQP")
    parser.set_defaults(model=MODEL, limit=1000)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
