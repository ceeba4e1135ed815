"""What grids of patches and patched paths have in common: contrasts are loaded, described and scored.

Of each contrast the patched run's score is kept beside those of the run that is patched and of the donor's
(`attribution.restoring`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from bertjax.attribution import patching_metrics
from bertjax.data import CONTRASTS, Contrasts, read_contrasts
from bertjax.errors import DataError, InputError
from bertjax.formatting import count_of
from bertjax.model import BertForMaskedLM, BertForSequenceClassification
from bertjax.study.derived.contrasts import EncodedContrasts, encode_contrasts
from bertjax.study.derived.frame import Outcome
from bertjax.study.derived.job import DerivedJob
from bertjax.study.job import load_model, load_tokenizer
from bertjax.study.naming import name_directory
from bertjax.study.options import Choices, Heads, OutputOptions, option
from bertjax.study.provenance import Analysis
from bertjax.study.settings import DEFAULTS, Settings, check_settings, for_this_device, in_float32
from bertjax.tasks import DERIVED, TaskResult, TextEncodings

KIND, MODE = "patching", "patched"
DEFAULT_LENGTH = 128
INTO = ["corrupted", "clean"]
DEFINITION = (
    "what is at a place replaced by what is there on the other text of the contrast (activation patching; Vig et al. "
    "2020, Meng et al. 2022)"
)
CANCELLED = 0.5  # of what the differences of scores would sum to if all went one way: less is worth a line


@dataclass(frozen=True, kw_only=True)
class ContrastOptions(OutputOptions):
    """Contrasts.

    Args:
        contrasts: a file with columns clean and corrupted, texts of as many tokens. For a masked-word model each text
            has one [MASK], and the columns good and bad are the words that fit the clean and the corrupted one; for a
            sentence embedder the column second is a second text. In Python also a DataFrame or a list of dicts.
        into: the text that is run with activations of the other: 'corrupted' shows what restores the score of the clean
            one, 'clean' what removes it.
        only_right: leave out contrasts whose clean text does not score above the corrupted one.
        heads: with sites of heads, and of paths the senders: only these heads, such as 3.0 or L3H0.

    Raises:
        InputError: no contrasts, or not such texts.
    """

    contrasts: Any = option(None, "FILE", positional=True, flag="--data")
    into: Annotated[str, Choices(INTO)] = "corrupted"
    only_right: bool = False
    heads: Heads | None = option(None, "L.H")

    @property
    def file(self) -> str | None:
        """The file of the contrasts; None where they are in memory."""
        return str(self.contrasts) if isinstance(self.contrasts, str | Path) else None

    @property
    def rows(self) -> Contrasts | None:
        """The contrasts in memory; None where they are in a file."""
        if self.contrasts is None or self.file is not None:
            return None
        return self.contrasts if isinstance(self.contrasts, Contrasts) else read_contrasts(self.contrasts)

    @property
    def direction(self) -> dict[str, Any]:
        """The direction as `summary.json` has it."""
        return {"into": self.into, "only_right": self.only_right}


def settings_of_patches(
    settings: Settings, contrasts: Contrasts | None, word: str, what: Mapping[str, Any], default: Mapping[str, Any]
) -> Settings:
    """The settings of patches on this device, with a directory of their own where none is named.

    Args:
        word: for the directory.
        what: is patched: what is not as in `default` makes another directory.

    Raises:
        InputError: settings that patches do not have, or no contrasts.
    """
    check_settings(settings)
    if contrasts is None and settings.data is None:
        raise InputError("give contrasts: a file of clean and corrupted texts, or a template with words")
    if settings.precision == "bfloat16":
        raise InputError("patches are computed in float32: shares of small differences need it")
    if settings.output is None:
        chosen = {**settings.compared(), "task": CONTRASTS.name, "mode": word, "ablate": "", **what}
        chosen |= {} if contrasts is None else {"contrasts": contrasts.examples.sha256}
        settings = replace(settings, output=name_directory(chosen, {**DEFAULTS, **default}))
    return for_this_device(in_float32(replace(settings, task=CONTRASTS.name, mode=MODE)))


def analysis_of_patches(name: str, what: Mapping[str, Any], contrasts: Contrasts | None) -> Analysis:
    """What a summary says of patches.

    Args:
        name: of the analysis.
        what: is patched.
        contrasts: in place of the settings' file.
    """
    return Analysis(name, {**what, "contrasts": None if contrasts is None else contrasts.examples.sha256})


@dataclass(frozen=True)
class PatchingJob(DerivedJob):
    """A job of patches.

    Args:
        contrasts: as the model reads them.
    """

    contrasts: EncodedContrasts | None = None

    @property
    def texts(self) -> EncodedContrasts:
        """The contrasts."""
        assert self.contrasts is not None
        return self.contrasts


def load_contrasts(
    spans: str, options: ContrastOptions, contrasts: Contrasts | None, say: Callable[[str], None], settings: Settings
) -> PatchingJob:
    """Model and contrasts, tokenised; without ablations yet.

    Args:
        spans: as `PatchOptions` has them.
        contrasts: in place of the settings' file.
        say: called with a line about those that are left out.
    """
    if contrasts is None:
        assert settings.data is not None
        contrasts = read_contrasts(settings.data)
    words = "good" in contrasts.more
    model = load_model(settings, [BertForMaskedLM if words else BertForSequenceClassification])
    contrasts = contrasts.limited(settings.limit, settings.seed)
    tokenizer = load_tokenizer(settings)
    length = min(settings.max_length or DEFAULT_LENGTH, model.config.max_tokens)
    found = encode_contrasts(model, tokenizer, contrasts, length, spans)
    if found.note:
        say(found.note)
    examples = found.contrasts.examples
    encodings = tuple(own[0] for own in (found.corrupted if options.into == "corrupted" else found.clean))
    encoded = TextEncodings(DERIVED[KIND], encodings, tokenizer.pad_id, len(examples), np.zeros(len(examples)))
    metrics = patching_metrics(found.scored.label, lost=options.into == "clean")
    return PatchingJob(settings, model, tokenizer, (), examples, encoded, of_outputs=metrics, contrasts=found)


def introduce_patches(job: PatchingJob, what: str, say: Callable[[str], None], keep: bool) -> None:
    """Say what is going to be done.

    Args:
        what: how many patches, and of which kind.
        keep: whether anything is written.
    """
    settings, examples = job.settings, job.examples
    say(f"{job.model.class_name} {settings.model}: {what}, {count_of(len(examples), 'contrast')} of {examples.source}")
    if keep:
        say(f"results go to {settings.directory}")


def conclude_patches(
    job: PatchingJob,
    options: ContrastOptions,
    own: Float[np.ndarray, "contrasts ..."],
    donors: Float[np.ndarray, "contrasts ..."],
    patched: Float[np.ndarray, "runs contrasts ..."],
    *,
    metadata: Mapping[str, Any],
    say: Callable[[str], None],
) -> Outcome:
    """Scores of all patches beside those of both texts.

    Args:
        own, donors: what was read of the texts that are patched, and of their donors.
        patched: of all patches.
        metadata: what a summary says of them.
        say: called with a line where contrasts do not all go one way.

    Raises:
        DataError: there is nothing to restore.
    """
    runs = [part.astype(np.float64) for part in (own, donors)]
    clean, corrupted = runs[::-1] if options.into == "corrupted" else runs
    scores = job.texts.scored.score(np.stack([*runs, *patched.astype(np.float64)]), clean, corrupted)
    by_how_much = scores[1] - scores[0] if options.into == "corrupted" else scores[0] - scores[1]
    right = by_how_much > 0
    for line in _lines_about(job.examples.ids, by_how_much, options.only_right):
        say(line)
    if options.only_right and not right.all():
        job, scores = _take(job, np.flatnonzero(right).tolist()), scores[:, right]
    _check_scores(scores)
    numbers = np.stack([scores, *(np.broadcast_to(scores[run], scores.shape) for run in (0, 1))], axis=-1)
    ends = {"own_score": float(scores[0].mean()), "donor_score": float(scores[1].mean())}
    described = {"into": options.into, **metadata, "score": job.texts.scored.label, **ends}
    described |= {"right_way": int(right.sum()), "other_way": 0 if options.only_right else int((~right).sum())}
    result = TaskResult(numbers[0], numbers[2:], tuple(job.ablations))
    mode = {"name": MODE, "definition": DEFINITION, "title": "patched from the other text"}
    return Outcome(job, result, None, {"patching": described, "mode": mode})


def _lines_about(ids: Sequence[Any], differences: Float[np.ndarray, " contrasts"], only_right: bool) -> list[str]:
    """What is to be said where some clean texts do not score above their corrupted ones.

    Args:
        ids: of the contrasts.
        differences: the clean text's score less the corrupted one's.

    Raises:
        DataError: none does, and only such contrasts are wanted.
    """
    wrong, count = differences <= 0, len(differences)
    if not wrong.any():
        return []
    if only_right and wrong.all():
        raise DataError("no clean text scores above its corrupted one: there is no contrast of the right way")
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
            f"contrasts cancel: {100 * share:.0f} % of what they differ by is left, and shares are of that; look at "
            "the contrasts, or take those of the right way alone (--only-right)"
        )
    return lines


def _take(job: PatchingJob, kept: Sequence[int]) -> PatchingJob:
    """The job of some of the contrasts."""
    encodings = tuple(job.encoded.encodings[number] for number in kept)
    encoded = replace(job.encoded, encodings=encodings, examples=len(kept), labels=np.zeros(len(kept)))
    return replace(job, examples=job.examples.take(kept), encoded=encoded)


def _check_scores(scores: Float[np.ndarray, "runs contrasts"]) -> None:
    """Raise `DataError` where there is nothing to restore."""
    if np.abs(scores[1].mean() - scores[0].mean()) <= 1e-6 * max(1.0, np.abs(scores[:2]).max()):
        raise DataError("clean and corrupted texts have the same score on average: there is nothing to restore")
