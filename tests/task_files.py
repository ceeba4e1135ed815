"""Data files of the tasks, with a few examples each."""

import gzip
import json

from tests.factories import SENTENCES

CONTEXT = "the cat sat on the mat . a dog ran home and he saw the red doors near an old man . cats sleep"

QUESTIONS = [
    ("the cat sat", ["the mat", "on the mat"]),
    ("he saw", ["The Red doors!"]),
    ("dog ran", ["home"]),
    ("old man", ["an old man"]),
    ("cats", ["sleep"]),
]


def write_squad(path, questions=QUESTIONS, context=CONTEXT, impossible=()):
    """A file in SQuAD's form; questions of these numbers have no answer, as in SQuAD 2.0."""
    qas = [
        {
            "id": f"q{number}",
            "question": question,
            "answers": [] if number in impossible else [{"text": text, "answer_start": 0} for text in answers],
            **({"is_impossible": number in impossible} if impossible else {}),
        }
        for number, (question, answers) in enumerate(questions)
    ]
    path.write_text(
        json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": [{"context": context, "qas": qas}]}]})
    )
    return path


CHOICE_ROWS = [
    {
        "context": sentence,
        "question": "an old man",
        "choices": [SENTENCES[(number + step) % 7] for step in (1, 2, 3)],
        "label": number % 3,
    }
    for number, sentence in enumerate(SENTENCES)
]


def write_choices(path, rows=CHOICE_ROWS):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


LABEL_NAMES = ("joy", "anger", "Deep-fear", "love")

LABEL_SETS = [(0, 2), (), (1,), (0, 1, 2, 3), (3,), (1, 3), (2,)]

LABEL_SET_ROWS = [
    {"text": text, "labels": [LABEL_NAMES[n] for n in numbers]}
    for text, numbers in zip(SENTENCES, LABEL_SETS, strict=True)
]


def write_label_sets(path, rows=LABEL_SET_ROWS):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


CANDIDATES = tuple(f"{first} and {second}" for first in SENTENCES for second in SENTENCES if first != second)

GRADES = {(query, (query * 5 + step * 7) % len(CANDIDATES)): 1 + step % 2 for query in range(7) for step in range(3)}


def write_collection(folder, *, queries=SENTENCES, texts=CANDIDATES, grades=GRADES, run=None):
    """A collection as BEIR has it; with a run, as TREC."""
    (folder / "qrels").mkdir(parents=True)
    lines = {"queries": queries, "corpus": texts}
    for name, several in lines.items():
        rows = [{"_id": f"{name[0]}{number}", "text": text} for number, text in enumerate(several)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    judged = "".join(f"q{query}\tc{text}\t{grade}\n" for (query, text), grade in grades.items())
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    if run:
        (folder / "run.txt").write_text("".join(f"q{query} Q0 c{text} 1 0.5 bm25\n" for query, text in run))
    return folder


def ranking_rows(grades=(1, 0, 0, 2, 0)):
    """A row for each candidate."""
    return [
        {"query": query, "passage": CANDIDATES[(number * 5 + place) % len(CANDIDATES)], "relevance": grade}
        for number, query in enumerate(SENTENCES)
        for place, grade in enumerate(grades)
    ]


TAGGED_SENTENCES = [
    [("the", "O"), ("cat", "B-per"), ("sat", "I-per"), ("on", "O"), ("mats", "B-loc")],
    [("a", "O"), ("dog", "B-per"), ("ran", "O"), ("home", "I-loc")],
    [("\u200b", "O"), ("he", "B-per"), ("ran", "I-per"), ("home", "B-loc")],  # a word without pieces
    [("red", "O"), ("doors", "B-loc"), ("are", "I-loc"), ("old", "O")],
    [("zebra", "B-per"), ("dogs", "I-per")],
]


def write_conll(path, sentences=TAGGED_SENTENCES, blank="\t\n"):
    """A file as WNUT's: a tab in each blank line."""
    text = blank.join("".join(f"{word}\t{tag}\n" for word, tag in sentence) for sentence in sentences)
    content = (text + blank).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


MINIMAL_PAIRS = [
    ("the cat sat on the mat", "the cat sat on the mats", "one"),
    ("a dog ran home", "a dog slept home", "one"),
    ("the dog ran", "the dogs ran", "one"),
    ("cats sleep near the door", "cats ran near the door", "two"),
    ("an old man saw the cat", "an old man saw the dog", "two"),
    ("he ran home", "he slept home", "two"),
    ("the zebra sat", "the zebra ran", "two"),  # with an unknown word
    ("a dog ran", "a dog ran", "two"),  # as two pairs of BLiMP
]
