"""Are attention patterns repeated across heads? (Kovaleva et al. 2019, section 5)

"A limited set of attention patterns is repeated across different heads, which suggests that the model is
overparametrised". How similar are heads? Does the similarity go beyond patterns that do not depend on the text? How
many kinds of heads are there? Do similar heads stand in for each other?

- Distance of two heads on a text: the Jensen-Shannon divergence of their rows, mean over the tokens (Clark et al. 2019,
  section 6), then over texts; 0 to 1 bit.
- Another text: the same, with the other head's map taken from another text with the same number of tokens and [SEP] in
  the same places, so that heads which look at [SEP], at themselves or one place back stay equally near. Each head is
  also compared with itself there. Texts that are slightly too long lose the surplus tokens (before the last word of a
  sentence).
- From both (`likeness/parts.py`): the distance of the heads' mean patterns, and the correlation of what changes with
  the text (1 for a head and itself, 0 for two that have no more in common than on different texts).
- Groups: average linkage, cut at the distance of a head from itself on another text; also on random halves of the
  texts.
- --disable N: the N nearest pairs (no head twice) are disabled, each head alone and both, on all labelled examples of
  the task; the control is the same number of distant pairs of the same layers. If heads stood in for each other, both
  together would lose more than the sum, and by a larger margin than the controls.

Intervals are 95 %, from resampling texts (for disabled pairs, examples) with replacement.

    python -m experiments.repeated_patterns --task stsb --data GLUE_DIR --disable 15

For results and run times see `RESULTS.md`.
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
from bertjax.tasks import EncodedDataset, encode_examples
from experiments.disabling.program import labelled
from experiments.frames.example import attend, describe_example
from experiments.likeness.distances import Distances, measure_distances
from experiments.likeness.groups import report_groups
from experiments.likeness.pages import choose_examples, figures, overview, report_lines, tables
from experiments.likeness.pairs import choose_couples, disable_couples
from experiments.likeness.partners import Partners, draw_partners
from experiments.likeness.parts import means_of, report_parts
from experiments.shared.program import Outcome, Run, describe_settings, draw_sample, make_parser, run_program, whole
from experiments.shared.samples import Sample, add_task_options, read_examples, read_sample, split_named_task

__all__ = ["compute", "figures", "main", "overview", "tables"]

# A pair of QNLI's validation data, which comes with bertjax: SQuAD, CC BY-SA 4.0.
EXAMPLE = ("What did Tesla patent in 1891?", "In the same year, he patented the Tesla coil.")
FEWEST = 4  # texts, two for each half


def compute(run: Run) -> Outcome:
    """Distances, their parts, groups, and the effect of disabling pairs.

    Raises:
        DataError: the examples cannot be read, or too few have others of their size; to disable heads, too few labels.
        ConfigError: the model has one head; to disable heads, it has no outputs that the task's metrics can read.
    """
    options, config = run.options, run.model.config
    if config.num_hidden_layers * config.num_attention_heads < 2:
        raise ConfigError("the model has one head: there are no pairs")
    labels = _to_disable(run) if options.disable else None
    pool = read_sample(replace(run, options=Namespace(**vars(options) | {"limit": None})))
    chosen = draw_sample(len(pool), options)
    texts, partners = _draw_partners(run, pool, chosen)
    distances = measure_distances(run, texts, partners)
    task = split_named_task(options).task
    numbers = {"model": options.model, "task": task, "texts": len(partners.texts), "names": distances.names}
    numbers |= pool.to_dict() | {"control": _describe_control(partners, len(chosen), options.draws)}
    numbers |= report_parts(distances, options.seed) | {"groups": report_groups(distances, options.seed)}
    numbers["examples"] = _describe_examples(run, distances)
    ids = np.array(pool.examples.ids)[[chosen[number] for number in partners.texts]]
    values = {"ids": ids, "names": np.array(distances.names)}
    values |= {name: getattr(distances, name) for name in ("same", "other", "own")}
    if labels is not None:
        numbers["disabled"], arrays = _disable(run, distances, *labels)
        values |= arrays
    pictures = figures({"settings": describe_settings(options), "results": numbers})
    return Outcome(numbers, values, pictures.pop("figure"), report_lines(numbers), pictures)


def _draw_partners(run: Run, pool: Sample, chosen: Sequence[int]) -> tuple[list[Any], Partners]:
    """The texts compared, and others of their size from all of the task's texts. Raises `DataError`."""
    examples, draws = pool.examples, run.options.draws
    text_groups = (
        zip(examples.first, examples.second, strict=True) if examples.second else ((text,) for text in examples.first)
    )
    text_sets = [frozenset(group) for group in text_groups]
    texts = [pool.texts[place] for place in chosen]
    partners = draw_partners(list(zip(chosen, texts, strict=True)), pool.texts, text_sets, draws, run.options.seed)
    if len(partners.texts) < FEWEST:
        raise DataError(
            f"{len(partners.texts)} of {len(texts)} texts have {draws} others at least as long beside them "
            f"({examples.source}): {FEWEST} are needed; give more data, or fewer --draws"
        )
    return texts, partners


def _describe_control(partners: Partners, texts: int, draws: int) -> dict[str, Any]:
    cut = np.array(partners.cut)
    shortened = float(cut[cut > 0].mean()) if (cut > 0).any() else 0.0
    return {
        "draws": draws,
        "as_they_are": round(float((cut == 0).mean()), 4),
        "cut": round(shortened, 4),
        "most_cut": int(cut.max()),
        "left_out": texts - len(partners.texts),
    }


def _describe_examples(run: Run, distances: Distances) -> dict[str, Any]:
    """The maps of two pairs of heads on the example."""
    means = means_of(distances)
    tokens, maps = attend(run, *EXAMPLE)
    subtitle = "a question and a sentence of QNLI (SQuAD, CC BY-SA 4.0); distances over all texts: "
    examples = {}
    for name, (heads, title) in choose_examples(means, distances.names).items():
        pair = [distances.names.index(head) for head in heads]
        rows, columns = np.triu_indices(len(distances.names), 1)
        number = int(np.flatnonzero((rows == pair[0]) & (columns == pair[1]))[0])
        note = f"{means.same[number]:.3f} bits on the same text, {means.other[number]:.3f} on different ones"
        examples[name] = describe_example(" ".join(EXAMPLE), tokens, maps, heads) | {"title": title}
        examples[name]["subtitle"] = subtitle + note
    return examples


def _to_disable(run: Run) -> tuple[Examples, EncodedDataset]:
    """All labelled examples and their encoding. Read before the distances, which a mistake would lose."""
    options = Namespace(**vars(run.options) | {"limit": None})
    examples = labelled(read_examples(options))
    length = min(options.max_length, run.model.config.max_tokens)
    return examples, encode_examples(run.model, run.tokenizer, examples, length)


def _disable(
    run: Run, distances: Distances, examples: Examples, encoded: EncodedDataset
) -> tuple[Any, dict[str, np.ndarray]]:
    same = means_of(distances).same
    couples = choose_couples(same, len(distances.names), distances.heads, run.options.disable, run.options.seed)
    if not couples.alike:
        raise ConfigError("layers of two heads leave no pair of the same layers to hold nearest heads against")
    return disable_couples(run, couples, distances.names, examples, encoded)


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
