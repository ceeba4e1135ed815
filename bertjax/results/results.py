"""What a job found, as people use it: shown in a notebook, drawn, compared, as a table and as a page."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.evidence import Evidence, Q
from bertjax.formatting import visible
from bertjax.results.comparison import Comparison
from bertjax.results.contents import Contents, InMemory
from bertjax.results.figures import make_figure
from bertjax.results.page import write_page
from bertjax.results.summary import Entry, make_summary
from bertjax.results.table import make_rows, to_frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Results(Contents):
    """What `bertjax ablate` found: read from a directory (`read_results`), or just computed (`bertjax.ablate`)."""

    def to_pandas(self) -> "pandas.DataFrame":
        """A `pandas.DataFrame` with a row for each ablation and metric.

        Its columns are those of `results.parquet`, described in docs/results.md: `name`, `layer`, `head`, `heads`,
        `metric`, `main`, `score`, `difference`, its interval `low` and `high`, `p`, `q` and others.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return to_frame(self.rows)

    @property
    def frame(self) -> "pandas.DataFrame":
        """`to_pandas()`."""
        return self.to_pandas()

    def plot(
        self,
        figure: str = "auto",
        *,
        metric: str | None = None,
        head: str | None = None,
        example: int | str | None = None,
        text: int | None = None,
        run: str | None = None,
    ) -> "Figure":
        """A picture; in a notebook it shows itself.

        Args:
            figure: 'map' of single heads; 'ranking' of all effects with intervals; 'layers', their mean effects or
                those of whole layers; 'attention' of a head; 'change', of a head before and after an ablation; 'auto'
                what suits these ablations.
            metric: default the main one.
            head: of attention, such as '3.0'; default that of the largest effect.
            example: of attention, the id of one of those kept (`kept`); default the first.
            text: of attention, 2 for the second of a pair whose texts the model reads one by one; default 1.
            run: of 'change', the ablation; default that of the largest effect.

        Raises:
            InputError: there is no such figure, metric, head, example, text or run, or the figure does not take one.
        """
        return make_figure(self, figure, metric=metric, head=head, example=example, text=text, run=run)

    def report(self, path: str | Path | None = None) -> Path:
        """Write one HTML file that needs no network; returns its path.

        Args:
            path: of the file, `.html`; default `report.html` in the directory of the results.

        Raises:
            InputError: these results are in no directory, and no path is given.
            OutputError: it cannot be written.
        """
        return write_page(self, path)

    def compare(self, *others: "Results", metric: str | None = None) -> Comparison:
        """Do these and others show the same heads?

        Args:
            others: results of other seeds, tasks, checkpoints or modes.
            metric: default the main one of each.

        Raises:
            InputError: no other is given, they have fewer than two ablations in common, or one lacks the metric.
        """
        return Comparison((self, *others), metric)

    def _repr_html_(self) -> str:
        """For notebooks: the sentence, and the ablations of the largest effects."""
        names = ("ablation", "score", "change", "95 % CI", "p", "q", "gains", "losses")
        head = "".join(f'<th style="text-align:right">{name}</th>' for name in names)
        lines = ["".join(f"<td>{escape(visible(cell))}</td>" for cell in cells) for cells in self.largest()]
        body = "".join(f'<tr style="text-align:right">{line}</tr>' for line in lines)
        text = f"<p><b>{escape(visible(self.title))}</b></p><p>{escape(visible(self.summary['sentence']))}</p>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{text}{table}<p>scores and changes in points; * q &lt; {Q}</p>"

    def __repr__(self) -> str:
        where = "" if self.directory is None else f" in {self.directory}"
        return f"<Results{where}: {self.title}>"


def make_results(
    provenance: Mapping[str, Any],
    entries: Sequence[Entry],
    evidence: Mapping[str, Evidence],
    stored: InMemory,
) -> Results:
    """Results that were just computed.

    Args:
        provenance: where they come from, and the base's scores by metric under 'base'.
        entries: one for each ablation.
        evidence: by metric, the main one first; none where fewer than two examples have a label.
        stored: outputs, attention and examples.
    """
    rows = make_rows([entry.to_dict() for entry in entries], provenance["base"], evidence)
    return Results(make_summary(provenance, entries, evidence), rows, stored)
