"""The public class of results: shown in a notebook, plotted, compared, as a table or as a page."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax import arguments
from bertjax.errors import InputError
from bertjax.formatting import visible
from bertjax.results.comparison import Comparison
from bertjax.results.contents import Contents, InMemory, describe_numbers, headings_of, note_of_tests
from bertjax.results.figures import make_figure
from bertjax.results.page import write_page
from bertjax.results.seeds import SeedEffects, join_seeds
from bertjax.results.shards import describe_shard
from bertjax.results.summary import Entry, make_summary
from bertjax.results.table import make_rows, to_frame
from bertjax.statistics import Statistics

if TYPE_CHECKING:
    import pandas


class Results(Contents):
    """Results of `bertjax ablate`, read from a directory (`read_results`) or just computed (`bertjax.ablate`).

    Args:
        summary: the content of `summary.json`.
        rows: the effect of each ablation.
        stored: outputs, attention and examples, in files or in memory.
    """

    def to_pandas(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each ablation and metric.

        The columns are those of `results.parquet`, described in docs/guides/results.md: `name`, `layer`, `head`,
        `heads`, `metric`, `main`, `score`, `difference` with its interval `low` to `high`, `p`, `q` and others.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return to_frame(self.rows)

    @property
    def frame(self) -> "pandas.DataFrame":
        """Same as `to_pandas()`."""
        return self.to_pandas()

    plot = make_figure

    def report(self, path: str | Path | None = None) -> Path:
        """Write a single HTML file that needs no network, and return its path.

        Args:
            path: the path of the `.html` file; by default `report.html` in the directory of the results.

        Raises:
            InputError: these results were not written and there is no path.
            OutputError: the file cannot be written.
        """
        return write_page(self, path)

    def compare(self, *others: "Results", metric: str | None = None) -> Comparison:
        """Compare these results with others: whether the same heads have effects.

        Args:
            others: results of other seeds, tasks, checkpoints or modes.
            metric: the metric that is compared; by default the main metric of each.

        Raises:
            InputError: `others` is empty, the results share fewer than two ablations, or one lacks the metric.
        """
        expected = "results (bertjax.read_results(directory) reads them)"
        return Comparison((self, *arguments.check_sequence(others, "others", expected, Results)), metric)

    def join(self, *others: "Results", metric: str | None = None) -> SeedEffects:
        """Join these results with those of other seeds of the model: mean effects, tested over seeds and examples.

        Args:
            others: results on the same examples.
            metric: the metric that is joined; by default the main metric of each.

        Raises:
            InputError: `others` is empty, the examples differ, or as for `compare`.
            DataError: the metric is not built in, or it is undefined without some example.
        """
        expected = "results (bertjax.read_results(directory) reads them)"
        return join_seeds((self, *arguments.check_sequence(others, "others", expected, Results)), metric)

    def _repr_html_(self) -> str:
        """The summary sentence and the ablations with the largest effects, for notebooks."""
        shown = headings_of(self.measure())
        head = "".join(f'<th style="text-align:right">{name or self.noun}</th>' for name in shown.values())
        lines = ["".join(f"<td>{escape(visible(cells[index]))}</td>" for index in shown) for cells in self.largest()]
        body = "".join(f'<tr style="text-align:right">{line}</tr>' for line in lines)
        text = f"<p><b>{escape(visible(self.title))}</b></p><p>{escape(visible(self.summary['sentence']))}</p>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return (
            f"{text}{table}<p>{escape(describe_numbers(self.measure()))}; {escape(note_of_tests(self.measure()))}</p>"
        )

    def __repr__(self) -> str:
        where = "" if self.directory is None else f" in {self.directory}"
        return f"<Results{where}: {self.title}>"


class ShardResults(Results):
    """The results of a shard: `directory`, `summary` and `sentence`; all other attributes raise `InputError`.

    Args:
        summary: the content of `shard.json`.
    """

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in ("directory", "summary", "sentence", "stored"):
            return super().__getattribute__(name)
        raise InputError(describe_shard(self.directory, self.summary["shard"]))

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>"

    def __repr__(self) -> str:
        return f"<Results in {self.directory}: {self.sentence}>"


def make_results(
    provenance: Mapping[str, Any],
    entries: Sequence[Entry],
    statistics: Mapping[str, Statistics],
    stored: InMemory,
) -> Results:
    """Make results from what was computed.

    Args:
        provenance: the provenance of the results, and the scores of the base by metric under 'base'.
        entries: one for each ablation.
        statistics: the statistics by metric, the main one first; empty if fewer than two examples have a label.
        stored: outputs, attention and examples.
    """
    rows = make_rows([entry.to_dict() for entry in entries], provenance["base"], statistics)
    return Results(make_summary(provenance, entries, statistics), rows, stored)
