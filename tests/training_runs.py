"""Runs of the programs in `experiments/` without their command line."""

from argparse import Namespace
from pathlib import Path

from bertjax import Tokenizer
from experiments.shared.program import Run


def finetune_run(encoder: Path, glue: Path, **changes) -> Run:
    """A run of `experiments.finetune` on MRPC; `changes` are of its options."""
    given = {"model": str(encoder), "task": "mrpc", "data": str(glue), "data_dir": None, "limit": None, "seed": 0}
    given |= {"hold_out": None, "as_published": False, "dropout": 0.1, "precision": "float32", "max_length": 128}
    return Run(Namespace(**given | changes), None, Tokenizer.from_pretrained(encoder), lambda done, total: None)
