"""The loss of each example with heads ablated, by the exact engine: what gradients estimate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertjax.engine import sweep
from bertjax.errors import InputError
from bertjax.interventions import Ablation
from bertjax.model import PretrainedModel
from bertjax.progress import Progress, silent
from bertjax.tasks import EncodedDataset


def ablated_losses(
    model: PretrainedModel,
    encoded: EncodedDataset,
    ablations: Sequence[Ablation],
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    memory: int | None = None,
    attention: str = "auto",
    journal: Path | None = None,
    replace_journal: bool = False,
    settings: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Float[np.ndarray, "runs examples"]:
    """The task's loss of each example, without ablation and then with each; NaN of examples without a label.

    Args:
        means, memory, attention, journal, replace_journal, settings: as in `engine.sweep`.
        progress: called with the work done and the total work.

    Raises:
        InputError: outputs that have no loss.
    """
    objective = encoded.objective
    if objective is None:
        raise InputError(f"outputs of the form {encoded.form.name} have no loss")
    swept = sweep(
        model,
        [(encoding,) for encoding in encoded.encodings],
        ablations,
        objective.readout,
        at=encoded.at,
        targets=encoded.targets,
        means=means,
        memory=memory,
        attention=attention,
        journal=journal,
        replace_journal=replace_journal,
        settings=settings,
        progress=progress,
    )
    losses = np.empty((1 + len(ablations), encoded.examples))
    members = [list(encoded.numbers_of(example)) for example in range(encoded.examples)]
    for number, given in enumerate((swept.base, *swept.outputs)):
        losses[number] = [objective.grade(example, given[own])[0] for example, own in enumerate(members)]
    return losses
