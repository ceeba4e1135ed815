"""Valid arguments of the public API, to be misused: a model, a tokenizer, texts, ablations."""

from pathlib import Path

import numpy as np

import bertjax
from bertjax import BertConfig, BertForSentenceEmbedding, BertForSequenceClassification, Tokenizer
from bertjax.engine import reference
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from tests.factories import SENTENCES, add_tokenizer, make_config
from tests.tiny_models import random_model

CONFIG = make_config()
LAYERS, HEADS = CONFIG.num_hidden_layers, CONFIG.num_attention_heads
IDS = np.array([[2, 9, 10, 3], [2, 11, 3, 0]])
BATCH = {"input_ids": IDS, "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]])}


class MisuseFixtures:
    """Valid arguments, and calls of the public API with some of them replaced."""

    def __init__(self, directory: Path):
        self.directory = add_tokenizer(directory)
        self.model = random_model(BertForSentenceEmbedding, CONFIG)
        self.classifier = random_model(BertForSequenceClassification, CONFIG)
        self.tokenizer = Tokenizer.from_pretrained(directory)
        self.texts = self.tokenizer.encode(SENTENCES[:3])
        self.heads = [ab.ablation(CONFIG, ["0.1"])]
        self.output = self.model(BATCH)

    def sweep(self, **changes):
        options = {
            "model": self.model,
            "examples": self.texts,
            "ablations": self.heads,
            "readout": readouts.sentence_embedding,
            "progress": False,
        }
        return bertjax.sweep(**options | changes)

    def estimate(self, **changes):
        options = {"model": self.model, "examples": self.texts, "ablations": self.heads}
        return bertjax.plan_sweep(**options | {"readout": readouts.sentence_embedding} | changes)

    def run(self, **changes):
        options = {"model": self.model, "inputs": BATCH, "overrides": ov.stack([ov.zero(CONFIG, ["0.1"])])}
        return reference.run(**options | {"readout": readouts.sentence_embedding} | changes)

    def plain_sweep(self, **changes):
        options = {"model": self.model, "batches": [([0, 1], BATCH)], "overrides": [ov.zero(CONFIG, ["0.1"])]}
        return reference.sweep(**options | {"readout": readouts.sentence_embedding} | changes)


def source_of(config: BertConfig):
    """A run of a model of other sizes."""
    return random_model(BertForSequenceClassification, config)([[2, 9, 3]])


OTHER = BertConfig(vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=5)
