"""The study: the main job from its settings to its results."""

from bertjax.study import parity, torch_reference
from bertjax.study.conclusion import conclude
from bertjax.study.encoding import Encoded, batch_encodings, encode_examples, label_order
from bertjax.study.job import Job
from bertjax.study.outputs import cosine, mean_outputs, metrics_of, positive_label, sweep_examples
from bertjax.study.parity import check_model
from bertjax.study.provenance import command_line, versions, where_from
from bertjax.study.run import ablate, estimate_job, run_job
from bertjax.study.settings import COLLECTIONS, Settings, available_modes, check_settings, for_this_device
from bertjax.study.tables import parity_table, plan_table
from bertjax.study.words import UNKNOWN, name_unknown

__all__ = [
    "COLLECTIONS",
    "UNKNOWN",
    "Encoded",
    "Job",
    "Settings",
    "ablate",
    "available_modes",
    "batch_encodings",
    "check_model",
    "check_settings",
    "command_line",
    "conclude",
    "cosine",
    "encode_examples",
    "estimate_job",
    "for_this_device",
    "label_order",
    "mean_outputs",
    "metrics_of",
    "name_unknown",
    "parity",
    "parity_table",
    "plan_table",
    "positive_label",
    "run_job",
    "sweep_examples",
    "torch_reference",
    "versions",
    "where_from",
]
