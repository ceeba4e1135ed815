"""Activation patching: grids of sites by tokens, and paths between heads."""

from bertjax.analyses.patching.contrasts import EncodedContrasts, contrasts_of_template
from bertjax.analyses.patching.patch import Patch
from bertjax.analyses.patching.patches import patching_metrics, patching_table
from bertjax.analyses.patching.paths import RECEIVING, PatchPaths, parse_receivers, patch_paths

__all__ = [
    "RECEIVING",
    "EncodedContrasts",
    "Patch",
    "PatchPaths",
    "contrasts_of_template",
    "parse_receivers",
    "patch_paths",
    "patching_metrics",
    "patching_table",
]
