"""Where does fine-tuning change attention? (Kovaleva et al. 2019, section 4.3, figure 5)

For each head and example: the cosine similarity of the base model's attention map and the fine-tuned model's, both
flattened, over the real tokens; averaged over the examples, with a 95 % interval (normal theory). For scale, beside
each: how similar the base head's map is to the fine-tuned maps of the layer's other heads. The maps of both models come
from one pass on the device and are reduced there.

--as-published also takes what the authors' code takes and shows that: whole maps of 200 x 200 tokens, in which padding
tokens are no keys but are queries; a task's TSV file read with quote handling.

    python -m experiments.attention_change --task mrpc stsb --tuned DIR_OF_MRPC DIR_OF_STSB --data GLUE_DIR

Three tasks of 277, 408 and 1,000 examples take 153 s of processor time on all-MiniLM-L6-v2. The last layer changes
most on each (0.63 on STS-B), the first hardly (`RESULTS.md`); the paper found that the last two layers change most. Not
run on bert-base-uncased.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import bertjax
from experiments.shared.agreement import compare_maps, say_agreement
from experiments.shared.attention import reduce_attention
from experiments.shared.maps import Panel, draw_maps
from experiments.shared.program import Outcome, Run, make_parser, run_program
from experiments.shared.samples import (
    PUBLISHED_LENGTH,
    Sample,
    add_task_options,
    read_published_sample,
    read_sample,
)
from experiments.shared.tuned import check_tuned, tell_tuned, tuned_runs

SAME = 1 - 1e-6  # a cosine similarity of equal maps, but for rounding


@dataclass(frozen=True)
class Similarity:
    """Of every example: how similar each head is to its fine-tuned self, and on average to the layer's other heads."""

    own: Float[np.ndarray, "examples layers heads"]
    others: Float[np.ndarray, "examples layers heads"]

    @property
    def means(self) -> Float[np.ndarray, "layers heads"]:
        """Over the examples."""
        return self.own.astype(np.float64).mean(0)

    @property
    def margins(self) -> Float[np.ndarray, "layers heads"]:
        """Half the width of the means' 95 % intervals."""
        return _margin(self.own.astype(np.float64))


def _margin(values: Float[np.ndarray, "examples ..."]) -> Any:
    return 1.96 * values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def compare_real(
    base: Float[Array, "layers batch heads query key"],
    tuned: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
) -> Float[Array, "batch 2 layers heads"]:
    """Cosine similarities of two models' maps over the real tokens: head by head, and to the layer's other heads.

    Keys that are padding have no weight, so that the queries alone need to be chosen.
    """
    real = keep.astype(base.dtype)[None, :, None, :, None]
    return compare_whole(base * real, tuned * real, keep)


def compare_whole(
    base: Float[Array, "layers batch heads query key"],
    tuned: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
) -> Float[Array, "batch 2 layers heads"]:
    """The same over all tokens, padding among the queries.

    The mean similarity to other heads is that to the sum of their maps, each of length 1, so that no pair is compared.
    """
    length = jnp.sqrt(jnp.square(base).sum((-2, -1)))
    unit = tuned / jnp.sqrt(jnp.square(tuned).sum((-2, -1), keepdims=True))
    own = (base * unit).sum((-2, -1)) / length
    all_heads = (base * unit.sum(2, keepdims=True)).sum((-2, -1)) / length
    heads = base.shape[2]
    others = (all_heads - own) / max(1, heads - 1)
    both = jnp.stack([own, others if heads > 1 else jnp.full_like(own, jnp.nan)])
    return jnp.moveaxis(both, 2, 0)


@dataclass(frozen=True)
class Change:
    """What was found for one task, by mode."""

    similarity: dict[str, Similarity]
    samples: dict[str, Sample]
    numbers: dict[str, Any]


def compute(run: Run) -> Outcome:
    """The similarities of each task, in one mode or both. Raises as `tuned_runs`, `read_sample` and `check_tuned`."""
    runs = tuned_runs(run)
    samples = {task: read_sample(one) for task, one in runs.items()}
    # All of them before any work is done that a mistake in the last would lose.
    paths = {
        task: check_tuned(one, examples.first, examples.second, examples.task)
        for task, one in runs.items()
        for examples in [samples[task].examples]
    }
    return _outcome(run, {task: compare_task(one, samples[task], paths[task]) for task, one in runs.items()})


def compare_task(run: Run, sample: Sample, directory: Path) -> Change:
    """The similarities of one task, whose fine-tuned model is in a directory."""
    models = run.model, bertjax.load(directory)
    found = {"corrected": _similarity(reduce_attention(models, sample.texts, compare_real, report=run.report))}
    samples = {"corrected": sample}
    if run.options.as_published:
        read = read_published_sample(run)
        length = min(PUBLISHED_LENGTH, run.model.config.max_position_embeddings)
        values = reduce_attention(models, read.texts, compare_whole, length=length, report=run.report)
        found["as_published"], samples["as_published"] = _similarity(values), read
    numbers: dict[str, Any] = {"tuned": tell_tuned(run.options.tuned)}
    numbers |= {mode: _report(one, samples[mode]) for mode, one in found.items()}
    if run.options.as_published:
        apart = compare_maps(found["as_published"].means, found["corrected"].means)
        share = 1 - float(np.mean([len(text) for text in samples["as_published"].texts])) / length
        numbers["published_against_corrected"] = apart | {"padding_queries": round(share, 4)}
    return Change(found, samples, numbers)


def _similarity(values: Float[np.ndarray, "examples 2 layers heads"]) -> Similarity:
    return Similarity(values[:, 0], values[:, 1])


def _report(found: Similarity, sample: Sample) -> dict[str, Any]:
    """Maps, intervals, layers, and heads from the one that changed most."""
    means, layers = found.means, found.own.astype(np.float64).mean(-1)
    order = np.argsort(means.ravel())
    return {
        **sample.told(),
        "similarity": means.round(6).tolist(),
        "interval": _listed(found.margins),
        "spread": _listed(found.own.astype(np.float64).std(0)),
        "layers": layers.mean(0).round(6).tolist(),
        "layers_interval": _listed(_margin(layers)),
        "to_other_heads": _listed(found.others.astype(np.float64).mean(0)),
        "layers_by_change": [int(layer) for layer in np.argsort(layers.mean(0))],
        "heads_by_change": [f"{place // means.shape[1]}.{place % means.shape[1]}" for place in order.tolist()],
    }


def _listed(values: Any) -> Any:
    """As JSON has it: None for what is undefined."""
    return np.where(np.isnan(values), np.array(None, object), np.round(values, 6)).tolist()


def _outcome(run: Run, found: dict[str, Change]) -> Outcome:
    mode = "as_published" if run.options.as_published else "corrected"
    shown = {task: one.similarity[mode] for task, one in found.items()}
    lines = [line for task, one in found.items() for line in _summary(task, one, mode)]
    values = {
        f"{task.replace(':', '_')}_{name}_{kind}": getattr(similarity, kind)
        for task, one in found.items()
        for name, similarity in one.similarity.items()
        for kind in ("own", "others")
    }
    values |= {
        f"{task.replace(':', '_')}_{name}_ids": np.array(sample.examples.ids)
        for task, one in found.items()
        for name, sample in one.samples.items()
    }
    subtitle = f"{run.options.model} and its fine-tuned forms" + (", as published" if mode == "as_published" else "")
    panels = [Panel(f"{task}, {len(one.own):,} examples", one.means) for task, one in shown.items()]
    bounds = (float(np.floor(min(one.means.min() for one in shown.values()) * 20) / 20), 1.0)

    def draw(path: Path) -> None:
        title = "Attention before and after fine-tuning"
        note = "darker: changed more; mean over examples"
        draw_maps(path, panels, title, subtitle, "cosine similarity", note, scale=bounds, colours="Blues_r")

    return Outcome({task: one.numbers for task, one in found.items()}, values, draw, lines)


def _summary(task: str, change: Change, mode: str) -> list[str]:
    found, sample, report = change.similarity[mode], change.samples[mode], change.numbers[mode]
    means, margins = found.means, found.margins
    places = [divmod(place, means.shape[1]) for place in np.argsort(means.ravel())[:5].tolist()]
    changed = ", ".join(
        f"{layer}.{head} {means[layer, head]:.3f} ± {margins[layer, head]:.3f}" for layer, head in places
    )
    layers = ", ".join(f"{layer} {value:.3f}" for layer, value in enumerate(report["layers"]))
    lines = [
        f"{task}: {len(sample):,} examples ({sample.examples.source}), fine-tuned {change.numbers['tuned']['name']}",
        f"  similarity by layer: {layers}",
        f"  heads that changed most: {changed}",
        f"  all heads {means.mean():.3f}; for scale, to the layer's other heads {found.others.mean():.3f}",
    ]
    if (found.own > SAME).all():
        lines.append("  every map is the same before and after: does --tuned name another model than --model?")
    if mode == "as_published":
        apart = change.numbers["published_against_corrected"]
        most = {name: change.numbers[name]["layers_by_change"][:2] for name in change.similarity}
        lines += [
            f"  {say_agreement('similarity', apart)}; {apart['padding_queries']:.0%} of the rows are padding queries",
            f"  layers that change most: {most['as_published']} as published, {most['corrected']} corrected",
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("attention_change", __doc__)
    add_task_options(parser, several=True)
    text = "the model fine-tuned on each task, named as --model"
    parser.add_argument("--tuned", nargs="+", required=True, metavar="M", help=text)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
