"""`Study`: one model and one task in the middle; its methods are the analyses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from html import escape
from importlib import import_module
from inspect import Signature, getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Num

from bertjax import arguments
from bertjax.analyses import (
    ANALYSES,
    MODELS,
    Ablate,
    CompareLayers,
    EdgeProbe,
    Geometry,
    Importance,
    Interactions,
    Languages,
    Patch,
    PatchPaths,
    Probe,
    Prune,
    Restore,
    Roles,
    Senses,
    Shapley,
    Structure,
    load_encoder,
)
from bertjax.data import CUSTOM, Examples, Tokenizer
from bertjax.engine import Estimate
from bertjax.errors import CheckpointError, ConfigError, InputError, MissingDependencyError
from bertjax.formatting import count_of
from bertjax.interventions import Ablation
from bertjax.jobs import (
    Analysis,
    AsLoaded,
    ComputeOptions,
    DataOptions,
    Job,
    ModelOptions,
    Settings,
    Sources,
    TaskOptions,
    check_names,
    check_scorable,
    check_settings,
    for_this_device,
    hash_of_files,
    hash_parameters,
    load_job,
    load_model,
    load_tokenizer,
    option,
    parameters,
    run_analysis,
    score_job,
    sweep_examples,
    takes,
    with_options,
)
from bertjax.models import PretrainedModel
from bertjax.progress import shown
from bertjax.results import Results
from bertjax.tasks import MASKED, TAGGING, task_named

if TYPE_CHECKING:
    from bertjax.explorer import Explorer, Subject

__all__ = [
    "Baseline",
    "Study",
    "StudyOptions",
    "ablate",
    "compare_layers",
    "geometry",
    "importance",
    "interactions",
    "languages",
    "patch",
    "patch_paths",
    "plan",
    "probe",
    "probe_edges",
    "prune",
    "require_explorer",
    "restore",
    "roles",
    "senses",
    "shapley",
    "structure",
]


@dataclass(frozen=True, kw_only=True)
class StudyOptions(ComputeOptions, TaskOptions, DataOptions, ModelOptions):
    """The options of a `Study`.

    Args:
        tokenizer: a `bertjax.Tokenizer`, in place of the model's.
        texts: texts in place of `data`: a list of str, or of pairs of str.
        labels: labels of `texts`: a name, a class number or a rating for each.
    """

    tokenizer: Any = option(None, on_command_line=False)
    texts: Any = option(None, on_command_line=False)
    labels: Any = option(None, on_command_line=False)


def options_read(analysis: type[Analysis]) -> frozenset[str]:
    """The names of the options of a study that an analysis reads."""
    return analysis.reads | {"tokenizer"} | ({"texts", "labels"} if "data" in analysis.reads else set())


@dataclass(frozen=True)
class Baseline:
    """Model outputs for the examples of a task without interventions.

    Args:
        scores: the scores by metric, the main one first.
        outputs: the values that the metrics read, such as logits or similarities: one row for each example, or for
            each word, tag or question of tasks that have several in an example.
        labels: the label of each output.
    """

    scores: Mapping[str, float]
    outputs: Num[np.ndarray, "outputs ..."]
    labels: Num[np.ndarray, " outputs"]

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        return f"Baseline({scores}; outputs {self.outputs.shape})"


class Study:
    """A model and a task. Its methods are the analyses of attention heads.

    The model and the examples are loaded once, when they are first needed; `roles` tokenizes the texts separately. Each
    analysis returns `Results`, as `bertjax.read_results` does for a directory of results.

    >>> import bertjax
    >>> study = bertjax.Study(limit=8)
    >>> study.ablate(heads=["4.2", "5.5"], progress=False).names
    ['4.2', '5.5']
    """

    options: StudyOptions

    @takes(StudyOptions)
    def __init__(self, options: StudyOptions) -> None:
        model, data = options.model, options.data
        in_memory = not isinstance(model, str | Path)
        if in_memory:
            arguments.check_instance(model, "model", PretrainedModel, MODELS)
        if options.tokenizer is not None:
            arguments.check_instance(options.tokenizer, "tokenizer", Tokenizer, "a bertjax.Tokenizer")
        data_in_memory: dict[str, Any] = {} if data is None or isinstance(data, str | Path) else {"data": data}
        if options.texts is not None or options.labels is not None:
            data_in_memory |= {"texts": options.texts, "labels": options.labels}
            data_in_memory |= {} if data is None else {"data": data}
        self.options = options
        self._sources = Sources(model if in_memory else None, options.tokenizer, data_in_memory, caches=True)

    @property
    def model(self) -> PretrainedModel:
        """The model with the head for the task. Later analyses use this object, with any changes to its parameters.

        With task 'token-classification', a checkpoint without that head gives the encoder: probes need no head.
        """
        if self._sources.model is None:
            settings = self._settings
            try:
                model = load_model(settings)
            except (CheckpointError, ConfigError):
                if task_named(settings.task).name != TAGGING:
                    raise
                model = self._sources.once(("encoder", settings.model), lambda: load_encoder(settings))
            hashes = AsLoaded(hash_of_files(settings, model), hash_parameters(model))
            self._sources.once(("as loaded",), lambda: hashes)
            model.origin.name = str(self.options.model)
            self._sources.model = model
        return self._sources.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return load_tokenizer(self._settings)

    @property
    def examples(self) -> Examples:
        """The examples of the task that the model can read."""
        return self._job.examples

    def baseline(self) -> Baseline:
        """Scores and outputs of the model without interventions."""
        job = replace(self._job, ablations=[])
        check_scorable(job)
        settings = job.settings
        result = sweep_examples(
            job.model,
            job.encoded,
            [Ablation("base", ())],
            memory=settings.memory_budget,
            attention=settings.attention,
        )
        _, scores = score_job(job, replace(result, outputs=result.outputs[:0]))
        return Baseline(scores, result.base, job.labels)

    @takes(Ablate)
    def plan(self, options: Ablate) -> Estimate:
        """Estimate the cost of `ablate` with the same options: work, memory and time on this device.

        Time does not include loading, compilation and statistics.

        Returns: the estimate.
        """
        return options.estimate(self.settings(options))

    @takes(Ablate)
    def ablate(self, options: Ablate) -> Results:
        """Ablate sets of heads, and test the change of the score for each.

        Returns: the effect of each set on each metric, with interval, p and q. Of a shard `directory` and `summary`.

        Raises:
            BertjaxError: whatever is wrong with model, data or options; raised before the sweep begins.
            SweepInterrupted: Ctrl-C; with `output`, what is finished is kept, and the same call resumes.
        """
        return self.run(options)

    @takes(Importance)
    def importance(self, options: Importance) -> Results:
        """Estimate by gradients what each head does (Michel et al. 2019), in float32.

        Returns: results with the metrics 'predicted_loss', the mean loss that gradients predict without a head;
            'importance', the mean over examples of the absolute change; and 'token_importance', with absolute values
            at each token.
        """
        return self.run(options)

    @takes(Interactions)
    def interactions(self, options: Interactions) -> Results:
        """Which heads matter together: for each pair the effect of both minus the sum of each one's.

        Returns: results of a set for each pair, with the metrics 'interaction', 'effect_of_both' and 'sum_of_effects'.
        """
        return self.run(options)

    @takes(Shapley)
    def shapley(self, options: Shapley) -> Results:
        """The Shapley value of each head: its mean contribution over random orders of removal.

        Returns: results with the metric 'shapley', above 0 where the head adds to the score. Intervals are over
            examples; `summary["shapley"]["half_widths"]` are over orders.
        """
        return self.run(options)

    @takes(Prune)
    def prune(self, options: Prune) -> Results:
        """How many heads can be removed, and in which order.

        One half of the examples chooses the orders, the other half scores them.

        Returns: results of a set for each order and point, named like 'greedy 36' after the heads that are left;
            `summary["pruning"]` has the orders.
        """
        return self.run(options)

    @takes(Roles)
    def roles(self, options: Roles) -> Results:
        """What kind of head each is, by where it attends. Labels and task heads are not used.

        Returns: results with a metric for each role (`bertjax.attention.ROLES`), its share of attention by weights and
            by norms, and with `confidence` and `entropy`; the base is uniform attention. `summary["roles"]` lists the
            heads that meet each criterion.

        >>> import bertjax
        >>> bertjax.Study(limit=40).roles(progress=False).summary["roles"]["kinds"]["0.2"]
        ['positional', 'previous']
        """
        return self.run(options)

    @takes(Patch)
    def patch(self, options: Patch) -> Results:
        """Activation patching: where in text and model the difference of two texts acts.

        The task and the data of the study are not used; its limit and seed draw among the contrasts.

        Returns: results with a row for each cell of the grid that can change a score; metric 'restored' (with
            into='clean' 'lost') is the share of the difference between the two texts' scores, 'score' the score itself.
            `summary["patching"]` describes each cell.

        >>> import bertjax
        >>> pairs = [{"clean": "A man is eating", "corrupted": "A man is running", "second": "A man eats"}]
        >>> found = bertjax.Study().patch(pairs, sites=["hidden_states"], progress=False)
        >>> [row.name for row in sorted(found.rows_of("restored"), key=lambda row: -row.score)[:1]]
        ['hidden_states 0 at 4']
        """
        return self.run(options)

    @takes(PatchPaths)
    def patch_paths(self, options: PatchPaths) -> Results:
        """Path patching: which heads write what the receivers read.

        The task and the data of the study are not used; its limit and seed draw among the contrasts.

        Returns: results with a row for each sender; metrics as those of `patch`.

        >>> import bertjax
        >>> pairs = [{"clean": "A man is eating", "corrupted": "A man is running", "second": "A man eats"}]
        >>> study = bertjax.Study()
        >>> study.patch_paths(pairs, receivers={"values": ["1.3"]}, heads=["0.1", "0.2"], progress=False).names
        ['0.1', '0.2']
        """
        return self.run(options)

    @takes(Probe)
    def probe(self, options: Probe) -> Results:
        """Linear probes: what each layer or head knows about the tags of words.

        The data of the study are words with tags (task 'token-classification'); the model's task head is not used.

        Returns: results with a row for each layer, or each head. Metric 'probe_accuracy' is compared with a probe of
            the embeddings, 'selectivity' is the accuracy minus that on a control task, 'above_random' minus that of a
            random encoder. `summary["probe"]` has the numbers of sentences and the description lengths.
        """
        return self.run(options)

    @takes(Structure)
    def structure(self, options: Structure) -> Results:
        """Structural probes: the dependency trees in the geometry of each layer (Hewitt and Manning 2019).

        The data of the study are sentences of CoNLL-U (task 'token-classification'); the task head is not used.

        Returns: results with a row for each layer. 'uuas' is the share of edges that the probe finds, compared with a
            probe of the embeddings; `summary["structure"]` has the linear chain and correlations by sentence length.
        """
        return self.run(options)

    @takes(Languages)
    def languages(self, options: Languages) -> Results:
        """How far the sentence vectors of each layer depend on the language (Libovický, Rosa and Fraser 2019).

        The task and the data of the study are not used; its limit and seed draw among the sentences.

        Returns: results with a row for each layer. Metric 'retrieval_centred' is the share of translations that are
            retrieved after each language's centroid is subtracted, 'retrieval' the share without that,
            'language_identification' the accuracy of a linear probe of the language, 'nearest_centroid' that of the
            nearest centroid, and 'above_random' the centred retrieval minus that of a random encoder. All except the
            last are compared with the embeddings. `summary["languages"]` has distances, controls and pairs of
            languages by layer.
        """
        return self.run(options)

    @takes(Senses)
    def senses(self, options: Senses) -> Results:
        """How far each layer separates the senses of a word in context (WiC, Pilehvar and Camacho-Collados 2019).

        The task and the data of the study are not used; its limit and seed draw among the pairs.

        Returns: results with a row for each layer. Metric 'auc' is the probability that a pair with the same sense has
            a larger cosine than a pair with different senses, 'separation' the difference of the mean cosines,
            'accuracy' that of a threshold chosen on other pairs, and 'above_random' the AUC minus that of a random
            encoder. All except the last are compared with the embeddings. `summary["senses"]` has the controls.
        """
        return self.run(options)

    @takes(Geometry)
    def geometry(self, options: Geometry) -> Results:
        """The geometry of words in each layer: anisotropy, and similarities beyond it (Ethayarajh 2019).

        Returns: results with a row for each layer, compared with the embeddings; `summary["geometry"]` has the
            measurements of a random encoder.
        """
        return self.run(options)

    @takes(CompareLayers)
    def compare_layers(self, options: CompareLayers) -> Results:
        """How alike the representations of two layers are, or those of a layer in two checkpoints.

        Returns: results with a row for each pair of layers, such as '3-5', or with `other` for each layer. Metric 'cka'
            is linear centred kernel alignment, 'procrustes' a distance; `summary["likeness"]` has all pairs with
            permutation tests.
        """
        return self.run(options)

    @takes(Restore)
    def restore(self, options: Restore) -> Results:
        """Restored layers: what the parameters that fine-tuning changed do for the task.

        Returns: the effect of restoring each layer, or part of one, to the parameters of a base model, on each metric,
            with interval, p and q. `summary["restoring"]` has the scores with all layers restored.

        >>> import bertjax
        >>> study = bertjax.Study(limit=8)
        >>> [row.difference for row in study.restore(base=study.model, progress=False).rows_of()][:3]
        [0.0, 0.0, 0.0]
        """
        return self.run(options)

    @takes(EdgeProbe)
    def probe_edges(self, options: EdgeProbe) -> Results:
        """Edge probes: what each layer knows about the labels of spans and of pairs of spans (Tenney et al. 2019).

        The data of the study are words with tags (task 'token-classification'); the model's task head is not used.

        Returns: results with a row for each layer, with the metrics of `probe`; `summary["probe"]` has the weights of
            the mix of all layers, their centre of gravity, and the expected layer with its interval over sentences.
        """
        return self.run(options)

    def explore(self, *, host: str = "127.0.0.1", port: int = 0, browser: bool = True) -> "Explorer":
        """Open a page that shows what each head does to the model's answer to a text. Needs the extra `explore`.

        The server runs in the background: `wait()` of the result waits until it ends, `close()` ends it.

        Args:
            host: address of this machine to listen on; the default is reachable from this machine only.
            port: port to listen on; 0 is any free one.
            browser: whether to open the page in a browser, if there is one.

        Returns: the running explorer; `url` is the address of its page.

        Raises:
            InputError: the model has no answer to show, or the address cannot be used.
            MissingDependencyError: Starlette or uvicorn is not installed.
        """
        require_explorer()
        from bertjax.explorer import Explorer

        started = Explorer(self.explorer_subject(), host, port)
        if arguments.check_bool(browser, "browser"):
            started.open()
        return started

    def explorer_subject(self) -> "Subject":
        """The subject of an explorer of this study."""
        require_explorer()
        from bertjax.explorer import subject_of

        return subject_of(self._job, self._loading())

    def _loading(self) -> list[str]:
        """Lines of Python that define this study, its model and its tokenizer."""
        defaults = {one.name: one.default for one in fields(StudyOptions)}
        chosen = {name: value for name, value in vars(self.options).items() if value != defaults[name]}
        first = "# study = bertjax.Study(...)  # the study of this explorer, whose model or data are in memory"
        if isinstance(self.options.model, str | Path) and self.options.tokenizer is None and not self._sources.data:
            first = f"study = bertjax.Study({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"
        return [first, "model, tokenizer = study.model, study.tokenizer"]

    def run(self, analysis: Analysis) -> Results:
        """Run an analysis: `study.run(Shapley(permutations=40))` is `study.shapley(permutations=40)`.

        Args:
            analysis: one of `bertjax.analyses`, or of a class of your own.
        """
        arguments.check_instance(
            analysis, "analysis", Analysis, "an analysis, such as bertjax.analyses.Ablate(mode='zero')"
        )
        with shown(analysis.progress, analysis.progress_text) as report:
            statistics_progress = partial(report, note="statistics")
            return run_analysis(
                self.settings(analysis),
                progress=report,
                statistics_progress=statistics_progress,
                keep=analysis.output is not None,
            )

    def settings(self, analysis: Analysis) -> Settings:
        """The settings of an analysis of this study.

        Args:
            analysis: an analysis with its options.

        Raises:
            InputError: the analysis does not read an option that was set for the whole study.
        """
        reads, sources = analysis.reads, self._sources
        for name in ("readout", "prompts", "precision"):
            value = getattr(self.options, name)
            if name not in reads and value != getattr(StudyOptions, name):
                raise InputError(
                    f"{analysis.name} does not read {name}, which this study sets to {value!r}: use another study"
                )
        chosen = {name: getattr(self.options, name) for name in reads}
        if sources.model is not None:
            chosen["model"] = sources.model.name
        if sources.data and "data" in chosen:
            chosen["data"] = None
        unlabelled = self.options.texts is not None and self.options.labels is None
        if isinstance(analysis, Roles) and unlabelled and self.options.task == CUSTOM:
            chosen["task"] = MASKED  # which reads texts without labels
        return Settings(**chosen, analysis=analysis, sources=sources if "data" in reads else sources.without_data())

    @property
    def _settings(self) -> Settings:
        settings = self.settings(Ablate())
        check_settings(settings)
        return for_this_device(settings)

    @property
    def _job(self) -> Job:
        return load_job(self._settings)

    def __repr__(self) -> str:
        return f"Study({', '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._facts().items()
        )
        return f"<p><b>Study</b></p><table>{rows}</table>"

    def _facts(self) -> dict[str, str]:
        """Model, task and data in a few words; loads nothing."""
        options, model = self.options, self._sources.model
        facts = {"model": str(options.model) if model is None else model.name, "task": options.task}
        examples = self._sources.loaded("examples")
        if examples is not None:
            facts["examples"] = f"{count_of(len(examples), 'example')} ({examples.source})"
        elif options.texts is not None or options.data is not None:
            named = isinstance(options.data, str | Path)
            facts["data"] = str(options.data) if named else "data in memory"
        return facts


def require_explorer() -> None:
    """Raise `MissingDependencyError` if the packages that the explorer needs are not installed."""
    try:
        for name in ("starlette", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"the explorer needs Starlette and uvicorn ({error}): pip install 'bertjax[explore]'"
        ) from error


Study.__doc__ = with_options(getdoc(Study) or "", StudyOptions)


def in_one_call(name: str) -> Callable[..., Any]:
    """A method of `Study` as a function: `ablate(model, task, ...)` is `Study(model, task, ...).ablate(...)`.

    The function takes the options of the analysis, and the options of a study that the analysis reads.

    Args:
        name: the name of the method.
    """
    options = ANALYSES.get(name, Ablate)  # of `plan` those of `ablate`
    reads = options_read(options)
    mine = [one for one in parameters(StudyOptions) if one.name in reads]
    every = sorted([*mine, *parameters(options)], key=lambda parameter: parameter.kind)
    signature, known = Signature(every), [one.name for one in every]

    def function(*positional: Any, **named: Any) -> Any:
        check_names(named, known)
        try:
            values = signature.bind(*positional, **named).arguments
        except TypeError as error:
            raise InputError(f"{name}: {error}; name the options") from error
        study = Study(**{key: value for key, value in values.items() if key in reads})
        return getattr(study, name)(**{key: value for key, value in values.items() if key not in reads})

    function.__name__ = function.__qualname__ = name
    function.__module__ = __name__
    function.__signature__ = signature  # type: ignore[attr-defined]
    what = (getdoc(getattr(Study, name)) or "").partition("\n")[0]
    text = f"{what}\n\nThe same as `Study(...).{name}(...)`, in one call."
    function.__doc__ = with_options(text, StudyOptions, options, only=known)
    return function


ablate = in_one_call("ablate")
importance = in_one_call("importance")
interactions = in_one_call("interactions")
shapley = in_one_call("shapley")
probe = in_one_call("probe")
structure = in_one_call("structure")
languages = in_one_call("languages")
senses = in_one_call("senses")
geometry = in_one_call("geometry")
compare_layers = in_one_call("compare_layers")
probe_edges = in_one_call("probe_edges")
prune = in_one_call("prune")
restore = in_one_call("restore")
roles = in_one_call("roles")
patch = in_one_call("patch")
patch_paths = in_one_call("patch_paths")
plan = in_one_call("plan")
