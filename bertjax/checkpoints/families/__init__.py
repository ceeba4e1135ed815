"""The families of encoders that bertjax loads, by HuggingFace's `model_type`: one file each."""

from bertjax.checkpoints.families import albert, bert, deberta, distilbert, electra, modernbert, mpnet, roberta
from bertjax.checkpoints.families.family import (
    AS_IS,
    HEAD_BIAS,
    INTO_HEADS,
    OUT_OF_HEADS,
    TRANSPOSED,
    Family,
    Head,
    Setting,
    TensorEntry,
    is_number,
    is_whole,
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
    "Setting",
    "TensorEntry",
    "is_number",
    "is_whole",
]

# The families that can be loaded, by the `model_type` of their configs.
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
