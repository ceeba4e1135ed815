"""What do several layers do together? (Kovaleva et al. 2019, section 4.6: "several layers at once")

Like `fig9_layers.py`, but with sets of layers: every pair, all layers up to and from each, all but one, and all. For
each pair: whether both together cost more than the sum of the two alone, with 95 % intervals over examples and q over
all pairs.

    python -m experiments.beyond.layer_sets --task stsb --data GLUE_DIR
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.plots import COLOURS, Panel
from bertjax.statistics import RESAMPLES, Q
from experiments.fig8_heads import add_options
from experiments.shared.data import make_study, split_task
from experiments.shared.effects import Effects, describe_runs, draw_changes, main_effects, outputs_of, texts_of
from experiments.shared.figures import Texts, draw_effect_bars, draw_maps
from experiments.shared.interactions import describe_beyond, measure_beyond
from experiments.shared.run import Figures, Found, Numbers, Run, Runs, array, make_parser, run_script
from experiments.shared.tables import format_change, format_estimate, make_table


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
    layers = range(total)
    sets: list[tuple[int, ...]] = [(layer,) for layer in layers]
    sets += combinations(layers, 2)
    sets += [tuple(range(layer + 1)) for layer in layers] + [tuple(range(layer, total)) for layer in layers]
    sets += [tuple(other for other in layers if other != layer) for layer in layers]
    return [some for some in dict.fromkeys(sets) if some]


def compute(run: Run) -> Found:
    """Ablate all sets of layers in every mode."""
    options, config = split_task(run.options), run.model.config
    total, heads = config.num_hidden_layers, config.num_attention_heads
    options.output.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{name_layers(layers, total)}: {' '.join(f'{layer}.{head}' for layer in layers for head in range(heads))}"
        for layers in list_sets(total)
    ]
    (options.output / "sets.txt").write_text("\n".join(lines) + "\n")
    study = make_study(run, options)
    sets = options.output / "sets.txt"
    runs = {mode: study.ablate(mode=mode, ablate=sets, output=options.output / mode) for mode in options.modes}
    results = describe_runs(runs, "layer set", options.seed)
    pairs = {
        mode: measure_pairs(results, mode, outputs_of(one), one.outputs["labels"], options.seed)
        for mode, one in runs.items()
    }
    return results | {"pairs": pairs}, {mode: outputs_of(one) for mode, one in runs.items()}


def measure_pairs(
    results: Numbers, mode: str, outputs: Any, labels: Any, seed: int, draws: int = RESAMPLES
) -> dict[str, Any]:
    """For each pair of layers, the joint change minus the sum of the single changes, by the main metric."""
    total, positions = results["layers"], {name: position for position, name in enumerate(results["names"])}
    drawn = 100 * draw_changes(results["metric"], outputs, labels, results["positive"], draws, seed)
    pairs = list(combinations(range(total), 2))
    together = [positions[name_layers(pair, total)] for pair in pairs]
    first, second = ([positions[str(pair[end])] for pair in pairs] for end in (0, 1))
    beyond = measure_beyond(main_effects(results)[mode].change, drawn, together, first, second)
    return {"layers": [list(pair) for pair in pairs], **describe_beyond(beyond)}


def grown_sets(results: Numbers) -> dict[str, list[int]]:
    """Positions, among all sets, of those that grow layer by layer."""
    total, layers = results["layers"], range(results["layers"])
    kinds: dict[str, Sequence[Sequence[int]]] = {
        "layers 0 to this": [range(layer + 1) for layer in layers],
        "layers from this on": [range(layer, total) for layer in layers],
        "all but this": [[other for other in layers if other != layer] for layer in layers],
    }
    return {kind: [results["names"].index(name_layers(some, total)) for some in sets] for kind, sets in kinds.items()}


def figures(numbers: Numbers) -> Figures:
    """Maps of pairs, and bars of growing sets, in the first mode."""
    results = numbers["results"]
    mode, effects = next(iter(main_effects(results).items()))
    texts = texts_of(results)._replace(title=f"Ablating several layers at once ({mode})")
    layers, bars = range(results["layers"]), {}
    for title, positions in grown_sets(results).items():
        bars[title] = tuple(
            values[positions] for values in (effects.change, effects.low, effects.high, effects.significant)
        )
    growing = partial(draw_effect_bars, names=[str(layer) for layer in layers], bars=bars, texts=texts)
    return {
        "figure": partial(_draw_pairs, results=results, mode=mode, effects=effects, texts=texts),
        "growing": growing,
    }


def _draw_pairs(path: Path, results: Numbers, mode: str, effects: Effects, texts: Texts) -> None:
    """The change by pairs of layers, with single layers on the diagonal, and the change beyond the sum."""
    total, pairs = results["layers"], results["pairs"][mode]
    change, beyond = np.full((2, total, total), np.nan)
    found, found_beyond = np.zeros((2, total, total), bool)
    for first, second in np.ndindex(total, total):
        index = results["names"].index(name_layers({first, second}, total))
        change[first, second], found[first, second] = effects.change[index], effects.significant[index]
    for (first, second), value, q in zip(pairs["layers"], array(pairs["beyond"]), array(pairs["q"]), strict=True):
        for cell in ((first, second), (second, first)):
            beyond[cell], found_beyond[cell] = value, np.nan_to_num(q, nan=1.0) < Q
    limit = float(np.nanmax(np.abs(change)))
    panels = [
        Panel("change; alone on the diagonal", change, found),
        Panel("beyond the sum of both", beyond, found_beyond),
    ]
    options: dict[str, Any] = {"note": f"dot: significant (q < {Q})", "scale": (-limit, limit), "colours": COLOURS}
    draw_maps(path, panels, texts, **options, axis="layer")


def tables(runs: Runs) -> str:
    """Pairs of layers in the first mode: the change, and the change beyond the sum of both."""
    return "\n\n".join(_pairs_table(numbers["results"]) for numbers in runs.values())


def _pairs_table(results: Numbers) -> str:
    total, (mode, effects) = results["layers"], next(iter(main_effects(results).items()))
    pairs, cells = results["pairs"][mode], [[""] * total for _ in range(total)]
    for index, (first, second) in enumerate(pairs["layers"]):
        change = effects.change[results["names"].index(name_layers((first, second), total))]
        beyond = format_estimate(pairs["beyond"][index], (pairs["low"][index], pairs["high"][index]))
        cells[first][second] = f"{format_change(change)}; {beyond}"
    rows = [[str(first), *row[1:]] for first, row in enumerate(cells[:-1])]
    return make_table(["pair: change; beyond the sum", *map(str, range(1, total))], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_options(parser)
    parser.set_defaults(modes=["uniform"])
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
