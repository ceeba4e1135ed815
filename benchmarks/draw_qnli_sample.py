"""Redraw the sample of QNLI that bertjax ships, bertjax/data/samples/qnli_sample.tsv.

Command: python benchmarks/draw_qnli_sample.py QNLI/dev.tsv TOKENIZER_DIR OUTPUT.tsv
    with GLUE's QNLI/dev.tsv (5,463 pairs) and the directory of all-MiniLM-L6-v2's tokenizer files.
Run time: about 2 s on two CPU cores.
Outcome: the shipped file, byte for byte; prints its SHA-256. For the reasons see bertjax/data/samples/README.md.
"""

import argparse
import hashlib
from pathlib import Path

from bertjax.data import Examples, Tokenizer, draw
from bertjax.tasks import load_examples

COUNT = 600
LONGEST = 40
SEED = 0


def short_enough(examples: Examples, tokenizer: Tokenizer) -> list[int]:
    """The positions of pairs whose two texts, encoded separately, have at most LONGEST tokens together."""
    first = tokenizer.encode(examples.first)
    second = tokenizer.encode(examples.second or ())
    return [i for i, pair in enumerate(zip(first, second, strict=True)) if sum(map(len, pair)) <= LONGEST]


def as_tsv(examples: Examples) -> bytes:
    """The examples in the columns of GLUE's own QNLI files."""
    names = examples.task.label_names or ()
    columns = examples.ids, examples.first, examples.second or (), [names[label] for label in examples.labels]
    rows = [("index", "question", "sentence", "label"), *zip(*columns, strict=True)]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def main() -> None:
    """Draw, write and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    parser.add_argument("input", type=Path, help="GLUE's QNLI/dev.tsv")
    parser.add_argument("tokenizer", type=Path, help="directory with all-MiniLM-L6-v2's tokenizer.json")
    parser.add_argument("output", type=Path, help="the file to write")
    arguments = parser.parse_args()
    examples = load_examples("qnli", data=arguments.input)
    short = short_enough(examples, Tokenizer.from_pretrained(arguments.tokenizer))
    sample = examples.take(short).take(draw(len(short), COUNT, SEED))
    content = as_tsv(sample)
    arguments.output.write_bytes(content)
    entailment = int((sample.labels == 0).sum())
    print(f"{len(sample)} of {len(short)} short pairs among {len(examples)}; {entailment} of entailment")
    print(f"SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
