"""Does this reproduction give the numbers that the authors got from bert-base-uncased alone? (Kovaleva et al. 2019)

Whoever has that model runs one command; what the authors' code computes (--as-published changes nothing here) is held
against what they published:

- two rows of attention maps, of the query "he" in "He was becoming agitated .": each weight to 0.005;
- the map over their 473 FrameNet sentences (4.2): each head to 0.002, and 0.001 for reading it from a picture;
- the maps over 1,000 examples of QQP (4.4, 4.5) of [CLS], [SEP] and negation, with --data, and of parts of speech,
  subjects, objects and what links them, with --data and --spacy: each head to 0.03, which is how far they can be read
  from the pictures, and to four standard errors of a difference, since both are random samples.

The table shows of each anchor the number that is the furthest off, and the rank correlation of all its numbers, which
nothing is asked of: 0.03 is much for maps as even as that of nouns. What cannot be run is reported as not run. The exit
code is 1 if any anchor fails, 0 if all that ran pass.

    python -m experiments.anchors                                        with bert-base-uncased of the hub
    python -m experiments.anchors --model DIR --data GLUE --spacy en_core_web_sm

This has not been run on bert-base-uncased. Its machinery is tested on small models with made-up anchors.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from rich.table import Table

from bertjax.errors import ConfigError, DataError
from experiments.frames.links import measure_links
from experiments.frames.sources import PUBLISHED, read_published
from experiments.linguistic_features import score_features
from experiments.shared.agreement import compare_maps
from experiments.shared.attention import reduce_attention
from experiments.shared.maps import Panel, draw_maps
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.samples import PUBLISHED_LENGTH, read_published_sample
from experiments.words.annotated import Annotated, AnnotatedSample
from experiments.words.annotation import read_annotated
from experiments.words.features import FEATURES, counted_as_published, published_masks
from experiments.words.links import follow_published
from experiments.words.relations import RELATIONS

ANCHORS = Path(__file__).parent / "data" / "anchors.json"
MODEL = "bert-base-uncased"
STANDARD_ERRORS = 4  # of some 1,700 values, one in ten runs has one that far off by chance
WITHOUT_WORDS = ("negation", "[CLS]", "[SEP]")  # the authors look for negation as a part of the text
VERDICTS = ("pass", "FAIL", "not run")
ROUNDING = 1e-6  # so that 0.005 is not more than 0.005


@dataclass(frozen=True)
class Check:
    """Numbers that were published, and those that were found.

    Args:
        name: what they are.
        places: what each of them is.
        published: the numbers.
        allowed: how far each may be off.
        found: None where the check was not run.
        reason: why it was not.
    """

    name: str
    places: Sequence[str]
    published: Float[np.ndarray, "entries"]
    allowed: Float[np.ndarray, "entries"]
    found: Float[np.ndarray, "entries"] | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Whether all are as near as they should be; what is no number is not."""
        if self.found is None:
            return "not run"
        near = np.abs(self.found - self.published) <= self.allowed + ROUNDING
        return "pass" if near.all() else "FAIL"

    @property
    def worst(self) -> int:
        """Which number is the furthest beyond what is allowed, or the nearest to it."""
        return int(np.argmax(np.nan_to_num(np.abs(self.found - self.published) - self.allowed, nan=np.inf)))


def check_rows(run: Run, anchors: Mapping[str, Any]) -> Iterator[Check]:
    """The rows of attention maps that are printed in the paper and the notebook."""
    encoding = run.tokenizer.encode([anchors["sentence"]])[0]
    tokens = list(encoding.tokens)
    if tokens != anchors["tokens"]:
        raise ConfigError(f"{run.options.model} reads {anchors['sentence']!r} as {' '.join(tokens)}; is it {MODEL}?")
    maps = reduce_attention(run.model, [encoding], whole_maps)[0].astype(np.float64)
    for name, row in anchors["rows"].items():
        layer, head = map(int, name.split("."))
        found = maps[layer, head, tokens.index(anchors["query"]), : len(tokens)]
        allowed = np.full(len(row), anchors["allowed"])
        yield Check(f"{anchors['query']!r} {name}", tokens, np.array(row), allowed, found)


def whole_maps(
    attentions: Float[Array, "layers batch heads query key"], keep: Int[Array, "batch token"]
) -> Float[Array, "batch layers heads query key"]:
    """All weights."""
    return jnp.moveaxis(attentions, 1, 0)


def check_framenet(run: Run, anchors: Mapping[str, Any]) -> Check:
    """The map over the authors' FrameNet sentences."""
    found = measure_links(run, read_published(PUBLISHED)).maps()["as_published"]
    return _check_map("FrameNet", np.array(anchors["map"]), np.array(anchors["allowed"]), found)


def check_qqp(run: Run, anchors: Mapping[str, Any]) -> Iterator[Check]:
    """The maps of features and relations over examples of QQP, and the layers' means of [SEP]'s."""
    values = measure_qqp(run) if run.options.data else {}
    for name, rows in anchors["maps"].items():
        published = np.array(rows)
        title = f"QQP {name}"
        if name not in values:
            reason = "for want of --data" + ("" if name in WITHOUT_WORDS else " and --spacy")
            yield _check_map(title, published, np.array(anchors["allowed"]), None, reason)
            continue
        mean, allowed = _with_error(values[name], anchors)
        yield _check_map(title, published, allowed, mean)
        if name == "[SEP]":
            mean, allowed = _with_error(values[name].mean(-1), anchors)
            layers = [f"layer {layer}" for layer in range(len(mean))]
            yield Check(f"QQP {name} by layer", layers, published.mean(-1), allowed, mean)


def measure_qqp(run: Run) -> dict[str, Float[np.ndarray, "examples layers heads"]]:
    """What the authors' code takes of each example that counts, for each feature and relation."""
    sample = read_qqp(run)
    masks = published_masks(sample, run.tokenizer)
    scores = score_features(run, (run.model,), sample.texts, masks)
    counted = dict(zip(FEATURES, counted_as_published(sample).T, strict=True))
    names = [name for name in FEATURES if run.options.spacy or name in WITHOUT_WORDS]
    found = {name: scores.values[counted[name], 0, FEATURES.index(name)].astype(np.float64) for name in names}
    if run.options.spacy:
        values = follow_published(run, sample)[2]
        found |= {name: values[:, number].astype(np.float64) for number, name in enumerate(RELATIONS)}
    return found


def read_qqp(run: Run) -> AnnotatedSample:
    """Examples of QQP as the authors' code reads them; without --spacy their words are not known."""
    wanted = {"task": "qqp", "split": "validation", "data_dir": None, "conllu": None, "max_length": PUBLISHED_LENGTH}
    run = replace(run, options=Namespace(**{**vars(run.options), **wanted}))
    if run.options.spacy:
        return read_annotated(run, published=True)
    sample = read_published_sample(run)
    pairs = zip(sample.examples.first, sample.examples.second or (), strict=True)
    texts = tuple((Annotated(first, ()), Annotated(second, ())) for first, second in pairs)
    return AnnotatedSample(sample.examples.source, sample.examples.ids, sample.texts, texts)


def _with_error(
    values: Float[np.ndarray, "examples ..."], anchors: Mapping[str, Any]
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The mean, and how far that of another sample of as many as the authors' may be off. NaN where none counts."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan), np.full(values.shape[1:], anchors["allowed"])
    error = values.std(0, ddof=1) * np.sqrt(1 / len(values) + 1 / anchors["examples"])
    return values.mean(0), anchors["allowed"] + STANDARD_ERRORS * error


def _check_map(
    name: str,
    published: Float[np.ndarray, "layers heads"],
    allowed: Float[np.ndarray, "*some"],
    found: Float[np.ndarray, "layers heads"] | None,
    reason: str = "",
) -> Check:
    places = [f"{layer}.{head}" for layer, head in np.ndindex(*published.shape)]
    spread = np.broadcast_to(allowed, published.shape).ravel()
    return Check(name, places, published.ravel(), spread, None if found is None else found.ravel(), reason)


def compute(run: Run) -> Outcome:
    """All checks."""
    anchors = json.loads(ANCHORS.read_text(encoding="utf-8"))
    require_size(run, np.array(anchors["framenet"]["map"]).shape)
    if run.options.spacy and not run.options.data:
        raise DataError("--spacy annotates the examples of QQP: name their directory or file with --data")
    checks = [*check_rows(run, anchors["he"]), check_framenet(run, anchors["framenet"])]
    checks += check_qqp(run, anchors["qqp"])
    verdicts = [check.verdict for check in checks]
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS}
    numbers = {"source": anchors["source"], "verdicts": counts, "checks": [_report(check) for check in checks]}
    values = {check.name: check.found for check in checks if check.found is not None}
    framenet = next(check for check in checks if check.name == "FrameNet")
    published = np.array(anchors["framenet"]["map"])
    panels = [Panel("published", published), Panel("found", values["FrameNet"].reshape(published.shape))]

    def draw(path: Path) -> None:
        title = "From frame elements to predicates, against the published map"
        draw_maps(path, panels, title, f"{run.options.model}: {framenet.verdict}", "mean weight")

    return Outcome(numbers, values, draw, [make_table(checks), *_say(checks)])


def require_size(run: Run, shape: tuple[int, ...]) -> None:
    """Raises `ConfigError` for a model that has not as many layers and heads as the published one."""
    found = (run.model.config.num_hidden_layers, run.model.config.num_attention_heads)
    if found != shape:
        sizes = [f"{layers} layers x {heads} heads" for layers, heads in (found, shape)]
        raise ConfigError(f"{run.options.model} has {sizes[0]}, and the anchors are those of {MODEL}, {sizes[1]}")


def make_table(checks: Sequence[Check]) -> Table:
    """A row for each anchor: of its numbers the one that is the furthest off, by what is allowed."""
    table = Table("anchor", "furthest off", "published", "found", "allowed", "ranks", "", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for check in checks:
        if check.found is None:
            table.add_row(check.name, "", "", "", "", "", check.verdict)
            continue
        worst = check.worst
        numbers = [check.published[worst], check.found[worst], check.allowed[worst]]
        ranks = _ranks(check)
        cells = [*(f"{number:.3f}" for number in numbers), "" if ranks is None else f"{ranks:.2f}"]
        table.add_row(check.name, check.places[worst], *cells, check.verdict)
    return table


def _say(checks: Sequence[Check]) -> Iterator[str]:
    """How many anchors hold, and what was not run for want of what."""
    verdicts = [check.verdict for check in checks]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts]
    yield f"{len(checks)} anchors: {', '.join(counts)}"
    for reason in dict.fromkeys(check.reason for check in checks if check.found is None):
        yield f"not run, {reason}: {', '.join(check.name for check in checks if check.reason == reason)}"


def _ranks(check: Check) -> float | None:
    if check.found is None or not np.isfinite(check.found).all():
        return None
    return compare_maps(check.found, check.published)["rank_correlation"]


def _report(check: Check) -> dict[str, Any]:
    found: dict[str, Any] = {"anchor": check.name, "verdict": check.verdict}
    if check.found is None:
        return found | {"reason": check.reason}
    exact = [None if np.isnan(number) else round(number, 6) for number in check.found.tolist()]
    found |= {"rank_correlation": _ranks(check), "places": list(check.places), "found": exact}
    return found | {"published": check.published.tolist(), "allowed": check.allowed.round(6).tolist()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 if all anchors that ran pass, 1 if one fails, 2 for a mistake."""
    parser = make_parser("anchors", __doc__)
    parser.add_argument("--data", metavar="PATH", help="GLUE directory or file with QQP's validation set")
    parser.add_argument("--spacy", metavar="NAME", help="a model of spaCy for the words of QQP")
    parser.set_defaults(model=MODEL, limit=1000)
    verdicts: list[dict[str, int]] = []

    def noted(run: Run) -> Outcome:
        outcome = compute(run)
        verdicts.append(outcome.numbers["verdicts"])
        return outcome

    code = run_program(parser, noted, arguments)
    return code or int(any(counts["FAIL"] for counts in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
