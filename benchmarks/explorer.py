"""How long does the explorer take for a whole map, against the bare sweep and against PyTorch with hooks?

All three compute the same map in turn: the change of one text's answer without each head, one head at a time (mode
uniform), on a text or pair of 20 tokens. The time of the explorer is that of a request to its server, until the last
line of the map has arrived; `bertjax.sweep` has its default options; PyTorch makes a pass for each head and one without
any, with hooks that override the head. Programs are compiled before the first turn. The table has the best and
the median of the turns.

    python -m benchmarks.explorer                   MiniLM's similarity and BERT-base's masked words; about 2 minutes
    python -m benchmarks.explorer --only minilm --rounds 20
"""

import argparse
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from benchmarks.common import config_of, describe_machine
from bertjax import BertForMaskedLM, Tokenizer
from bertjax.checkpoints import DEFAULT_MODEL, locate
from bertjax.data import collate
from bertjax.engine import sweep
from bertjax.explorer import Explorer, Subject
from bertjax.interventions import every_head, readouts, single_heads
from bertjax.jobs import torch_reference
from bertjax.models import PretrainedModel
from bertjax.tasks import cosine

PAIR = ["A man is eating bread in a big kitchen.", "Someone has a warm meal."]  # 12 and 8 tokens
TEXT = "The old man walked to the [MASK] in the morning and bought some bread for his wife."
MODELS = ("minilm", "base")
Numbers = np.ndarray  # of the base, and without each head


def ask_explorer(url: str, message: dict[str, Any]) -> Numbers:
    """A whole map from the server."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=600)
    token = parts.query.removeprefix("token=")
    connection.request("POST", "/api/map", json.dumps(message), {"Authorization": f"Bearer {token}"})
    lines = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    if not lines[-1].get("done"):
        raise RuntimeError(f"the map ended with {lines[-1]}")
    layers = sorted((line for line in lines if "layer" in line), key=lambda line: int(line["layer"]))
    return np.array([lines[0]["base"], *(value for line in layers for value in line["values"])])


def ask_torch(reference: Any, model: PretrainedModel, batch: dict[str, Any], read: Callable[[Any], float]) -> Numbers:
    """A pass for each head, and one without any."""
    real = batch["attention_mask"].astype(bool)
    found = [read(torch_reference.run_torch(reference, batch))]
    for head in every_head(model.config):
        with torch_reference.overridden_head(reference, model.config, head, "uniform", real):
            found.append(read(torch_reference.run_torch(reference, batch)))
    return np.array(found)


def of_similarity() -> tuple[PretrainedModel, Path, dict[str, Any]]:
    """The packaged sentence embedder, and a pair."""
    directory = locate(DEFAULT_MODEL)
    return bertjax.load(directory), directory, {"texts": PAIR}


def of_words(directory: Path) -> tuple[PretrainedModel, Path, dict[str, Any]]:
    """A random masked LM of BERT-base's sizes with the packaged tokenizer, and a text with a mask."""
    model = BertForMaskedLM(config_of("base"), jax.random.key(0))
    model.save_pretrained(directory, Tokenizer.from_pretrained(locate(DEFAULT_MODEL)))
    return bertjax.load(directory), directory, {"texts": [TEXT], "target": {"mask": 0, "word": "market"}}


def rivals(name: str, directory: Path) -> tuple[dict[str, Callable[[], Numbers]], Explorer]:
    """The three ways, and the explorer that one of them asks."""
    model, path, message = of_similarity() if name == "minilm" else of_words(directory)
    tokenizer, reference = model.tokenizer, torch_reference.load_torch(model, path)
    assert tokenizer is not None
    encodings = tokenizer.encode(message["texts"])
    heads, options = single_heads(model.config), dict[str, Any](progress=False)
    batch = collate(encodings)
    if name == "minilm":
        real = batch["attention_mask"][..., None]

        def read(output: Any) -> float:
            vectors = (output.hidden_states[-1].numpy() * real).sum(1) / real.sum(1)
            return float(cosine(*vectors))

        examples: Sequence[Any] = [tuple(encodings)]
        readout, options = readouts.sentence_embedding, options | {"combine": cosine}
    else:
        place, word = encodings[0].tokens.index("[MASK]"), tokenizer.encode(["market"])[0].input_ids[1]

        def read(output: Any) -> float:
            logits = output.logits[0, place].double()
            return float(logits[word] - logits.logsumexp(0))

        examples = encodings
        readout, options = readouts.log_probabilities, options | {"at": [[place]], "targets": [[word]]}

    def ask_sweep() -> Numbers:
        result = sweep(model, examples, heads, readout, **options)
        return np.array([result.base.item(), *result.outputs.ravel().tolist()])

    explorer = Explorer(Subject(model, name, tokenizer))
    return {
        "explorer": lambda: ask_explorer(explorer.url, message | {"client": "benchmark"}),
        "bertjax.sweep": ask_sweep,
        "PyTorch with hooks": lambda: ask_torch(reference, model, batch, read),
    }, explorer


def time_rivals(
    ways: dict[str, Callable[[], Numbers]], explorer: Explorer, rounds: int
) -> tuple[dict[str, list[float]], float]:
    """Seconds of each way in each round, and the largest difference of a number from PyTorch's."""
    numbers = {name: run() for name, run in ways.items()}  # which compiles
    while not explorer.worker.idle:  # it compiles what the page may ask next
        time.sleep(0.1)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            started = time.perf_counter()
            numbers[name] = run()
            seconds[name].append(time.perf_counter() - started)
    *ours, theirs = numbers.values()
    return seconds, max(float(np.abs(one - theirs).max()) for one in ours)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    table = Table(title=f"one map; {describe_machine()}")
    for title in ("model", "way", "best s", "median s", "times the sweep", "largest difference"):
        table.add_column(title, justify="right")
    for name in options.only:
        with tempfile.TemporaryDirectory() as directory:
            ways, explorer = rivals(name, Path(directory))
            with explorer:
                seconds, difference = time_rivals(ways, explorer, options.rounds)
        least = min(seconds["bertjax.sweep"])
        for way, times in seconds.items():
            ratio = f"{min(times) / least:.2f}"
            table.add_row(name, way, f"{min(times):.3f}", f"{statistics.median(times):.3f}", ratio, f"{difference:.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
