"""Is a grid of patches faster than a loop of hooks in PyTorch, and does it give the same?

Clean and corrupted texts of random words, of one length; the residual stream, what attention adds and what the
feed-forward layer adds, in each layer at each position, and all heads' outputs at each position: a run for each cell.
bertjax runs them as one sweep. In PyTorch the clean texts are run once, what is to be patched in is kept, and then each
cell is a pass of a batch of all corrupted texts, with a hook that puts it in; of these passes some, spread over all
layers, are timed and scaled to all, once from the bottom and once from the hidden states that the layer below gave
(what a careful user would do). Seconds are medians of several rounds, compilation apart; and the largest difference of
logits over the cells that were timed.

    python -m benchmarks.patching [--size minilm] [--contrasts 32] [--tokens 16] [--rounds 3]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import config_of, describe_machine, random_examples, time_in_turns
from benchmarks.rivals import make_checkpoint, torch_batches
from bertjax.data import Encoding
from bertjax.engine import sweep
from bertjax.interventions import Ablation, Change, every_head, readouts
from bertjax.jobs import torch_reference
from bertjax.models import SITES, PretrainedModel

STREAMS = ("hidden_states", "attention_outputs", "feed_forward_outputs")
MODULES = {"attention_outputs": "attention.output.dense", "feed_forward_outputs": "output.dense"}
TIMED = 24


def cells_of(model: PretrainedModel, places: Sequence[str], positions: int) -> list[Change]:
    """A patch for each layer or head, and position."""
    config = model.config
    rows = {
        place: every_head(config)
        if SITES[place].of_heads
        else [(layer, 0) for layer in range(config.num_hidden_layers)]
        for place in places
    }
    return [
        Change(layer, head, "patched", site=place, at=(position,))
        for place in places
        for layer, head in rows[place]
        for position in range(positions)
    ]


@dataclass
class Hooks:
    """PyTorch's model with what the clean texts gave at all places kept, and patched in where a cell says."""

    model: Any
    head_dim: int
    kept: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    streams: list[torch.Tensor] = field(default_factory=list)

    @property
    def layers(self) -> Any:
        """The model's layers."""
        return self.model.base_model.encoder.layer

    def keep(self, clean: dict[str, torch.Tensor], corrupted: dict[str, torch.Tensor]) -> None:
        """Run the clean texts and keep all places; of the corrupted ones the hidden states before each layer."""
        handles = []
        for number, layer in enumerate(self.layers):

            def save(name: str, number: int = number) -> Callable[..., None]:
                def hook(module: Any, inputs: Any, result: Any = None) -> None:
                    self.kept[name, number] = (inputs[0] if result is None else result).detach()

                return hook

            modules = dict(layer.named_modules())
            handles.append(layer.register_forward_pre_hook(save("hidden_states")))
            handles.append(modules["attention.output.dense"].register_forward_pre_hook(save("head_outputs")))
            handles += [modules[module].register_forward_hook(save(name)) for name, module in MODULES.items()]
        with torch.inference_mode():
            self.model(**clean)
        for handle in handles:
            handle.remove()
        with torch.inference_mode():
            self.streams = list(self.model(**corrupted, output_hidden_states=True).hidden_states)

    @contextmanager
    def patched(self, cell: Change) -> Iterator[None]:
        """Put what the clean texts gave into one cell."""
        layer, position = self.layers[cell.layer], cell.at[0]
        clean = self.kept[cell.site, cell.layer]
        part = slice(None)
        if cell.site == "head_outputs":
            part = slice(cell.head * self.head_dim, (cell.head + 1) * self.head_dim)

        def replace(values: torch.Tensor) -> torch.Tensor:
            changed = values.clone()
            changed[:, position, part] = clean[:, position, part]
            return changed

        modules = dict(layer.named_modules())
        if cell.site in MODULES:
            handle = modules[MODULES[cell.site]].register_forward_hook(lambda module, inputs, result: replace(result))
        else:
            where = layer if cell.site == "hidden_states" else modules["attention.output.dense"]
            handle = where.register_forward_pre_hook(lambda module, inputs: (replace(inputs[0]), *inputs[1:]))
        try:
            yield
        finally:
            handle.remove()

    def whole(self, batch: dict[str, torch.Tensor], cell: Change) -> np.ndarray:
        """The logits of one cell, by a pass through all layers."""
        with torch.inference_mode(), self.patched(cell):
            return np.asarray(self.model(**batch).logits)

    def from_layer(self, cell: Change) -> np.ndarray:
        """The logits of one cell, by a pass from its layer on: all texts are of one length, so there is no mask."""
        hidden = self.streams[cell.layer]
        with torch.inference_mode(), self.patched(cell):
            for layer in self.layers[cell.layer :]:
                output = layer(hidden)
                hidden = output[0] if isinstance(output, tuple) else output
            return np.asarray(self.model.classifier(self.model.base_model.pooler(hidden)))


def measure(directory: Path, options: argparse.Namespace, places: Sequence[str], console: Console) -> None:
    """Print the row of one grid."""
    model = bertjax.load(directory)
    lengths = [options.tokens] * options.contrasts
    both: list[Encoding] = random_examples([*lengths, *lengths], model.config.vocab_size)
    clean, corrupted = both[: options.contrasts], both[options.contrasts :]
    cells = cells_of(model, places, options.tokens)
    runs = [Ablation(f"{number}", (cell,)) for number, cell in enumerate(cells)]
    spans = [list(range(options.tokens))] * options.contrasts
    hooks = Hooks(torch_reference.load_torch(model, directory), model.config.head_dim)
    (clean_batch,), (batch,) = (torch_batches(texts, options.contrasts, None) for texts in (clean, corrupted))
    hooks.keep(clean_batch, batch)  # which does not count
    timed = np.linspace(0, len(cells) - 1, min(TIMED, len(cells))).astype(int)
    found: dict[str, Any] = {}

    def ours() -> None:
        found["bertjax"] = sweep(
            model, corrupted, runs, readouts.logits, sources=clean, spans=spans, progress=False
        ).outputs[timed]

    def whole() -> None:
        found["hooks"] = np.stack([hooks.whole(batch, cells[number]) for number in timed])

    def from_layer() -> None:
        found["from the layer"] = np.stack([hooks.from_layer(cells[number]) for number in timed])

    scale = len(cells) / len(timed)
    jobs = {"bertjax, one sweep": ours, "PyTorch, hooks": whole, "PyTorch, from the patched layer on": from_layer}
    medians = time_in_turns(jobs, options.rounds)
    mine = medians["bertjax, one sweep"]
    table = Table("way", "seconds", "of bertjax's", title=f"{', '.join(places)}: {len(cells):,} cells")
    for name, median in medians.items():
        seconds = median if name.startswith("bertjax") else median * scale
        table.add_row(name, f"{seconds:.1f}", f"{seconds / mine:.1f}")
    console.print(table)
    apart = max(np.abs(found["bertjax"] - found[name]).max() for name in ("hooks", "from the layer"))
    moved = np.abs(found["hooks"] - found["hooks"][-1]).max()
    console.print(f"largest difference of logits: {apart:.1e}, where patches move them by up to {moved:.1e}")


def main() -> None:
    """Print a table for streams and one for heads."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", choices=["minilm", "base"], default="minilm")
    parser.add_argument("--contrasts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=110)
    console.print(describe_machine())
    console.print(f"{options.size}, {options.contrasts} contrasts of {options.tokens} tokens")
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), config_of(options.size))
        for places in (STREAMS, ("head_outputs",)):
            measure(Path(folder), options, places, console)


if __name__ == "__main__":
    main()
