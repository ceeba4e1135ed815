"""The bertjax side of `attention_statistics.py`, in its own process: see `attention_torch.py`."""

import sys
import time
from pathlib import Path

import numpy as np

import bertjax
from bertjax.data import Encoding
from experiments.fig5_change import compare_real
from experiments.shared.attention import reduce_attention
from experiments.words.features import columns_of


def main() -> None:
    """Answer lines of standard input."""
    folder = Path(sys.argv[1])
    inputs = dict(np.load(folder / "inputs.npz"))
    texts = []
    for row, length in zip(inputs["ids"], inputs["lengths"], strict=True):
        ids = tuple(row[:length].tolist())
        texts.append(Encoding(ids, (0,) * len(ids), ("",) * len(ids), ((0, 0),) * len(ids), False))
    base, tuned = (bertjax.load(folder / name) for name in ("base", "tuned"))
    for line in sys.stdin:
        name = line.strip()
        started = time.perf_counter()
        if name == "4.3":
            values = reduce_attention((base, tuned), texts, compare_real)
        else:
            values = reduce_attention((base,), texts, columns_of, [inputs["masks"]])[:, 0]
        seconds = time.perf_counter() - started
        np.save(folder / f"bertjax-{name}.npy", values)
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
