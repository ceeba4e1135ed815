"""The options that every job of heads takes, by name: what `ablate` takes of examples and computation."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from bertjax.tasks import Chosen


class JobOptions(TypedDict, total=False):
    """What a call of a job may say beside the model and the task; each as in `ablate`."""

    mode: str
    heads: Sequence[str] | None
    output: str | Path | None
    overwrite: bool
    metric: Chosen | None
    limit: int | None
    seed: int
    data: str | Path | None
    data_dir: str | Path | None
    split: str
    text_columns: Sequence[str] | None
    label_column: str | None
    label_names: Sequence[str] | None
    max_length: int | None
    prompts: Sequence[str] | None
    every_word: bool
    pll: str
    stride: int
    exclude_self: bool
    readout: str
    precision: str
    attention: str
    memory: str | None
    allow_new_head: bool
