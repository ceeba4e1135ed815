"""A tiny model and a data file for each task, and jobs on them."""

import itertools
import json
from functools import partial

import numpy as np

from bertjax.jobs.job import load_job
from bertjax.jobs.settings import for_this_device
from tests.factories import (
    SENTENCES,
    make_chooser,
    make_classifier,
    make_cross_encoder,
    make_embedder,
    make_labeller,
    make_masked,
    make_reader,
    make_tagger,
    write_lines,
    write_pairs,
)
from tests.job_factories import settings_of
from tests.task_files import LABEL_NAMES, write_choices, write_collection, write_conll, write_label_sets, write_squad


def write_sentence_pairs(path):
    path.write_text("good\tbad\n" + "".join(f"{good}\t{bad}\n" for good, bad in itertools.pairwise(SENTENCES)))
    return path


def write_forms(path):
    rows = [{"sentence": f"[MASK] {sentence}", "good": "the", "bad": "red"} for sentence in SENTENCES]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_questions(path):
    return write_squad(path, [(sentence, ["cat"]) for sentence in SENTENCES], "the cat sat near a door")


TASK_FACTORIES = {
    "mlm": (make_masked, write_lines, "lines.txt"),
    "minimal-pairs": (make_masked, write_sentence_pairs, "pairs.tsv"),
    "agreement": (make_masked, write_forms, "forms.jsonl"),
    "token-classification": (make_tagger, write_conll, "dev.conll"),
    "multiple-choice": (make_chooser, write_choices, "dev.jsonl"),
    "multi-label": (partial(make_labeller, names=LABEL_NAMES), write_label_sets, "dev.jsonl"),
    "question-answering": (make_reader, write_questions, "dev.json"),
    "ranking": (make_embedder, write_collection, "collection"),
}


def write_mrpc_table(path):
    return write_pairs(path, 24)


LABEL_TASK_FACTORIES = {
    "classifier": (make_classifier, write_mrpc_table, "mrpc"),
    "embedder": (make_embedder, write_mrpc_table, "mrpc"),
    "cross-encoder": (make_cross_encoder, write_mrpc_table, "mrpc"),
}


def load_task_job(case, folder, mode="zero", **changes):
    make, write, name = (TASK_FACTORIES | LABEL_TASK_FACTORIES)[case]
    task, file = (case, name) if case in TASK_FACTORIES else (name, "pairs.tsv")
    data = write(folder / file)
    options = {"model": str(make(folder / "model")), "task": task, "mode": mode, "data": str(data), "output": "unused"}
    return load_job(for_this_device(settings_of(**options, **changes)))


def example_losses(encoded, outputs):
    """The loss of each example from what the readout gave for each text of one run."""
    graded = (
        encoded.objective.grade(number, outputs[list(encoded.numbers_of(number))]) for number in range(len(outputs))
    )
    return np.array([loss for loss, _ in itertools.islice(graded, encoded.examples)])
