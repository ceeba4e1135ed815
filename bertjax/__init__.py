"""bertjax: BERT in JAX/Flax for people who study what attention heads do.

Start with `Study` (a model and a task, whose methods are the analyses), `load` (a model), `sweep` (many sets of heads
at once) and `read_results`.

Names load when they are first used: `import bertjax` alone costs next to nothing, and reading saved results imports no
JAX (their page does).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax import errors
    from bertjax.analyses import merge
    from bertjax.attention import view
    from bertjax.checkpoints import BertConfig
    from bertjax.data import Tokenizer, collate
    from bertjax.engine import Estimate, SweepResult, plan_sweep, reference, sweep
    from bertjax.interventions import ablations, mean_head_outputs, overrides, patching, readouts
    from bertjax.machine import use_compile_cache
    from bertjax.models import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForReplacedTokenDetection,
        BertForSentenceEmbedding,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
        ModelOutput,
        Numerics,
        Overrides,
        from_torch,
        load,
    )
    from bertjax.results import Results, read_results
    from bertjax.statistics import METRICS, Metric, compute_statistics
    from bertjax.study import (
        Study,
        ablate,
        compare_layers,
        geometry,
        importance,
        interactions,
        languages,
        patch,
        patch_paths,
        plan,
        probe,
        probe_edges,
        prune,
        restore,
        roles,
        senses,
        shapley,
        structure,
    )
    from bertjax.tasks import load_examples

__version__ = "0.1.0"

# The package of each public name.
_PACKAGE_OF = {
    **dict.fromkeys(["BertConfig"], "checkpoints"),
    **dict.fromkeys(["Tokenizer", "collate"], "data"),
    **dict.fromkeys(["Estimate", "SweepResult", "reference", "plan_sweep", "sweep"], "engine"),
    **dict.fromkeys(["METRICS", "Metric", "compute_statistics"], "statistics"),
    **dict.fromkeys(["ablations", "mean_head_outputs", "overrides", "patching", "readouts"], "interventions"),
    **dict.fromkeys(["BertForMultipleChoice", "BertForReplacedTokenDetection"], "models"),
    **dict.fromkeys(["BertForMaskedLM", "BertForNextSentencePrediction", "BertForPreTraining"], "models"),
    **dict.fromkeys(
        ["BertForQuestionAnswering", "BertForSentenceEmbedding", "BertForSequenceClassification"], "models"
    ),
    **dict.fromkeys(
        ["BertForTokenClassification", "BertModel", "ModelOutput", "Numerics", "Overrides", "from_torch", "load"],
        "models",
    ),
    **dict.fromkeys(["Results", "read_results"], "results"),
    **dict.fromkeys(
        ["Study", "ablate", "interactions", "patch_paths", "roles", "importance", "patch", "prune", "structure"],
        "study",
    ),
    **dict.fromkeys(
        ["compare_layers", "geometry", "languages", "plan", "probe", "probe_edges", "restore", "senses", "shapley"],
        "study",
    ),
    **dict.fromkeys(["merge"], "analyses"),
    **dict.fromkeys(["view"], "attention"),
    **dict.fromkeys(["load_examples"], "tasks"),
    **dict.fromkeys(["use_compile_cache"], "machine"),
}

# Packages with more names: `bertjax.tasks.TASKS`.
_PACKAGES = {
    "analyses",
    "checkpoints",
    "data",
    "models",
    "interventions",
    "engine",
    "explorer",
    "statistics",
    "plots",
    "representations",
    "attention",
    "jobs",
    "results",
    "study",
    "tasks",
    "web",
}

__all__ = [
    "METRICS",
    "BertConfig",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForReplacedTokenDetection",
    "BertForSentenceEmbedding",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "Estimate",
    "Metric",
    "ModelOutput",
    "Numerics",
    "Overrides",
    "Results",
    "Study",
    "SweepResult",
    "Tokenizer",
    "ablate",
    "ablations",
    "collate",
    "compare_layers",
    "compute_statistics",
    "errors",
    "from_torch",
    "geometry",
    "importance",
    "interactions",
    "languages",
    "load",
    "load_examples",
    "mean_head_outputs",
    "merge",
    "overrides",
    "patch",
    "patch_paths",
    "patching",
    "plan",
    "plan_sweep",
    "probe",
    "probe_edges",
    "prune",
    "read_results",
    "readouts",
    "reference",
    "restore",
    "roles",
    "senses",
    "shapley",
    "structure",
    "sweep",
    "use_compile_cache",
    "view",
]


if not TYPE_CHECKING:  # for a type checker there are no other names than these

    def __getattr__(name: str) -> Any:
        """Import a public name, or a package, when it is first used."""
        if name == "errors" or name in _PACKAGES:
            return import_module(f"bertjax.{name}")
        if name not in _PACKAGE_OF:
            raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"bertjax.{_PACKAGE_OF[name]}"), name)
        return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return [*__all__, "__version__"]
