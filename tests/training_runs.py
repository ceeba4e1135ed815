"""Tiny models and examples to train."""

import dataclasses

import numpy as np

from bertjax import BertConfig, BertForSequenceClassification
from bertjax.tasks.classification import LOGITS, ClassifiedTexts
from experiments.training.trainer import Recipe, Trainer, predict
from tests.tiny_models import SIZES, encodings, random_model

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_training_model(config, labels=2, seed=0, **changes):
    """A tiny random classifier of so many labels."""
    names = {number: f"class {number}" for number in range(labels)}
    return random_model(
        BertForSequenceClassification, dataclasses.replace(config, id2label=names, **changes), seed=seed
    )


def make_training_examples(model, rng, count=11, labels=2):
    """EncodedDataset texts of several lengths, and labels: classes, or targets where there is one label."""
    rows = encodings(model.config, rng, rng.integers(2, 9, count))
    # PyTorch gives the embedding of [PAD] (0) no gradient; at real tokens it does not occur.
    rows = [dataclasses.replace(row, input_ids=tuple(max(1, token) for token in row.input_ids)) for row in rows]
    targets = rng.normal(size=count).astype(np.float32) if labels == 1 else rng.integers(0, labels, count, np.int32)
    return ClassifiedTexts(LOGITS, tuple(rows), 0, count, targets, label_order=tuple(range(labels))), targets


def train_two_epochs():
    """Losses, logits and model of two epochs on fixed data, and among how many devices the parameters are."""
    model = make_training_model(BertConfig(**SIZES["three heads"]))
    encoded, labels = make_training_examples(model, np.random.default_rng(5), 4)
    trainer = Trainer(model, encoded, labels, Recipe(batch_size=3, learning_rate=1e-3, epochs=2))
    losses = [*trainer.run_epoch(0), *trainer.run_epoch(1)]
    logits = predict(trainer.model, encoded)
    return losses, logits, trainer.model, len(trainer.parameters["classifier.kernel"].sharding.device_set)
