"""Jobs: loaded model, data and ablations, checked before anything is computed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from bertjax.checkpoints import hash_weights, locate, read_checkpoint, read_dense_weights, texts_directory
from bertjax.data import CUSTOM, Examples, Tokenizer
from bertjax.engine import SweepResult
from bertjax.errors import CheckpointError, InputError, some_of
from bertjax.interventions import Ablation, Change, name_layer_head
from bertjax.jobs.scoring import LabelledMetric, label_metrics, score_ablations
from bertjax.jobs.settings import Settings
from bertjax.models import (
    BertForPreTraining,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertModel,
    PretrainedModel,
    check_parameters,
    load_for,
    tensor_name,
)
from bertjax.results import Entry
from bertjax.statistics import Metric, check_labels, check_metric_applies
from bertjax.tasks import (
    EncodedDataset,
    encode_examples,
    is_regression,
    load_examples,
    metrics_of,
    positive_label,
    task_named,
)


@dataclass(frozen=True)
class Job:
    """A model, examples, and the ablations to run.

    Args:
        settings: the settings for this device.
        model: the loaded model.
        tokenizer: the tokenizer of the model.
        examples: the examples of the data.
        encoded: the tokenised examples.
        ablations: the sets of heads to ablate.
        source_model: the model whose parameters modes 'restored' and 'redrawn' use.
    """

    settings: Settings
    model: PretrainedModel
    tokenizer: Tokenizer
    examples: Examples
    encoded: EncodedDataset
    ablations: Sequence[Ablation] = ()
    source_model: PretrainedModel | None = None

    @property
    def directory(self) -> Path | None:
        """The directory of the model's checkpoint; None for a model in memory."""
        return None if self.settings.sources.model is not None else locate(self.settings.model)

    @property
    def labels(self) -> Num[np.ndarray, " outputs"]:
        """The label of each output: that of its example, or the true word."""
        return self.encoded.labels

    @property
    def units(self) -> Int[np.ndarray, " outputs"] | None:
        """The example of each output, if examples have several outputs."""
        return self.encoded.units

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the outputs, the main one first."""
        return metrics_of(self.encoded.form, self.examples.task, self.settings.analysis.metric)

    @property
    def labelled_metrics(self) -> list[LabelledMetric]:
        """The metrics with their labels: on all outputs, and the main one on each group of them."""
        return label_metrics(self.metrics, self.labels, self.examples.groups if self.units is None else None)

    @property
    def positive(self) -> int:
        """The label that counts as yes."""
        return positive_label(self.encoded.form, self.examples.task)

    @property
    def blank(self) -> Num[np.ndarray, "outputs ..."]:
        """Outputs of a run that are all 0."""
        return self.encoded.zeros


def load_job(settings: Settings) -> Job:
    """Load model and examples.

    Args:
        settings: the options of the study.

    Raises:
        BertjaxError: an error in model, data or settings.
    """
    model = load_model(settings)
    tokenizer = load_tokenizer(settings)
    examples = read_examples(settings, model)
    names = ("max_length", "prompts", "seed", "every_word", "pll", "stride", "readout")
    reads = (tokenizer.digest, *tokenizer.prompts.items(), *(getattr(settings, name) for name in names))
    key = ("encoded", id(examples), id(model), *reads)
    examples, encoded = settings.sources.once(key, lambda: encode(settings, model, tokenizer, examples))
    return Job(settings, model, tokenizer, examples, encoded)


def encode(
    settings: Settings, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples
) -> tuple[Examples, EncodedDataset]:
    """Tokenise examples, and leave out examples that the model cannot read.

    Args:
        settings: the options of the study.
        model: the loaded model.
        tokenizer: the tokenizer of the model.
        examples: the examples of the data.
    """
    encoded = encode_examples(
        model,
        tokenizer,
        examples,
        settings.max_length,
        prompts=settings.prompts,
        seed=settings.seed,
        every_word=settings.every_word,
        pll=settings.pll,
        stride=settings.stride,
    )
    if encoded.dropped:
        examples = examples.take(sorted({*range(len(examples))} - {*encoded.dropped}))
    if encoded.note:
        examples = replace(examples, source=f"{examples.source}, {encoded.note}")
    return examples, encoded


def load_tokenizer(settings: Settings) -> Tokenizer:
    """The model's tokenizer. Raises `InputError` if a model in memory has none.

    Args:
        settings: the options of the study.
    """
    sources = settings.sources
    if sources.tokenizer is not None:
        return sources.tokenizer
    if sources.model is None:
        return sources.once(("tokenizer", settings.model), lambda: Tokenizer.from_pretrained(locate(settings.model)))
    if sources.model.tokenizer is None:
        raise InputError("the model in memory has no tokenizer: give tokenizer= (bertjax.Tokenizer.from_pretrained)")
    return sources.model.tokenizer


def load_model(settings: Settings, classes: Sequence[type[PretrainedModel]] | None = None) -> PretrainedModel:
    """Load the model with the head for the task.

    Args:
        settings: the options of the study.
        classes: the classes for checkpoints that do not name theirs; None for those of the task.

    Raises:
        CheckpointError: the checkpoint lacks parameters that the outputs depend on, and the settings do not allow it.
        InputError: weights are not finite.
    """
    sources = settings.sources
    model = sources.model
    if model is None:
        if classes is None and settings.readout != "similarity":
            classes = task_named(settings.task).models
        key = ("model", settings.model, settings.precision, settings.readout, tuple(classes or ()))
        model = sources.once(key, lambda: _load(settings, classes or ()))
        if sources.caches:
            hash_of_files(settings, model)
    elif settings.readout == "similarity" and not isinstance(model, BertForSentenceEmbedding):
        raise InputError(f"readout='similarity' needs a BertForSentenceEmbedding, not a {type(model).__name__}")
    check_parameters(model)
    new = new_parameters(model)
    if new and not settings.allow_new_head:
        raise CheckpointError(
            f"{settings.model} has no {some_of(new)}, so {model.class_name} would be scored with random numbers there: "
            "give a checkpoint that was trained for the task, or allow_new_head=True (--allow-new-head); for a head "
            "that was trained in memory, set model.new_parameters = ()"
        )
    return model


def hash_files(model: PretrainedModel, directory: Path) -> str:
    """SHA-256 of all weights in a checkpoint's files, including the dense layers of a sentence embedder."""
    weights = read_checkpoint(directory, model.config)[1]
    if isinstance(model, BertForSentenceEmbedding):
        weights = {**weights, **read_dense_weights(texts_directory(directory), model.plans)}
    return hash_weights(weights, model.config.family)


def hash_parameters(model: PretrainedModel) -> str:
    """SHA-256 of a model's parameters.

    Args:
        model: the model to hash.
    """
    dense = {path: np.asarray(value) for path, value in model.parameters().items() if path.startswith("dense.")}
    return hash_weights({**model.weights(), **dense}, model.config.family)


@dataclass(frozen=True)
class AsLoaded:
    """SHA-256 of a checkpoint's files, and of the parameters of the model that was loaded from it.

    Args:
        of_files: SHA-256 of the files.
        of_parameters: SHA-256 of the parameters.
    """

    of_files: str
    of_parameters: str


def hash_of_files(settings: Settings, model: PretrainedModel) -> str:
    """`hash_files` of the settings' checkpoint when the model was loaded.

    Args:
        settings: the options of the study.
        model: the model that was loaded from the checkpoint.
    """
    key = ("weights", settings.model, type(model))
    return settings.sources.once(key, lambda: hash_files(model, locate(settings.model)))


def _load(settings: Settings, classes: Sequence[type[PretrainedModel]]) -> PretrainedModel:
    """The model of the settings' checkpoint."""
    directory = locate(settings.model)
    if settings.readout == "similarity":
        return BertForSentenceEmbedding.from_pretrained(directory, dtype=settings.precision)
    return load_for(classes, directory, dtype=settings.precision)


def new_parameters(model: PretrainedModel) -> list[str]:
    """The tensors that a task needs and the checkpoint lacks, so that they are random.

    A model with both pre-training heads needs only the head for masked words; an encoder needs none.
    """
    if isinstance(model, BertModel):
        return []
    words_only = isinstance(model, BertForPreTraining)
    new = [path for path in model.new_parameters if not words_only or path.startswith("predictions.")]
    return list(dict.fromkeys(tensor_name(model, path) for path in new))


def read_examples(settings: Settings, model: PretrainedModel) -> Examples:
    """Read the examples. Labels of a custom file are ratings if the model has one output (`num_labels` 1).

    Sets of labels, and indices of classes in custom files, refer to the label names of the model.

    Args:
        settings: the options of the study.
        model: the loaded model.
    """
    names = settings.label_names
    if names is None and settings.task.lower() == CUSTOM and is_regression(model):
        names = ()
    model_labels: tuple[str, ...] | None = None
    if isinstance(model, BertForSequenceClassification):
        model_labels = tuple(name for _, name in sorted(model.config.id2label.items()))
    options: dict[str, Any] = {
        "split": settings.split,
        "data_dir": settings.data_dir,
        "text_columns": settings.text_columns,
        "label_column": settings.label_column,
        "label_names": names,
        "model_labels": model_labels,
        "limit": settings.limit,
        "seed": settings.seed,
        "exclude_self": settings.exclude_self,
        "tags": settings.tags,
    }
    source = settings.sources.data or {"data": settings.data}
    settings.hash_data()  # before the file is read, so that a later change of it is noticed
    key = ("examples", settings.task, settings.data, *options.values())
    return settings.sources.once(key, lambda: load_examples(settings.task, **source, **options))


def check_scorable(job: Job) -> None:
    """Score outputs that are all 0, to find errors in labels or metrics before the sweep.

    Args:
        job: the model and the encoded examples.
    """
    examples, labels, nothing = job.examples, job.labels, SweepResult(job.blank, job.blank[None])
    ablation = Ablation("0.0", (Change(0, 0),))
    score_ablations(job.labelled_metrics, job.positive, nothing, [ablation], [("0.0", 0, 0)])
    check_labels(job.metrics[0], labels, job.positive, examples.task.label_names or ())
    for metric in job.metrics:
        check_metric_applies(metric, labels, job.positive)


def score_job(job: Job, result: SweepResult) -> tuple[list[Entry], dict[str, float]]:
    """The scores of a job's ablations, and those of the base run by metric.

    Args:
        job: the model and the encoded examples.
        result: the outputs of the task.
    """
    mode, config = job.settings.analysis.mode, job.model.config
    places = [name_layer_head(ablation, config, mode) for ablation in job.ablations]
    return score_ablations(job.labelled_metrics, job.positive, result, job.ablations, places)
