"""Restored and redrawn layers: `Study.restore`, `bertjax restore`.

Parameters of a fine-tuned model are taken from the model that it was fine-tuned from (re-initialization in Zhang et al.
2022, JMLR 23, "Are All Layers Created Equal?"; for BERT, Hao et al. 2019), or drawn anew (re-randomization). All runs
are one sweep, which shares the layers below the first restored one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import RenderableType

from bertjax.analyses.ablate import introduce
from bertjax.analyses.probing import random_encoder
from bertjax.analyses.second_model import MODELS, check_second, load_second, name_of_second
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError
from bertjax.interventions import Ablation, Change, check_source_model, every_head, hash_layers
from bertjax.jobs import (
    Context,
    Job,
    Means,
    Outcome,
    Say,
    Settings,
    Sweep,
    option,
    outcome_of_sweep,
    score_job,
)
from bertjax.models import PretrainedModel
from bertjax.results import Results
from bertjax.tasks import TaskResult

Units = Literal["layers", "up_to", "attention", "feed_forward", "heads"]
# What a run restores, as figures name it.
PARTS = {
    "layers": "one layer",
    "up_to": "all layers up to one",
    "attention": "the attention of one layer",
    "feed_forward": "the feed-forward part of one layer",
    "heads": "one head",
}
ALL = "all layers"


@dataclass(frozen=True, kw_only=True)
class Restore(Sweep):
    """Restore layers, or parts of them, to the parameters of a base model, and test the effect of each.

    Each run is the model with some parameters from the base model, usually the pre-trained model before fine-tuning.
    Embeddings, pooler, final norm and task head are not replaced, nor tables of distances that all layers share.

    Args:
        base: the model that parameters are taken from, of the same shape: a hub id, a directory or 'package:NAME'. In
            Python also a model in memory.
        of: the parameters of a run: one of the 'layers'; all layers 'up_to' one; the 'attention' of a layer with its
            norm, or the 'feed_forward' part with its norm; or one of the 'heads', with its queries, keys, values and
            output projection.
        source: 'base' takes parameters from the base model; 'random' draws them with the seed, as training starts.

    The summary also has the score with all layers restored.
    """

    name = word = "restore"
    progress_text = "restoring"
    example = "bertjax restore --model my-bert-mrpc --base bert-base-uncased --task mrpc --data glue/MRPC"

    base: Any = option(None, "M")
    of: Units = "layers"
    source: Literal["base", "random"] = "base"

    @property
    def mode(self) -> str:
        """What replaces parameters."""
        return "redrawn" if self.source == "random" else "restored"

    @property
    def inputs(self) -> list[str]:
        """The directory of the base model."""
        return [self.base] if isinstance(self.base, str) else []

    def settings(self) -> dict[str, Any]:
        """The options; a base model in memory by its name."""
        return {**super().settings(), "base": None if self.base is None else name_of_second(self.base)}

    def check(self, settings: Settings) -> None:
        """Raise `InputError` for options that contradict each other."""
        super().check(settings)
        if self.source == "random":
            if self.base is not None:
                raise InputError("source random draws parameters: leave base out")
            return
        if self.base is None:
            raise InputError(f"restoring needs a base model: give base= (--base), {MODELS}")
        if self.shard and not isinstance(self.base, str):
            raise InputError("shards are merged from files: save the base model, and give its path")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base", check_second(self.base, "base"))

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the model, the examples and the base model."""
        job = super().load(settings, say)
        if self.source == "random":
            source: PretrainedModel = random_encoder(job.model, settings.seed)
        else:
            source = load_second(self.base, settings)
        return replace(job, source_model=check_source_model(job.model, source))

    def ablations(self, config: BertConfig) -> list[Ablation]:
        """The runs of all units, and a last one with all layers restored.

        Args:
            config: the config of the model.
        """
        layers = range(config.num_hidden_layers)

        def change(layer: int, head: int = 0, part: str = "layer") -> Change:
            return Change(layer, head, self.mode, site=f"{part}_parameters")

        if self.of == "heads":
            units = [Ablation(f"{layer}.{head}", (change(layer, head, "head"),)) for layer, head in every_head(config)]
        elif self.of == "up_to":
            units = [Ablation(f"up to {last}", tuple(map(change, range(last + 1)))) for last in layers]
        else:
            part = "layer" if self.of == "layers" else self.of
            units = [Ablation(str(layer), (change(layer, part=part),)) for layer in layers]
        return [*units, Ablation(ALL, tuple(map(change, layers)))]

    def prepare(self, context: Context) -> Job:
        """The job of all units."""
        job = replace(context.job, ablations=self.ablations(context.job.model.config))
        introduce(job, context, "run")
        return job

    def finish(self, context: Context, job: Job, result: TaskResult, means: Means) -> Outcome:
        """The outcome of all units; the scores with all layers restored go to the summary."""
        entries, _ = score_job(job, result)
        details = {name: array if name.startswith("base_") else array[:-1] for name, array in result.details.items()}
        units = replace(result, outputs=result.outputs[:-1], ablations=result.ablations[:-1], details=details)
        assert job.source_model is not None
        described = {"part": PARTS[self.of], "scores": entries[-1].scores, "base_sha256": hash_layers(job.source_model)}
        outcome = outcome_of_sweep(replace(job, ablations=job.ablations[:-1]), units, means, {"restoring": described})
        by = "redrawing" if self.source == "random" else "restoring"
        return replace(outcome, metrics=[replace(metric, by=by) for metric in outcome.metrics])

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The table of effects, and the score with all layers restored."""
        return [*super().show(results), line_of(results)]


def line_of(results: Results) -> str:
    """A line on the score with all layers restored.

    Args:
        results: results of `restore`.
    """
    measure, main = results.measure(), results.summary["metric"]["name"]
    scores = (results.summary["restoring"]["scores"][main], results.rows_of()[0].base)
    every, base = ("undefined" if score is None else measure.with_unit(measure.score(score)) for score in scores)
    mode = results.summary["mode"]["title"]
    return f"{measure.label} with {ALL} {mode}: {every}; of the model as it is: {base}"
