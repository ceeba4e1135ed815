"""Figure 5: where does fine-tuning change attention? (Kovaleva et al. 2019, section 4.3)

For each head and example: the cosine similarity of the base model's attention map and the fine-tuned model's over the
real tokens; averaged over the examples, with a 95 % interval (normal theory). For scale, the similarity of the base
head's map to the fine-tuned maps of the layer's other heads; a dot marks heads less similar to themselves than to
these. Repeat --tuned to name models of other seeds: results are then means over seeds, and layers are shown for each
seed.

--as-published also computes what the authors' code does: whole maps of 200 x 200 tokens, in which padding tokens serve
as queries but not as keys; a task's TSV file read with quote handling.

    python -m experiments.fig5_change --task mrpc stsb --data GLUE \\
        --tuned DIR/runs/mrpc-pretrained-0/last DIR/runs/stsb-pretrained-0/last
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertjax.plots import Panel
from experiments.published import LENGTH
from experiments.shared.agreement import compare_maps
from experiments.shared.attention import reduce_attention
from experiments.shared.data import Sample, add_task_options, add_tuned_option, read_sample, task_options, tuned_models
from experiments.shared.figures import Texts, draw_maps
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, make_parser, name_maps, run_script
from experiments.shared.tables import make_table, name_head
from experiments.words.estimates import estimate, listed


@dataclass(frozen=True)
class Similarity:
    """How similar each head is to its fine-tuned self, and on average to the layer's other heads, by seed."""

    same_head: Float[np.ndarray, "seeds examples layers heads"]
    other_heads: Float[np.ndarray, "seeds examples layers heads"]

    @property
    def means(self) -> Float[np.ndarray, "layers heads"]:
        """Mean of `same_head` over seeds and examples."""
        return self.same_head.astype(np.float64).mean((0, 1))

    @property
    def margins(self) -> Float[np.ndarray, "layers heads"]:
        """Half the width of the means' 95 % intervals over the examples, with the seeds taken as fixed."""
        return estimate(self.same_head.mean(0, dtype=np.float64)).interval


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
    itself = (base * unit).sum((-2, -1)) / length
    all_heads = (base * unit.sum(2, keepdims=True)).sum((-2, -1)) / length
    heads = base.shape[2]
    others = (all_heads - itself) / max(1, heads - 1)
    stacked = jnp.stack([itself, others if heads > 1 else jnp.full_like(itself, jnp.nan)])
    return jnp.moveaxis(stacked, 2, 0)


def compute(run: Run) -> Found:
    """The similarities of each task, in one mode or both."""
    results: dict[str, Any] = {}
    values: dict[str, np.ndarray] = {}
    tasks = task_options(run.options)
    for task, names in tuned_models(run.options, list(tasks)).items():
        modes, maps = ("corrected", "as_published")[: 1 + run.options.as_published], {}
        results[task] = {"tuned": [{"name": name} for name in names]}
        for mode in modes:
            sample = read_sample(run, tasks[task], published=mode == "as_published")
            similarity = maps[mode] = compare_models(run, sample, names, published=mode == "as_published")
            results[task][mode] = _report(similarity, sample)
            values |= {f"{task}_{mode}_{kind}": getattr(similarity, kind) for kind in ("same_head", "other_heads")}
            values[f"{task}_{mode}_ids"] = np.array(sample.examples.ids)
        if run.options.as_published:
            padding = 1 - float(np.mean([len(text) for text in sample.texts])) / LENGTH
            apart = compare_maps(maps["as_published"].means, maps["corrected"].means)
            results[task]["published_against_corrected"] = apart | {"padding_queries": round(padding, 4)}
    return results, values


def compare_models(run: Run, sample: Sample, names: Sequence[str], *, published: bool) -> Similarity:
    """The similarities of the model's maps to those of each fine-tuned model."""
    statistic: Any = compare_whole if published else compare_real
    length = min(LENGTH, run.model.config.max_tokens) if published else None
    seeds = [
        reduce_attention((run.model, tuned), sample.texts, statistic, length=length, norms=run.norms)
        for tuned in (run.load_tuned(name, sample.examples.task.name) for name in names)
    ]
    return Similarity(*np.moveaxis(np.stack(seeds), 2, 0))


def _report(similarity: Similarity, sample: Sample) -> dict[str, Any]:
    """Maps, intervals, layers, and heads in order from the most changed."""
    means, layers = similarity.means, similarity.same_head.astype(np.float64).mean((0, -1))
    order = np.argsort(means.ravel())
    return {
        **sample.to_dict(),
        "similarity": means.round(5).tolist(),
        "interval": listed(similarity.margins),
        "seeds": similarity.same_head.astype(np.float64).mean(1).round(5).tolist(),
        "layers": layers.mean(0).round(6).tolist(),
        "layers_interval": listed(estimate(layers).interval),
        "to_other_heads": listed(similarity.other_heads.astype(np.float64).mean((0, 1))),
        "layers_by_change": [int(layer) for layer in np.argsort(layers.mean(0))],
        "heads_by_change": [name_head(index, means.shape[1]) for index in order.tolist()],
    }


def figures(numbers: Numbers) -> Figures:
    """The corrected maps of each task; as published only if they were computed."""
    tasks, settings = numbers["results"], numbers["settings"]
    seeds = max(len(task["tuned"]) for task in tasks.values())
    subtitle = f"{settings['model']} and its fine-tuned forms, mean of {seeds} seeds{name_maps(settings)}"
    note = "Darker: changed more; mean over examples. Dot: less like itself than like the layer's other heads."
    pictures = {}
    both = {"figure": "as_published", "corrected": "corrected"}
    for name, mode in (both if "as_published" in next(iter(tasks.values())) else {"figure": "corrected"}).items():
        panels = []
        for task, of_task in tasks.items():
            means, others = (np.array(of_task[mode][key], float) for key in ("similarity", "to_other_heads"))
            panels.append(Panel(f"{task}, {of_task[mode]['examples']:,} examples", means, means < others))
        low = float(np.floor(min(panel.values.min() for panel in panels) * 20) / 20)
        texts = Texts("Attention before and after fine-tuning", subtitle, "cosine similarity")
        look: dict[str, Any] = {"note": note, "scale": (low, 1.0), "colours": "Blues_r"}
        pictures[name] = partial(draw_maps, panels=panels, texts=texts, **look)
    return pictures


def tables(runs: Runs) -> str:
    """A row for each run and task: the similarity of each layer, mean over heads and seeds."""
    rows = [row for numbers in runs.values() for row in _rows(numbers)]
    head = ["", "examples; seeds", *(f"layer {layer}" for layer in range(len(rows[0]) - 4))]
    return make_table([*head, "heads that changed most", "to other heads"], rows)


def _rows(numbers: Numbers) -> Iterator[list[str]]:
    for task, of_task in numbers["results"].items():
        found, maps = of_task["corrected"], ", norms" if numbers["settings"].get("norms") else ""
        layers = [f"{mean:.3f}" for mean in found["layers"]]
        means = np.array(found["similarity"])
        order = np.argsort(means.ravel())[:3]
        heads = ", ".join(f"{name_head(int(head), means.shape[1])} {means.ravel()[head]:.2f}" for head in order)
        others = f"{np.mean(np.array(found['to_other_heads'], float)):.2f}"
        yield [f"{task}{maps}", f"{found['examples']:,}; {len(of_task['tuned'])}", *layers, heads, others]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__, published=True, norms=True)
    add_task_options(parser, multiple=True)
    add_tuned_option(parser)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
