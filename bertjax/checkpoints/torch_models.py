"""PyTorch models of transformers in memory: read one as a checkpoint, or make one from a checkpoint."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.checkpoints.architecture import BODY
from bertjax.checkpoints.config import BertConfig
from bertjax.checkpoints.tensor_names import canonical_weights
from bertjax.checkpoints.weight_files import check_values, torch_arrays, torch_tensor
from bertjax.errors import CheckpointError, error_prefix


def read_torch_model(
    settings: Mapping[str, Any], state: Mapping[str, Any], source: str | Path
) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Read the config and tensors of a PyTorch model in memory, with the same checks as for files.

    Args:
        settings: config of the model as a dict like config.json, with its class in `architectures`.
        state: `state_dict()` of the model.
        source: name of the model in error messages.

    Returns: the config, and arrays under canonical names in the model's dtype, which share its memory on a CPU.

    Raises:
        ConfigError: bertjax does not support the config.
        CheckpointError: the tensors are not floats, or do not belong to the config's family.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity.
    """
    with error_prefix(f"{source}: "):
        config = BertConfig.from_dict(settings)
    arrays = torch_arrays(source, state)
    with error_prefix(f"{source}: "):
        weights = canonical_weights(arrays, config.family)
    check_values(source, weights)
    return config, weights


def make_torch_model(config: BertConfig, weights: Mapping[str, np.ndarray]) -> tuple[Any, list[str]]:
    """Make the PyTorch model of transformers that a config names; missing parameters are NaN.

    Args:
        config: config with the class in `architectures`; the default is the class of the encoder.
        weights: tensors under canonical names; those of other classes or shapes are not used.

    Returns: the model, and the names of the parameters that are NaN.

    Raises:
        CheckpointError: transformers has no such class.
    """
    import torch
    import transformers

    name = (*config.architectures, config.family.heads[BODY].architecture)[0]
    cls = getattr(transformers, name, None)
    if cls is None:
        raise CheckpointError(f"transformers has no class {name}")
    settings = cls.config_class.from_dict(config.to_dict())
    tensors = {name: torch_tensor(array) for name, array in weights.items()}
    with _quiet():
        model, found = cls.from_pretrained(
            None,
            config=settings,
            state_dict=tensors,
            dtype="auto",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    missing = [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]
    for name in missing:
        torch.nn.init.constant_(model.get_parameter(name), math.nan)
    return model, missing


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and messages of transformers."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
