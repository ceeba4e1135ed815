"""What do several layers do together? (Kovaleva et al. 2019, section 4.6 and the discussion: "several layers at once")

As `layer_ablation.py`, but with sets of layers: every pair, all layers up to and from each, all but one, and all. For
each pair, tells whether both together cost more than the sum of the two alone (each stands in for the other while it is
there) or less (they do the same work one after the other, or nothing is left to lose), with 95 % intervals over
examples and q over all pairs.

    python -m experiments.layer_sets --task stsb --data GLUE_DIR

DIR/uniform holds what `bertjax report`, `show` and `compare` read. --modes takes others beside the paper's. For results
and run times see `RESULTS.md`, 4.6.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num

from bertjax.checkpoints import BertConfig
from bertjax.evidence import Q
from bertjax.interventions import Ablation, ablation, heads_of_layer
from experiments.disabling.beyond import describe_beyond, measure_beyond
from experiments.disabling.effects import Effects, draw_changes, format_estimate, mean_of
from experiments.disabling.panels import EffectPanel, draw_effect_bars, draw_effect_maps
from experiments.disabling.program import MODES, Kind, add_disabling_options, compute_disabling
from experiments.disabling.strips import texts_of
from experiments.disabling.summary_lines import main_effects, single_lines, table_of
from experiments.shared.program import make_parser, run_program


def name_layers(layers: Iterable[int], total: int) -> str:
    """The name of a set of layers.

    >>> [name_layers(some, 6) for some in ([2], [1, 4], [0, 1, 2], [3, 4, 5], [0, 1, 3, 4, 5])]
    ['2', '1+4', '0 to 2', '3 to 5', 'all but 2']
    """
    ordered = sorted(layers)
    if len(ordered) < 3:
        return "+".join(map(str, ordered))
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    (missing,) = set(range(total)) - set(ordered)
    return f"all but {missing}"


def list_sets(total: int) -> list[tuple[int, ...]]:
    """Single layers, pairs, all up to and all from each, all but one; none twice."""
    all_layers = range(total)
    sets: list[tuple[int, ...]] = [(layer,) for layer in all_layers]
    sets += combinations(all_layers, 2)
    sets += [tuple(range(layer + 1)) for layer in all_layers] + [tuple(range(layer, total)) for layer in all_layers]
    sets += [tuple(other for other in all_layers if other != layer) for layer in all_layers]
    return [layers for layers in dict.fromkeys(sets) if layers]


def layer_sets(config: BertConfig, mode: str) -> list[Ablation]:
    """All sets as ablations."""
    total = config.num_hidden_layers
    return [
        ablation(
            config,
            [head for layer in layers for head in heads_of_layer(config, layer)],
            mode,
            name_layers(layers, total),
        )
        for layers in list_sets(total)
    ]


def measure_pairs(
    results: Mapping[str, Any],
    mode: str,
    outputs: Float[np.ndarray, "runs examples *labels"],
    labels: Num[np.ndarray, " examples"],
    options: Namespace,
) -> dict[str, Any]:
    """For each pair of layers, the joint change minus the sum of the single changes, by the main metric."""
    total, positions = results["layers"], {name: position for position, name in enumerate(results["names"])}
    draws = 100 * draw_changes(results["metric"], outputs, labels, results["positive"], options.resamples, options.seed)
    change = main_effects(results)[mode].change
    pairs = list(combinations(range(total), 2))
    if not pairs:
        return {}
    together = [positions[name_layers(pair, total)] for pair in pairs]
    first, second = ([positions[str(pair[end])] for pair in pairs] for end in (0, 1))
    beyond = measure_beyond(change, draws, together, first, second)
    return {"pairs": {"layers": [list(pair) for pair in pairs], **describe_beyond(beyond)}}


def figures(numbers: Mapping[str, Any]) -> dict[str, Callable[[Path], None]]:
    """The pictures of a run by name, from its `numbers.json` alone: maps of pairs, and bars of growing sets."""
    results = numbers["results"]
    mode, effects = next(iter(main_effects(results).items()))
    _, subtitle, label, _ = texts_of(results)
    texts = {"title": f"Disabling several layers at once ({mode})", "subtitle": subtitle, "label": label}
    bars = partial(_draw_growing, results=results, effects=effects, texts=texts)
    return {"figure": partial(_draw_pairs, results=results, mode=mode, effects=effects, texts=texts), "growing": bars}


def _draw_pairs(path: Path, results: Mapping[str, Any], mode: str, effects: Effects, texts: dict[str, str]) -> None:
    """The change by pairs of layers, with single layers on the diagonal, and the change beyond the sum."""
    total, names = results["layers"], results["names"]
    change, significant = np.full((total, total), np.nan), np.zeros((total, total), bool)
    for first in range(total):
        for second in range(total):
            index = names.index(name_layers({first, second}, total))
            change[first, second], significant[first, second] = effects.change[index], effects.significant[index]
    panels = [EffectPanel("change; alone on the diagonal", change, significant)]
    if pairs := results.get("pairs", {}).get(mode):
        panels.append(EffectPanel("beyond the sum of both alone", *_square(pairs, total)))
    draw_effect_maps(path, panels, **texts, axis_names=("layer", "layer"))


def _square(
    pairs: Mapping[str, Any], total: int
) -> tuple[Float[np.ndarray, "layers layers"], Bool[np.ndarray, "layers layers"]]:
    values, significant = np.full((total, total), np.nan), np.zeros((total, total), bool)
    for (first, second), beyond, q in zip(pairs["layers"], pairs["beyond"], pairs["q"], strict=True):
        for cell in ((first, second), (second, first)):
            values[cell], significant[cell] = np.nan if beyond is None else beyond, q is not None and q < Q
    return values, significant


def _draw_growing(path: Path, results: Mapping[str, Any], effects: Effects, texts: dict[str, str]) -> None:
    """The sets growing from below and from above, and all but one."""
    total, names, all_layers = results["layers"], results["names"], range(results["layers"])
    kinds: dict[str, Sequence[Sequence[int]]] = {
        "layers 0 to this": [range(layer + 1) for layer in all_layers],
        "layers from this on": [range(layer, total) for layer in all_layers],
        "all but this": [[other for other in all_layers if other != layer] for layer in all_layers],
    }
    panels = []
    for title, sets in kinds.items():
        if not all(sets):
            continue  # in a model of one layer "all but this" is empty
        places = [names.index(name_layers(layers, total)) for layers in sets]
        ends = np.stack([effects.low[places], effects.high[places]])
        panels.append(EffectPanel(title, effects.change[places], effects.significant[places], ends))
    draw_effect_bars(path, panels, [str(layer) for layer in all_layers], **texts, what="layer")


def report_lines(results: Mapping[str, Any]) -> list[str]:
    """A run's results in lines."""
    lines = single_lines(results)
    for mode, pairs in results.get("pairs", {}).items():
        beyond = np.array([np.nan if value is None else value for value in pairs["beyond"]])
        q = np.array([1.0 if value is None else value for value in pairs["q"]])
        most, least = (_format_pair(pairs, int(place)) for place in (np.nanargmax(beyond), np.nanargmin(beyond)))
        lines.append(
            f"{mode}: of {len(beyond)} pairs of layers {int(((q < Q) & (beyond < 0)).sum())} lower the score by more "
            f"than the sum of what each does alone and {int(((q < Q) & (beyond > 0)).sum())} by less, at q < {Q}; "
            f"beyond the sum {format_estimate(mean_of(beyond))} on average, from {least} to {most}"
        )
    return lines


def _format_pair(pairs: Mapping[str, Any], place: int) -> str:
    layers = "+".join(map(str, pairs["layers"][place]))
    return f"{layers} {format_estimate(pairs['beyond'][place], (pairs['low'][place], pairs['high'][place]))}"


def tables(numbers: Mapping[str, Any]) -> str:
    """All sets with their changes, for pairs also beyond the sum, in Markdown, from `numbers.json` alone."""
    results = numbers["results"]
    mode, effects = next(iter(main_effects(results).items()))
    pairs = results.get("pairs", {}).get(mode, {"layers": []})
    beyond = {
        name_layers(layers, results["layers"]): _format_pair(pairs, place).split(" ", 1)[1]
        for place, layers in enumerate(pairs["layers"])
    }
    rows = []
    for place, name in enumerate(results["names"]):
        change = format_estimate(float(effects.change[place]), (float(effects.low[place]), float(effects.high[place])))
        rows.append([name, change, effects.format_q(place), beyond.get(name, "")])
    return table_of(["layers", "change (95 %)", "q", "beyond the sum of both"], rows)


SETS = Kind("layer set", layer_sets, figures, report_lines, measure_pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser("layer_sets", __doc__, published=False)
    parser.set_defaults(as_published=False)
    add_disabling_options(parser, MODES[:1])
    return run_program(parser, lambda run: compute_disabling(run, SETS), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
