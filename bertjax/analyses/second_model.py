"""A second model of an analysis, by name or in memory: the base of `restore`, the other model of `compare_layers`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertjax import arguments
from bertjax.analyses.roles import load_encoder
from bertjax.jobs import Settings
from bertjax.models import PretrainedModel

MODELS = "a hub id, a directory, or a model of bertjax (bertjax.from_torch makes one of a PyTorch model)"
"""The values of an option that takes a model, as error messages describe them."""


def check_second(model: Any, name: str) -> str | PretrainedModel | None:
    """Check the value of an option; a path becomes a str.

    Args:
        model: the value.
        name: the name of the option, for the error.

    Raises:
        InputError: the value is not a model.
    """
    if model is not None and not isinstance(model, str | Path | PretrainedModel):
        arguments.refuse(name, MODELS, model)
    return str(model) if isinstance(model, Path) else model


def name_of_second(model: str | PretrainedModel) -> str:
    """The hub id or the directory, or a name such as 'BertModel in memory'."""
    return model if isinstance(model, str) else model.name


def load_second(model: str | PretrainedModel, settings: Settings) -> PretrainedModel:
    """The encoder of a checkpoint, loaded once in a study; a model in memory as it is.

    Args:
        model: the value of the option.
        settings: the options of the study.
    """
    if not isinstance(model, str):
        return model
    key = ("second encoder", model, settings.precision)
    return settings.sources.once(key, lambda: load_encoder(replace(settings, model=model)))
