"""Are attention patterns repeated across heads? (Kovaleva et al. 2019, section 5)

"A limited set of attention patterns is repeated across different heads, which suggests that the model is
overparametrised". How alike are heads, does it go beyond where they look whatever the text says, how many kinds are
there, and do heads that are alike stand in for each other?

- Distance of two heads on a text: the Jensen-Shannon divergence of their rows, mean over the tokens (Clark et al. 2019,
  section 6), then over texts; 0 to 1 bit.
- Another text: the same with the other head's map taken from another text that has as many tokens and [SEP] in the same
  places, so that heads which look at [SEP], at themselves or one place back stay as near as they are. And each head
  against itself there. Texts that would fit but for some tokens lose these (before the last word of a sentence).
- From both (`likeness/parts.py`): how far the heads' mean patterns are apart, and the correlation of what changes with
  the text (1 for a head and itself, 0 for two that have no more in common than on different texts).
- Groups: average linkage, cut where heads are as far apart as a head is from itself on another text; on random halves
  of the texts too.
- --disable N: the N nearest pairs (no head twice) are disabled, each head alone and both, on all labelled examples of
  the task; as a control as many pairs of the same layers that are far apart. If heads stood in for each other, both
  would lose more than the sum, and more so than the controls.

Intervals are 95 %, by drawing texts (for disabled pairs, examples) with replacement.

    python -m experiments.repeated_patterns --task stsb --data GLUE_DIR --disable 15

What came out, and how long it took: `RESULTS.md`.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertjax.cli import positive
from bertjax.data import Examples
from bertjax.errors import ConfigError, DataError
from bertjax.evidence import RESAMPLES
from bertjax.study import Encoded, encode_examples
from experiments.disabling.program import labelled
from experiments.frames.example import attend, tell_example
from experiments.likeness.distances import Distances, measure_distances
from experiments.likeness.groups import report_groups
from experiments.likeness.pages import choose_examples, figures, overview, say, tables
from experiments.likeness.pairs import choose_couples, disable_couples
from experiments.likeness.partners import Partners, draw_partners
from experiments.likeness.parts import means_of, report_parts
from experiments.shared.program import Outcome, Run, draw_sample, make_parser, run_program, tell_settings, whole
from experiments.shared.samples import Sample, add_task_options, read_examples, read_sample, split_named_task

__all__ = ["compute", "figures", "main", "overview", "tables"]

# A pair of QNLI's validation data, which comes with bertjax: SQuAD, CC BY-SA 4.0.
EXAMPLE = ("What did Tesla patent in 1891?", "In the same year, he patented the Tesla coil.")
FEWEST = 4  # texts: two for each half


def compute(run: Run) -> Outcome:
    """Distances, their parts, groups, and what disabling pairs does.

    Raises:
        DataError: the examples cannot be read, or too few have others of their size beside them; to disable heads, too
            few labels.
        ConfigError: a model of one head; to disable heads, one without outputs that the task's metrics could read.
    """
    options, config = run.options, run.model.config
    if config.num_hidden_layers * config.num_attention_heads < 2:
        raise ConfigError("the model has one head: there are no pairs")
    labels = _to_disable(run) if options.disable else None
    pool = read_sample(replace(run, options=Namespace(**vars(options) | {"limit": None})))
    chosen = draw_sample(len(pool), options)
    texts, partners = _draw_partners(run, pool, chosen)
    found = measure_distances(run, texts, partners)
    task = split_named_task(options).task
    numbers = {"model": options.model, "task": task, "texts": len(partners.texts), "names": found.names}
    numbers |= pool.told() | {"control": _tell_control(partners, len(chosen), options.draws)}
    numbers |= report_parts(found, options.seed) | {"groups": report_groups(found, options.seed)}
    numbers["examples"] = _tell_examples(run, found)
    ids = np.array(pool.examples.ids)[[chosen[number] for number in partners.texts]]
    values = {"ids": ids, "names": np.array(found.names)}
    values |= {name: getattr(found, name) for name in ("same", "other", "own")}
    if labels is not None:
        numbers["disabled"], more = _disable(run, found, *labels)
        values |= more
    pictures = figures({"settings": tell_settings(options), "results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), say(numbers), pictures)


def _draw_partners(run: Run, pool: Sample, chosen: Sequence[int]) -> tuple[list[Any], Partners]:
    """The texts that are looked at, and others of their size from all of the task's. Raises `DataError`."""
    examples, draws = pool.examples, run.options.draws
    several = (
        zip(examples.first, examples.second, strict=True) if examples.second else ((one,) for one in examples.first)
    )
    alike = [frozenset(some) for some in several]
    texts = [pool.texts[place] for place in chosen]
    partners = draw_partners(list(zip(chosen, texts, strict=True)), pool.texts, alike, draws, run.options.seed)
    if len(partners.texts) < FEWEST:
        raise DataError(
            f"{len(partners.texts)} of {len(texts)} texts have {draws} others at least as long beside them "
            f"({examples.source}): {FEWEST} are needed; give more data, or fewer --draws"
        )
    return texts, partners


def _tell_control(partners: Partners, texts: int, draws: int) -> dict[str, Any]:
    cut = np.array(partners.cut)
    shortened = float(cut[cut > 0].mean()) if (cut > 0).any() else 0.0
    return {
        "draws": draws,
        "as_they_are": round(float((cut == 0).mean()), 4),
        "cut": round(shortened, 4),
        "most_cut": int(cut.max()),
        "left_out": texts - len(partners.texts),
    }


def _tell_examples(run: Run, found: Distances) -> dict[str, Any]:
    """The maps of two pairs of heads on the example."""
    means = means_of(found)
    tokens, maps = attend(run, *EXAMPLE)
    subtitle = "a question and a sentence of QNLI (SQuAD, CC BY-SA 4.0); distances over all texts: "
    told = {}
    for name, (heads, title) in choose_examples(means, found.names).items():
        pair = [found.names.index(head) for head in heads]
        rows, columns = np.triu_indices(len(found.names), 1)
        number = int(np.flatnonzero((rows == pair[0]) & (columns == pair[1]))[0])
        apart = f"{means.same[number]:.3f} bits on the same text, {means.other[number]:.3f} on different ones"
        told[name] = tell_example(" ".join(EXAMPLE), tokens, maps, heads) | {"title": title}
        told[name]["subtitle"] = subtitle + apart
    return told


def _to_disable(run: Run) -> tuple[Examples, Encoded]:
    """All labelled examples, and what the model reads of them: before the distances, which a mistake would lose."""
    options = Namespace(**vars(run.options) | {"limit": None})
    examples = labelled(read_examples(options))
    length = min(options.max_length, run.model.config.max_position_embeddings)
    return examples, encode_examples(run.model, run.tokenizer, examples, length)


def _disable(run: Run, found: Distances, examples: Examples, encoded: Encoded) -> tuple[Any, dict[str, np.ndarray]]:
    same = means_of(found).same
    couples = choose_couples(same, len(found.names), found.heads, run.options.disable, run.options.seed)
    if not couples.alike:
        raise ConfigError("layers of two heads leave no pair of the same layers to hold nearest heads against")
    return disable_couples(run, couples, found.names, examples, encoded)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("repeated_patterns", __doc__, published=False)
    add_task_options(parser, task="mrpc", limit=300)
    add = parser.add_argument
    add("--draws", type=positive, default=3, metavar="N", help="other texts for each text (default %(default)s)")
    add("--disable", type=whole, default=0, metavar="N", help="disable N pairs of heads that are alike (default: none)")
    add("--mode", choices=("uniform", "zero"), default="uniform", help="what takes the place of attention then")
    text = "draws of examples for disabled pairs (default %(default)s)"
    add("--resamples", type=positive, default=RESAMPLES, metavar="N", help=text)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
