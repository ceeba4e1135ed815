"""Results: what a sweep found, as a table, a directory, pictures, a comparison and a page; without the model."""

from bertjax.results.comparison import compare_data, compare_table
from bertjax.results.directory import SavedResults, read_results
from bertjax.results.figures import make_figure
from bertjax.results.page import write_page
from bertjax.results.results import (
    NOT_COMPARED,
    Entry,
    Place,
    Results,
    check_directory,
    read_complete,
    write_outputs,
    write_results,
)
from bertjax.results.terminal import NOTHING, ablation_table, show_table, show_text

__all__ = [
    "NOTHING",
    "NOT_COMPARED",
    "Entry",
    "Place",
    "Results",
    "SavedResults",
    "ablation_table",
    "check_directory",
    "compare_data",
    "compare_table",
    "make_figure",
    "read_complete",
    "read_results",
    "show_table",
    "show_text",
    "write_outputs",
    "write_page",
    "write_results",
]
