"""How long do the activations of all layers take, against the bare sweep and against PyTorch?

The texts are the sentences of a CoNLL-U file. In turn: `compute_activations` of all layers, a mean over the pieces of
each word; `bertjax.sweep` of one ablation that changes nothing, with the mean of each text's last hidden states; and
PyTorch (`output_hidden_states`), sentences sorted by length in batches of 32, with the same means in NumPy. Rates are
of the operations of matrix products and attention on real tokens. Programs are compiled before the first turn.

    python -m benchmarks.activations --conllu en_ewt-ud-dev.conllu.gz        a minute
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import describe_machine, matmul_rate, time_in_turns
from bertjax.checkpoints import DEFAULT_MODEL, BertConfig, locate
from bertjax.data import Encoding, collate
from bertjax.interventions import Ablation, readouts
from bertjax.jobs import torch_reference
from bertjax.representations import compute_activations, words_of_pieces
from bertjax.tasks import Tagged, load_examples

BATCH = 32


def torch_activations(reference: Any, texts: list[Encoding], units: list[np.ndarray]) -> np.ndarray:
    """The means over the pieces of each word at every layer, `[layers + 1, words, embed]`."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    found: list[np.ndarray] = [np.zeros(0)] * len(texts)
    for start in range(0, len(texts), BATCH):
        some = order[start : start + BATCH].tolist()
        output = torch_reference.run_torch(reference, collate([texts[index] for index in some]))
        states = np.stack([layer.numpy() for layer in output.hidden_states])
        for row, index in enumerate(some):
            group = units[index]
            kept = np.flatnonzero(group >= 0)
            _, first, counts = np.unique(group[kept], return_index=True, return_counts=True)
            found[index] = np.add.reduceat(states[:, row, kept], first, axis=1) / counts[:, None].astype(np.float32)
    return np.concatenate(found, axis=1)


def flops_of(config: BertConfig, lengths: list[int]) -> float:
    """The operations of the layers' matrix products and of attention, on real tokens."""
    width, inner = config.hidden_size, config.intermediate_size
    products = 2 * sum(lengths) * (4 * width**2 + 2 * width * inner)
    return float(config.num_hidden_layers * (products + 4 * width * sum(length**2 for length in lengths)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--conllu", required=True, metavar="FILE", help="sentences, e.g. en_ewt-ud-dev.conllu")
    parser.add_argument("--limit", type=int, metavar="N", help="N sentences, drawn at random")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    directory = locate(DEFAULT_MODEL)
    model = bertjax.load(directory)
    assert model.tokenizer is not None
    examples = load_examples("token-classification", data=options.conllu, limit=options.limit)
    sentences = [content.words for content in examples.content or () if isinstance(content, Tagged)]
    texts = model.tokenizer.encode_words(sentences, model.config.max_tokens)
    units, reference = [words_of_pieces(text) for text in texts], torch_reference.load_torch(model, directory)
    nothing, readout = [Ablation("none", ())], readouts.sentence_embedding
    ours, theirs = compute_activations(model, texts, units=units), torch_activations(reference, texts, units)
    difference = float(np.abs(ours.hidden_states - theirs).max())
    jobs: dict[str, Callable[[], Any]] = {
        "compute_activations": lambda: compute_activations(model, texts, units=units),
        "bertjax.sweep": lambda: bertjax.sweep(model, texts, nothing, readout, progress=False),
        "PyTorch": lambda: torch_activations(reference, texts, units),
    }
    seconds = time_in_turns(jobs, options.rounds)
    tokens, flops, rate = sum(map(len, texts)), flops_of(model.config, [*map(len, texts)]), matmul_rate()
    title = f"{len(texts):,} sentences, {tokens:,} tokens; {rate / 1e9:.0f} GFLOP/s in a large product"
    table = Table(title=f"{title}; {describe_machine()}")
    for name in ("way", "median s", "tokens/s", "of the matrix rate", "times compute_activations"):
        table.add_column(name, justify="right")
    for way, time in seconds.items():
        ratio = time / seconds["compute_activations"]
        table.add_row(way, f"{time:.2f}", f"{tokens / time:,.0f}", f"{flops / time / rate:.2f}", f"{ratio:.2f}")
    Console().print(table)
    print(f"largest difference from PyTorch: {difference:.1e}")


if __name__ == "__main__":
    main()
