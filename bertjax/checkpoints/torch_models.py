"""PyTorch models of transformers in memory: reading one as a checkpoint, and making one of a checkpoint."""

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
from bertjax.errors import CheckpointError, ConfigError


def read_torch_model(
    settings: Mapping[str, Any], state: Mapping[str, Any], source: str | Path
) -> tuple[BertConfig, dict[str, np.ndarray]]:
    """Read the config and tensors of a PyTorch model in memory, with the checks of a checkpoint in files.

    Args:
        settings: the model's config as a dict, as a config.json holds it, with the model's class in `architectures`.
        state: the model's `state_dict()`.
        source: names the model in messages.

    Returns: the config, and arrays under canonical names in the model's dtype, which share its memory if it is a CPU's.

    Raises:
        ConfigError: bertjax does not support the config.
        CheckpointError: the tensors are not floats, or not those of the config's family.

    Warns:
        CheckpointWarning: tensors hold NaN or infinity.
    """
    with _named(source):
        config = BertConfig.from_dict(settings)
    arrays = torch_arrays(source, state)
    with _named(source):
        weights = canonical_weights(arrays, config.family)
    check_values(source, weights)
    return config, weights


@contextmanager
def _named(source: str | Path) -> Iterator[None]:
    """Messages of errors begin with the source."""
    try:
        yield
    except (ConfigError, CheckpointError) as error:
        raise type(error)(f"{source}: {error}") from None


def make_torch_model(config: BertConfig, weights: Mapping[str, np.ndarray]) -> tuple[Any, list[str]]:
    """Make the PyTorch model of transformers that a config names; parameters that the weights lack are NaN.

    Args:
        config: with the class in `architectures`; the encoder's is the default.
        weights: under canonical names; those of other classes are not used, nor those of another shape.

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
    """Without the progress bars and messages of transformers."""
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
