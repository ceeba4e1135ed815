"""Where does fine-tuning change attention? (Kovaleva et al. 2019, section 4.3, figure 5)

For each head and example: the cosine similarity of the base model's attention map and the fine-tuned model's, both
flattened, over the real tokens; averaged over the examples, with a 95 % interval (normal theory). For scale, the
similarity of the base head's map to the fine-tuned maps of the layer's other heads is given beside it; a dot marks
heads less similar to themselves than to these. The maps of both models come from one pass on the device and are reduced
there. Repeat --tuned to name models of other seeds: everything is then the mean over seeds, and layers are also shown
for each seed.

--as-published also computes, and shows, what the authors' code does: whole maps of 200 x 200 tokens, in which padding
tokens serve as queries but not as keys; a task's TSV file read with quote handling.

    python -m experiments.finetune --task mrpc stsb --init pretrained --seeds 0 1 --data GLUE --output DIR
    python -m experiments.attention_change --task mrpc stsb --data GLUE \\
        --tuned DIR/runs/mrpc-pretrained-0/last DIR/runs/stsb-pretrained-0/last \\
        --tuned DIR/runs/mrpc-pretrained-1/last DIR/runs/stsb-pretrained-1/last

A task of 1,000 examples takes a minute for each seed on all-MiniLM-L6-v2 and two CPU cores. For the results see
`RESULTS.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import bertjax
from bertjax.plots import Panel
from experiments.shared.agreement import compare_maps, format_agreement
from experiments.shared.attention import reduce_attention
from experiments.shared.maps import draw_maps
from experiments.shared.program import Outcome, Run, describe_settings, make_parser, name_maps, run_program
from experiments.shared.samples import (
    PUBLISHED_LENGTH,
    Sample,
    add_task_options,
    read_published_sample,
    read_sample,
)
from experiments.shared.tuned import add_tuned_option, check_tuned, describe_tuned, tuned_runs

SAME = 1 - 1e-6  # cosine similarity of equal maps, allowing for rounding


@dataclass(frozen=True)
class Similarity:
    """How similar each head is to its fine-tuned self, and on average to the layer's other heads, by seed."""

    own: Float[np.ndarray, "seeds examples layers heads"]
    others: Float[np.ndarray, "seeds examples layers heads"]

    @property
    def means(self) -> Float[np.ndarray, "layers heads"]:
        """Mean of `own` over seeds and examples."""
        return self.own.astype(np.float64).mean((0, 1))

    @property
    def margins(self) -> Float[np.ndarray, "layers heads"]:
        """Half the width of the means' 95 % intervals over the examples, with the seeds taken as fixed."""
        return _margin(self.own.astype(np.float64).mean(0))


def _margin(values: Float[np.ndarray, "examples ..."]) -> Any:
    return 1.96 * values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1:], np.nan)


def compare_real(
    base: Float[Array, "layers batch heads query key"],
    tuned: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
) -> Float[Array, "batch 2 layers heads"]:
    """Cosine similarities of two models' maps over the real tokens: head by head, and to the layer's other heads.

    Padding keys have no weight, so only the queries need masking.
    """
    real = keep.astype(base.dtype)[None, :, None, :, None]
    return compare_whole(base * real, tuned * real, keep)


def compare_whole(
    base: Float[Array, "layers batch heads query key"],
    tuned: Float[Array, "layers batch heads query key"],
    keep: Int[Array, "batch token"],
) -> Float[Array, "batch 2 layers heads"]:
    """As `compare_real`, but over all tokens, with padding among the queries.

    The mean similarity to other heads comes from the sum of their unit-length maps, so no pairs need comparing.
    """
    length = jnp.sqrt(jnp.square(base).sum((-2, -1)))
    unit = tuned / jnp.sqrt(jnp.square(tuned).sum((-2, -1), keepdims=True))
    own = (base * unit).sum((-2, -1)) / length
    all_heads = (base * unit.sum(2, keepdims=True)).sum((-2, -1)) / length
    heads = base.shape[2]
    others = (all_heads - own) / max(1, heads - 1)
    stacked = jnp.stack([own, others if heads > 1 else jnp.full_like(own, jnp.nan)])
    return jnp.moveaxis(stacked, 2, 0)


@dataclass(frozen=True)
class Change:
    """The results for one task, by mode."""

    similarity: dict[str, Similarity]
    samples: dict[str, Sample]
    numbers: dict[str, Any]


def compute(run: Run) -> Outcome:
    """The similarities of each task, in one mode or both. Raises as `tuned_runs`, `read_sample` and `check_tuned`."""
    runs = tuned_runs(run)
    samples = {task: read_sample(seeds[0]) for task, seeds in runs.items()}
    # Check every path first, so that a mistake in the last one loses no work.
    paths = {
        task: [check_tuned(seed_run, examples.first, examples.second, examples.task) for seed_run in seeds]
        for task, seeds in runs.items()
        for examples in [samples[task].examples]
    }
    return _outcome(run, {task: compare_task(seeds, samples[task], paths[task]) for task, seeds in runs.items()})


def compare_task(runs: Sequence[Run], sample: Sample, directories: Sequence[Path]) -> Change:
    """The similarities of one task; `directories` hold its fine-tuned models, one for each seed."""
    run, published = runs[0], runs[0].options.as_published
    samples, similarities = {"corrected": sample}, {}
    if published:
        samples["as_published"] = read_published_sample(run)
    length = min(PUBLISHED_LENGTH, run.model.config.max_tokens)
    for mode, mode_sample in samples.items():
        options: dict[str, Any] = {"norms": run.norms, "report": run.report}
        options |= {"length": length} if mode == "as_published" else {}
        statistic = compare_whole if mode == "as_published" else compare_real
        seeds = [
            reduce_attention((run.model, bertjax.load(path)), mode_sample.texts, statistic, **options)
            for path in directories
        ]
        similarities[mode] = Similarity(*np.moveaxis(np.stack(seeds), 2, 0))
    numbers: dict[str, Any] = {"tuned": [describe_tuned(seed_run.options.tuned) for seed_run in runs]}
    numbers |= {mode: _report(similarity, samples[mode]) for mode, similarity in similarities.items()}
    if published:
        agreement = compare_maps(similarities["as_published"].means, similarities["corrected"].means)
        share = 1 - float(np.mean([len(text) for text in samples["as_published"].texts])) / length
        numbers["published_against_corrected"] = agreement | {"padding_queries": round(share, 4)}
    return Change(similarities, samples, numbers)


def _report(similarity: Similarity, sample: Sample) -> dict[str, Any]:
    """Maps, intervals, layers, and heads in order from the most changed."""
    means, layers = similarity.means, similarity.own.astype(np.float64).mean((0, -1))
    order = np.argsort(means.ravel())
    return {
        **sample.to_dict(),
        "similarity": means.round(5).tolist(),
        "interval": _listed(similarity.margins),
        "spread": _listed(similarity.own.astype(np.float64).mean(0).std(0)),
        "seeds": similarity.own.astype(np.float64).mean(1).round(5).tolist(),
        "layers": layers.mean(0).round(6).tolist(),
        "layers_interval": _listed(_margin(layers)),
        "to_other_heads": _listed(similarity.others.astype(np.float64).mean((0, 1))),
        "layers_by_change": [int(layer) for layer in np.argsort(layers.mean(0))],
        "heads_by_change": [f"{index // means.shape[1]}.{index % means.shape[1]}" for index in order.tolist()],
        "all_the_same": bool((similarity.own > SAME).all()),
    }


def _listed(values: Any) -> Any:
    """Nested lists for JSON, with None for NaN."""
    return np.where(np.isnan(values), np.array(None, object), np.round(values, 5)).tolist()


def _outcome(run: Run, changes: dict[str, Change]) -> Outcome:
    numbers = {"program": run.options.name, "settings": describe_settings(run.options)}
    numbers["results"] = {task: change.numbers for task, change in changes.items()}
    values = {
        f"{task.replace(':', '_')}_{name}_{kind}": getattr(similarity, kind)
        for task, change in changes.items()
        for name, similarity in change.similarity.items()
        for kind in ("own", "others")
    }
    values |= {
        f"{task.replace(':', '_')}_{name}_ids": np.array(sample.examples.ids)
        for task, change in changes.items()
        for name, sample in change.samples.items()
    }
    lines = [line for task, task_numbers in numbers["results"].items() for line in _summary(task, task_numbers)]
    return Outcome(numbers["results"], values, figures(numbers)["figure"], lines)


def _mode(numbers: Mapping[str, Any]) -> str:
    """The form of a task's numbers to show."""
    return "as_published" if "as_published" in numbers else "corrected"


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """Functions that draw the figures, from a run's `numbers.json`; in both modes the first is as published."""
    tasks = numbers["results"]
    pictures = {"figure": _figure(numbers, {task: _mode(task_numbers) for task, task_numbers in tasks.items()})}
    if any(_mode(task_numbers) == "as_published" for task_numbers in tasks.values()):
        pictures["corrected"] = _figure(numbers, dict.fromkeys(tasks, "corrected"))
    return pictures


def _figure(numbers: Mapping[str, Any], modes: Mapping[str, str]) -> Callable[[Path], None]:
    """A function that draws each task in one mode."""
    tasks, model = numbers["results"], numbers["settings"]["model"]
    shown = {task: task_numbers[modes[task]] for task, task_numbers in tasks.items()}
    seeds = max(len(task_numbers["tuned"]) for task_numbers in tasks.values())
    published = "as_published" in modes.values()
    subtitle = f"{model} and its fine-tuned forms" + (f", mean of {seeds} seeds" if seeds > 1 else "")
    subtitle += (", as published" if published else "") + name_maps(numbers["settings"])
    panels = []
    for task, task_numbers in shown.items():
        means, others = np.array(task_numbers["similarity"]), np.array(task_numbers["to_other_heads"], float)
        panels.append(Panel(f"{task}, {task_numbers['examples']:,} examples", means, means < others))
    low = float(np.floor(min(panel.values.min() for panel in panels) * 20) / 20)
    note = "Darker: changed more; mean over examples. Dot: less like itself than like the layer's other heads."
    title, label = "Attention before and after fine-tuning", "cosine similarity"
    draw = partial(draw_maps, panels=panels, title=title, subtitle=subtitle, label=label, note=note)
    return partial(draw, scale=(low, 1.0), colours="Blues_r")


def tables(numbers: Mapping[str, Any]) -> str:
    """A line for each task and mode in Markdown, from a run's `numbers.json`."""
    tasks = numbers["results"]
    layers = len(next(iter(tasks.values()))["corrected"]["layers"])
    header = [
        "",
        "examples",
        "seeds",
        "layer 0",
        *map(str, range(1, layers)),
        "heads that changed most",
        "to other heads",
    ]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for task, task_numbers in tasks.items():
        for mode in ("corrected", "as_published"):
            if mode in task_numbers:
                name = task if mode == "corrected" else f"{task}, as published"
                seeds = str(len(task_numbers["tuned"]))
                cells = [name, f"{task_numbers[mode]['examples']:,}", seeds, *_layer_cells(task_numbers[mode])]
                cells += [_most_changed(task_numbers[mode], 3), f"{_mean(task_numbers[mode]['to_other_heads']):.2f}"]
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _layer_cells(result: Mapping[str, Any]) -> list[str]:
    """Each layer's mean, followed by the range over seeds if there are several."""
    seeds = np.array(result["seeds"]).mean(-1)
    lows, highs = seeds.min(0), seeds.max(0)
    several_seeds = len(seeds) > 1
    return [
        f"{mean:.3f}" + (f" ({low:.3f} to {high:.3f})" if several_seeds else "")
        for mean, low, high in zip(result["layers"], lows, highs, strict=True)
    ]


def _mean(values: Any) -> float:
    return float(np.mean(np.array(values, float)))


def _most_changed(result: Mapping[str, Any], count: int) -> str:
    means, margins = np.array(result["similarity"]), np.array(result["interval"], float)
    heads = [divmod(index, means.shape[1]) for index in np.argsort(means.ravel())[:count].tolist()]
    return ", ".join(f"{layer}.{head} {means[layer, head]:.3f} ± {margins[layer, head]:.3f}" for layer, head in heads)


def _summary(task: str, numbers: Mapping[str, Any]) -> list[str]:
    mode = _mode(numbers)
    result = numbers[mode]
    layers = ", ".join(f"{layer} {value:.3f}" for layer, value in enumerate(result["layers"]))
    names = ", ".join(model["name"] for model in numbers["tuned"])
    apart = f"for scale, to the layer's other heads {_mean(result['to_other_heads']):.3f}"
    lines = [
        f"{task}: {result['examples']:,} examples ({result['source']}), fine-tuned {names}",
        f"  similarity by layer: {layers}",
        f"  heads that changed most: {_most_changed(result, 5)}",
        f"  all heads {_mean(result['similarity']):.3f}; {apart}",
    ]
    if result["all_the_same"]:
        lines.append("  every map is the same before and after: does --tuned name another model than --model?")
    if mode == "as_published":
        apart = numbers["published_against_corrected"]
        most = {name: numbers[name]["layers_by_change"][:2] for name in ("as_published", "corrected")}
        lines += [
            f"  {format_agreement('similarity', apart)}; "
            f"{apart['padding_queries']:.0%} of the rows are padding queries",
            f"  layers that change most: {most['as_published']} as published, {most['corrected']} corrected",
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("attention_change", __doc__, norms=True)
    add_task_options(parser, several=True)
    add_tuned_option(parser)
    return run_program(parser, compute, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
