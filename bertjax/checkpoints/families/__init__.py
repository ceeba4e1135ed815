"""The supported families of encoders, one file each."""

from bertjax.checkpoints.families import albert, bert, deberta, distilbert, electra, modernbert, mpnet, roberta
from bertjax.checkpoints.families.family import (
    AS_IS,
    HEAD_BIAS,
    INTO_HEADS,
    OUT_OF_HEADS,
    TRANSPOSED,
    Family,
    Head,
    TensorEntry,
)

__all__ = [
    "AS_IS",
    "FAMILIES",
    "HEAD_BIAS",
    "INTO_HEADS",
    "OUT_OF_HEADS",
    "TRANSPOSED",
    "Family",
    "Head",
    "TensorEntry",
]

# Supported families by `model_type`.
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        bert.FAMILY,
        roberta.FAMILY,
        roberta.XLM_ROBERTA,
        roberta.CAMEMBERT,
        distilbert.FAMILY,
        electra.FAMILY,
        mpnet.FAMILY,
        albert.FAMILY,
        deberta.FAMILY,
        modernbert.FAMILY,
    )
}
