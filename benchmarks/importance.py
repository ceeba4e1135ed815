"""Are gradients with respect to gates on heads those of PyTorch, and what do they cost?

Exactness: a real sentence embedder on pairs of the QNLI sample, mode zero. In PyTorch gates of each example, at each
token, multiply the heads' outputs before the output projection, and one backward pass gives the gradients of all;
absolute values are taken at tokens as in the program of Michel et al. 2019. Cost: BERT-base's shape with random weights
for as many pairs as MRPC's validation set has, compared with a forward pass of the engine and with PyTorch in one
process; medians of several rounds.

    python -m benchmarks.importance [--pairs 408] [--rounds 3] [--exact 100]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import config_of, describe_machine, draw_lengths, random_examples, time_in_turns
from benchmarks.rivals import make_checkpoint, torch_batches
from bertjax.analyses import head_gradients
from bertjax.checkpoints import DEFAULT_MODEL, locate
from bertjax.data import Encoding, Tokenizer
from bertjax.engine import GatePasses, GateTexts, sweep
from bertjax.interventions import ablation, every_head, readouts
from bertjax.jobs import torch_reference
from bertjax.tasks import encode_examples, load_examples

BATCHES = (8, 32)


@contextmanager
def gated(model: Any, heads: int, shape: tuple[int, int]) -> Iterator[list[torch.Tensor]]:
    """Gates of 1 at each token `[batch, token, heads]` on all heads of a transformers model, one tensor a layer."""
    layers = [module for name, module in model.named_modules() if name.endswith("attention.output.dense")]
    gates = [torch.ones(*shape, heads, requires_grad=True) for _ in layers]

    def hook(gate: torch.Tensor) -> Callable[[Any, Any], Any]:
        def multiply(module: Any, inputs: Any) -> Any:
            by_head = inputs[0].reshape(*inputs[0].shape[:2], heads, -1) * gate[..., None]
            return (by_head.reshape(inputs[0].shape), *inputs[1:])

        return multiply

    hooks = [layer.register_forward_pre_hook(hook(gate)) for layer, gate in zip(layers, gates, strict=True)]
    try:
        yield gates
    finally:
        for one in hooks:
            one.remove()


def exactness(count: int) -> Table:
    """The largest differences of losses and gradients, over the largest gradient."""
    directory = locate(DEFAULT_MODEL)
    model, examples = bertjax.load(directory), load_examples("qnli-sample", limit=count)
    encoded = encode_examples(model, Tokenizer.from_pretrained(directory), examples)
    found = head_gradients(model, encoded, "zero")
    reference = torch_reference.load_torch(model, directory)
    reference.requires_grad_(False)
    heads, losses = model.config.num_attention_heads, np.zeros(len(examples))
    gradients, absolute = np.zeros((2, *found.changes.shape))
    for example in range(len(examples)):
        texts = [encoded.encodings[number] for number in encoded.numbers_of(example)]
        vectors, several = [], []
        for text in texts:
            with gated(reference, heads, (1, len(text))) as gates:
                output = reference(torch.tensor([text.input_ids]))
            vectors.append(output.last_hidden_state[0].mean(0))
            several.append(gates)
        cosine = torch.nn.functional.cosine_similarity(vectors[0], vectors[1], dim=0)
        loss = (cosine - float(examples.labels[example] == 0)) ** 2  # class 0 of QNLI is entailment
        loss.backward()
        losses[example] = loss.item()
        for gates in several:
            slopes = np.stack([np.asarray(gate.grad)[0] for gate in gates])  # [layers, token, heads]
            gradients[:, example] += slopes.sum(1).ravel()
            absolute[:, example] += np.abs(slopes).sum(1).ravel()
    table = Table("what", "largest difference", "largest value", title=f"{len(examples)} pairs of the QNLI sample")
    for name, ours, theirs in (
        ("loss", found.losses, losses),
        ("gradient", -found.changes, gradients),
        ("absolute values at tokens", found.at_tokens, absolute),
    ):
        table.add_row(name, f"{np.abs(ours - theirs).max():.1e}", f"{np.abs(theirs).max():.3f}")
    return table


def rivals(count: int, directory: Path) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    config = config_of("base")
    make_checkpoint(directory, config)
    model = bertjax.load(directory)
    texts: list[Encoding] = random_examples(draw_lengths("mrpc", count), config.vocab_size)
    last = [ablation(config, [(config.num_hidden_layers - 1, 0)], "zero")]
    everything, of_texts = ablation(config, every_head(config), "zero"), GateTexts(texts, np.arange(count), count)

    def grade(example: int, outputs: np.ndarray) -> tuple[float, np.ndarray]:
        return float(outputs.sum()), np.ones(outputs.shape)

    found: dict[str, Callable[[], Any]] = {
        "forward, engine": lambda: sweep(model, texts, last, readouts.logits, progress=False),
        "gradients, engine": lambda: GatePasses(model, of_texts, everything, readouts.logits, grade).run_all(),
    }
    reference = torch_reference.load_torch(model, directory)
    reference.requires_grad_(False)
    for size in BATCHES:
        batches = torch_batches(texts, size, None)

        def forward(batches: Any = batches) -> None:
            with torch.inference_mode():
                for batch in batches:
                    reference(**batch)

        def backward(batches: Any = batches) -> None:
            for batch in batches:
                with gated(reference, config.num_attention_heads, tuple(batch["input_ids"].shape)):
                    reference(**batch).logits.sum().backward()

        found |= {f"forward, PyTorch, batch {size}": forward, f"gradients, PyTorch, batch {size}": backward}
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=408)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exact", type=int, default=100)
    options = parser.parse_args()
    console = Console(width=110)
    console.print(describe_machine())
    console.print(exactness(options.exact))
    with tempfile.TemporaryDirectory() as folder:
        several = rivals(options.pairs, Path(folder))
        medians = time_in_turns(several, options.rounds)
    table = Table("pass", "seconds", "in forward passes of the engine", title=f"{options.pairs} pairs, BERT-base")
    for name, median in medians.items():
        table.add_row(name, f"{median:.1f}", f"{median / medians['forward, engine']:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
