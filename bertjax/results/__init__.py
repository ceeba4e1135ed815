"""Results: their directory, tables, figures, comparison and page. No model is needed."""

from bertjax.results.comparison import compare_data, compare_table
from bertjax.results.contents import Contents, InMemory, describe_silhouette
from bertjax.results.directory import (
    NOT_COMPARED,
    AblationName,
    check_directory,
    describe_examples,
    output_arrays,
    read_complete,
    read_results,
    write_outputs,
    write_results,
)
from bertjax.results.examples import (
    LONGEST,
    NAME,
    PLAIN,
    RIGHT,
    TRUE,
    WRONG,
    Display,
    Line,
    NumberDisplay,
    cut_out,
    shorten,
)
from bertjax.results.figures import make_figure, pruning_curves
from bertjax.results.page import check_replaceable, write_page
from bertjax.results.results import Results, ShardResults, make_results
from bertjax.results.seeds import SeedEffects, join_seeds, over_seeds_and_examples
from bertjax.results.shards import Shard, check_shard, read_shards, write_shard
from bertjax.results.summary import Entry, read_recorded
from bertjax.results.table import Row, column, significant
from bertjax.results.terminal import show_table, show_text

__all__ = [
    "LONGEST",
    "NAME",
    "NOT_COMPARED",
    "PLAIN",
    "RIGHT",
    "TRUE",
    "WRONG",
    "AblationName",
    "Contents",
    "Display",
    "Entry",
    "InMemory",
    "Line",
    "NumberDisplay",
    "Results",
    "Row",
    "SeedEffects",
    "Shard",
    "ShardResults",
    "check_directory",
    "check_replaceable",
    "check_shard",
    "column",
    "compare_data",
    "compare_table",
    "cut_out",
    "describe_examples",
    "describe_silhouette",
    "join_seeds",
    "make_figure",
    "make_results",
    "output_arrays",
    "over_seeds_and_examples",
    "pruning_curves",
    "read_complete",
    "read_recorded",
    "read_results",
    "read_shards",
    "shorten",
    "show_table",
    "show_text",
    "significant",
    "write_outputs",
    "write_page",
    "write_results",
    "write_shard",
]
