"""The common base of activation patching and path patching: contrasts, scores, and the share restored.

Each contrast has three scores: that of the patched run, of the unpatched run of the same text, and of the source run,
whose activations are inserted. The share restored is the sum over contrasts of (patched - unpatched) divided by the sum
of (source - unpatched): 0 for a patch without effect, 100 points for one that reaches the source's score. A ratio of
sums gives little weight to contrasts whose two scores are almost equal, unlike a mean of ratios.
Sources: Meng et al. 2022 (activation patching); Wang et al. 2023 (division by the difference of the two runs).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from bertjax.analyses.patching.contrasts import EncodedContrasts, encode_contrasts
from bertjax.console import PlainTable
from bertjax.data import Contrasts, read_contrasts
from bertjax.errors import DataError, InputError
from bertjax.formatting import count_of
from bertjax.interventions import Ablation
from bertjax.jobs import (
    Analysis,
    Choices,
    ComputeOptions,
    Context,
    Heads,
    Job,
    Outcome,
    Say,
    Settings,
    hash_if_file,
    load_model,
    load_tokenizer,
    names,
    option,
)
from bertjax.models import BertForMaskedLM, BertForSequenceClassification
from bertjax.paths import user_path
from bertjax.results import NumberDisplay, Results
from bertjax.statistics import Metric, Q, ratios
from bertjax.tasks import OutputSpec, TextEncodings

DEFAULT_LENGTH = 128
INTO = ["corrupted", "clean"]
DEFINITION = (
    "what is at a place replaced by what is there on the other text of the contrast (activation patching; Vig et al. "
    "2020, Meng et al. 2022)"
)
CANCELLED = 0.5  # |sum of differences| / sum of |differences|, below which a warning is printed
LISTED = 3  # cells of each site in the table


class PatchDisplay(NumberDisplay):
    """Clean and corrupted texts with the score of the patched run."""

    value, note = "score", "It is the score of the contrast, and what patching makes of it."


OUTPUTS = OutputSpec("patching", called="patches", numbers=ratios.PATCHING, sized=1, display=PatchDisplay)


@dataclass(frozen=True, kw_only=True)
class PatchingJob(Job):
    """A job with contrasts."""

    contrasts: EncodedContrasts


@dataclass(frozen=True, kw_only=True)
class PatchingAnalysis(Analysis):
    """Contrasts.

    Args:
        contrasts: a file with the columns clean and corrupted, texts with equal numbers of tokens. For a masked-word
            model each text has one [MASK], and the columns good and bad have the words that fit the clean and the
            corrupted text; for a sentence embedder the column second has a second text. In Python also a DataFrame or a
            list of dicts.
        into: the text that is patched with activations of the other: patches of 'corrupted' restore the score of the
            clean text, patches of 'clean' remove it.
        only_right: leave out contrasts whose clean text does not score above the corrupted text.
        heads: patch only these heads, such as 3.0 or L3H0; of paths these are the senders.

    Raises:
        InputError: there are no contrasts, or columns are missing.
    """

    progress_text = "patching"
    reads = names(ComputeOptions) | {"model", "max_length", "allow_new_head", "limit", "seed"}

    outputs = OUTPUTS
    mode = "patched"
    spans = "all"
    float32 = True  # for shares of small differences

    contrasts: Any = option(None, "FILE", positional=True, flag="--data", recorded=False)
    into: Annotated[str, Choices(INTO)] = "corrupted"
    only_right: bool = False
    heads: Heads | None = option(None, "L.H")

    @property
    def file(self) -> str | None:
        """The file of the contrasts; None if they are in memory."""
        return str(self.contrasts) if isinstance(self.contrasts, str | Path) else None

    @cached_property
    def rows(self) -> Contrasts | None:
        """The contrasts in memory; None if they are in a file."""
        if self.contrasts is None or self.file is not None:
            return None
        return self.contrasts if isinstance(self.contrasts, Contrasts) else read_contrasts(self.contrasts)

    @property
    def inputs(self) -> list[str]:
        """The file of the contrasts."""
        return [] if self.file is None else [self.file]

    def recorded(self) -> dict[str, Any]:
        """The options, with path and hash of the contrasts."""
        rows = self.rows
        if rows is not None:
            return {**super().recorded(), "contrasts_sha256": rows.examples.sha256}
        digest = hash_if_file(user_path(str(self.file), InputError))
        return {**super().recorded(), "contrasts": self.file, "contrasts_sha256": digest}

    def check(self, settings: Settings) -> None:
        """Raise `InputError` if there are no contrasts."""
        super().check(settings)
        if self.contrasts is None:
            raise InputError("give contrasts: a file of clean and corrupted texts, or a template with words")

    def load(self, settings: Settings, say: Say) -> Job:
        """Load the model, and tokenise the contrasts."""
        contrasts = self.rows
        if contrasts is None:
            contrasts = read_contrasts(self.file)
        words = "good" in contrasts.more
        model = load_model(settings, [BertForMaskedLM if words else BertForSequenceClassification])
        contrasts = contrasts.limited(settings.limit, settings.seed)
        tokenizer = load_tokenizer(settings)
        length = min(settings.max_length or DEFAULT_LENGTH, model.config.max_tokens)
        found = encode_contrasts(model, tokenizer, contrasts, length, self.spans)
        if found.note:
            say(found.note)
        examples = found.contrasts.examples
        patched = tuple(texts[0] for texts in (found.corrupted if self.into == "corrupted" else found.clean))
        encoded = TextEncodings(OUTPUTS, patched, tokenizer.pad_id, len(examples), np.zeros(len(examples)))
        return PatchingJob(settings, model, tokenizer, examples, encoded, contrasts=found)

    def show(self, results: Results) -> Sequence[RenderableType]:
        """The cells or senders with the largest shares."""
        return [patching_table(results)]


def introduce_patches(job: PatchingJob, what: str, context: Context) -> None:
    """Report what will be run.

    Args:
        what: the number and kind of patches.
    """
    contrasts = f"{count_of(len(job.examples), 'contrast')} of {job.examples.source}"
    context.say(f"{job.model.class_name} {job.settings.model}: {what}, {contrasts}")
    context.say_directory()


def outcome_of_patches(
    job: PatchingJob,
    analysis: PatchingAnalysis,
    ablations: Sequence[Ablation],
    runs: tuple[Float[np.ndarray, "contrasts ..."], Float[np.ndarray, "contrasts ..."]],
    patched: Float[np.ndarray, "runs contrasts ..."],
    *,
    metadata: Mapping[str, Any],
    say: Say,
) -> Outcome:
    """Compute the scores of all patches and of both texts.

    Args:
        ablations: the patches.
        runs: outputs of the unpatched run and of the source run.
        patched: outputs of all patches.
        metadata: metadata for the summary.
        say: called with a line if some contrasts have the opposite sign.

    Raises:
        DataError: clean and corrupted texts have the same score.
    """
    scored = job.contrasts.scored
    both = [part.astype(np.float64) for part in runs]
    clean, corrupted = both[::-1] if analysis.into == "corrupted" else both
    scores = scored.score(np.stack([*both, *patched.astype(np.float64)]), clean, corrupted)
    differences = scores[1] - scores[0] if analysis.into == "corrupted" else scores[0] - scores[1]
    right = differences > 0
    for line in _lines_about(job.examples.ids, differences, analysis.only_right):
        say(line)
    kept = np.flatnonzero(right).tolist() if analysis.only_right and not right.all() else None
    scores = scores if kept is None else scores[:, kept]
    _check_scores(scores)
    numbers = np.stack([scores, *(np.broadcast_to(scores[run], scores.shape) for run in (0, 1))], axis=-1)
    described = {"into": analysis.into, **metadata, "score": scored.label}
    described |= {"own_score": float(scores[0].mean()), "donor_score": float(scores[1].mean())}
    described |= {"right_way": int(right.sum()), "other_way": 0 if analysis.only_right else int((~right).sum())}
    return Outcome(
        job=job,
        ablations=ablations,
        base=numbers[0],
        outputs=numbers[2:],
        form=OUTPUTS,
        metrics=patching_metrics(scored.label, lost=analysis.into == "clean"),
        labels=np.zeros(scores.shape[1]),
        kept=kept,
        metadata={
            "patching": described,
            "mode": {"name": analysis.mode, "definition": DEFINITION, "title": "patched from the other text"},
        },
    )


def _lines_about(ids: Sequence[Any], differences: Float[np.ndarray, " contrasts"], only_right: bool) -> list[str]:
    """Lines about contrasts whose clean text does not score above the corrupted text.

    Args:
        ids: the ids of the contrasts.
        differences: score of the clean text minus score of the corrupted text.

    Raises:
        DataError: no clean text scores higher, and `only_right` is set.
    """
    wrong, count = differences <= 0, len(differences)
    if not wrong.any():
        return []
    if only_right and wrong.all():
        raise DataError("no clean text scores above its corrupted text: leave --only-right out")
    last = int(differences.argmin())
    goes = "goes" if wrong.sum() == 1 else "go"
    line = f"{int(wrong.sum())} of {count_of(count, 'contrast')} {goes} the other way: the clean text does not score "
    line += f"above the corrupted one (by {differences[last]:.3g} in contrast {ids[last]}, "
    line += f"{differences.mean():.3g} on average)"
    if only_right:
        return [f"{line}; left out"]
    lines = [line]
    if abs(differences.sum()) < CANCELLED * np.abs(differences).sum():
        share = abs(differences.sum()) / np.abs(differences).sum()
        lines.append(
            f"contrasts cancel: their differences sum to {100 * share:.0f} % of their absolute differences, "
            "and shares refer to it; check the contrasts, or use --only-right"
        )
    return lines


def _check_scores(scores: Float[np.ndarray, "runs contrasts"]) -> None:
    """Raise `DataError` if both texts have the same score."""
    if np.abs(scores[1].mean() - scores[0].mean()) <= 1e-6 * max(1.0, np.abs(scores[:2]).max()):
        raise DataError("clean and corrupted texts have the same score on average: there is nothing to restore")


def patching_table(results: Results) -> PlainTable:
    """Table of the cells with the largest shares, by site.

    Args:
        results: results of `patch`.
    """
    found, measure = results.summary["patching"], results.measure()
    table = PlainTable(title=f"{measure.label}, in points", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("site", no_wrap=True)
    table.add_column("q < 0.05", justify="right", no_wrap=True)
    table.add_column("largest")
    rows = results.rows_of()
    for site in found["places"]:
        cells = [(row, cell) for row, cell in zip(rows, found["cells"], strict=True) if cell["place"] == site]
        significant = sum(row.q is not None and row.q < Q for row, _ in cells)
        # The hidden states before layer 0 are the texts themselves.
        later = [(row, cell) for row, cell in cells if cell["layer"] or site != "hidden_states"]
        first = sorted(later, key=lambda one: -abs(one[0].score or 0.0))[:LISTED]
        named = []
        for row, cell in first:
            name = f"{cell['layer']}{'' if cell['head'] is None else '.{}'.format(cell['head'])}"
            name += f" at {found['spans'][cell['span']]}" if len(found["spans"]) > 1 else ""
            named.append(f"{name} ({measure.factor * (row.score or 0.0):.0f})")
        table.add_row(site, f"{significant} of {len(cells)}", ", ".join(named))
    table.caption_justify = "left"
    scores = f"{found['own_score']:.3g} in {found['into']} texts, {found['donor_score']:.3g} in the others"
    contrasts = results.too_few_contrasts or count_of(results.summary["data"]["examples"], "contrast")
    table.caption = f"{found['score']}: {scores}; {contrasts}"
    return table


def patching_metrics(label: str, *, lost: bool = False) -> tuple[Metric, ...]:
    """The metrics of patches: the share restored or lost, and the score.

    Args:
        label: name of the score.
        lost: whether clean texts are patched from corrupted texts, so that the share is what they lose.
    """
    ends = {"lowest": -np.inf, "highest": np.inf, "by": "patching"}
    name = "lost" if lost else "restored"
    share = Metric.of_sums(name, f"Share {name}", ratios.RESTORED, of_effects=True, **ends)
    return share, Metric.of_sums("score", label, ratios.mean_number(ratios.PATCHING, "patched"), unit="", **ends)
