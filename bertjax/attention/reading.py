"""Numbers of each head on each text, computed from a model's attention batch by batch."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bertjax.attention.norms import output_products
from bertjax.attention.roles import NUMBERS, ROLES, RoleNumbers, role_sums
from bertjax.data import Encoding, batches_by_length, collate
from bertjax.interventions import every_head
from bertjax.models import PretrainedModel, compute
from bertjax.progress import Progress, silent

BATCH_BYTES = 96 * 2**20
"""The maximum size of a batch's attention weights; arrays computed from them take three times that."""


def read_roles(
    model: PretrainedModel,
    encodings: Sequence[Encoding],
    known: Sequence[RoleNumbers],
    pad_id: int,
    *,
    progress: Progress = silent,
) -> Float[np.ndarray, "heads texts numbers"]:
    """Compute `NUMBERS` of each head on each text; heads in the order of `every_head`.

    Args:
        model: the model.
        encodings: the tokenised texts or pairs.
        known: the roles of each text's tokens.
        pad_id: the token id of padding.
        progress: called with the number of texts done and in total.
    """
    config = model.config
    layers, heads = np.array(every_head(config)).T
    lengths = [len(encoding) for encoding in encodings]
    maps = 4 * config.num_hidden_layers * config.num_attention_heads * max(lengths) ** 2
    size = int(np.clip(BATCH_BYTES // maps, 1, max(1, len(encodings))))
    products = output_products(model).astype(model.numerics.wide)
    found = np.empty((len(layers), len(encodings), len(NUMBERS)), np.float32)
    done = 0
    for places, width in batches_by_length(lengths, size, max_length=config.max_tokens):
        inputs = model.inputs(**collate([encodings[place] for place in places], width, pad_id))
        pairs = np.zeros((len(places), len(ROLES), width, width), model.numerics.wide)
        words = np.zeros((len(places), width), model.numerics.wide)
        for row, place in enumerate(places):
            length = lengths[place]
            pairs[row, :, :length, :length], words[row, :length] = known[place].pairs, known[place].words
        sums = np.asarray(compute(role_sums, model, inputs, products, pairs, words))
        counts = np.stack([known[place].counts for place in places])
        of_heads = sums[:, layers, heads].swapaxes(0, 1)
        found[:, list(places), : of_heads.shape[2]] = of_heads
        found[:, list(places), of_heads.shape[2] :] = counts
        done += len({*places})
        progress(float(done), float(len(encodings)))
    return found
