"""Pages of tasks that ask for more than labels, in a real browser: each in its own form, hostile texts as text."""

import json

import pytest

import bertjax
from bertjax.results import read_results
from bertjax.results.examples import cut_out
from bertjax.results.page import choose_examples, page_data, write_page
from bertjax.tasks.token_classification import spans_of
from tests.browser import assert_quiet, browser_needed, choose, rows_of, text_of, wait_for
from tests.factories import (
    SENTENCES,
    make_embedder,
    make_labeller,
    make_masked,
    make_reader,
    make_tagger,
    write_lines,
)
from tests.result_factories import EVIL
from tests.schema_checks import check_by_jsonschema, check_example
from tests.task_files import CANDIDATES, write_collection, write_conll, write_squad

pytestmark = pytest.mark.integration

HOSTILE = EVIL.replace(" ", "_")  # a word
TASKS = ("mlm", "minimal-pairs", "token-classification", "question-answering", "multi-label", "ranking")


@pytest.fixture(scope="module", params=TASKS)
def saved(request, tmp_path_factory):
    """Results of a task, all of whose texts are hostile."""
    folder = tmp_path_factory.mktemp("task")
    options = {}
    match request.param:
        case "mlm":
            make_masked(folder)
            data = folder / "lines.txt"
            data.write_text("".join(f"{EVIL} {sentence}\n" for sentence in SENTENCES))
        case "minimal-pairs":
            make_masked(folder)
            data = folder / "pairs.jsonl"
            rows = [
                {"good": f"{EVIL} {good}", "bad": f"{EVIL} {bad}", "UID": EVIL if number % 2 else "other"}
                for number, (good, bad) in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True))
            ]
            data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case "token-classification":
            make_tagger(folder, seed=1)
            words = [[(HOSTILE, "B-per"), *[(word, "O") for word in sentence.split()]] for sentence in SENTENCES]
            data = write_conll(folder / "dev.conll", words)
        case "ranking":
            make_embedder(folder)
            data = write_collection(
                folder / "data",
                texts=[f"{EVIL} {text}" for text in CANDIDATES],
                queries=[f"<b>{one}" for one in SENTENCES],
            )
        case "multi-label":
            make_labeller(folder, (EVIL, "joy", "love"), seed=5)
            data = folder / "texts.jsonl"
            rows = [{"text": f"{EVIL} {sentence}", "labels": [EVIL]} for sentence in SENTENCES]
            data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case _:
            make_reader(folder, seed=6)
            questions = [(f"<b>{sentence}", [f"{EVIL} cat"]) for sentence in (SENTENCES[1], SENTENCES[6])]
            data = write_squad(folder / "dev.json", questions, f"the {EVIL} cat sat near a door")
            options = {"stride": 5}
    bertjax.ablate(folder, request.param, data=data, output=folder / "out", progress=False, **options)
    return read_results(folder / "out")


def texts_of(saved):
    """All that the page says of the examples of each ablation, as text."""
    examples = choose_examples(saved, list(range(len(saved.names))))
    lines = [lines for _, _, lines in examples["texts"]]
    for (_, rows), details in zip(examples["changed"], examples["details"], strict=True):
        lines += details
        assert len(details) == len(rows)
    return [" ".join(text for text, _ in line) for several in lines for line in several], examples


def test_each_task_describes_its_values_and_its_examples(saved):
    task = saved.summary["data"]["task"]
    lines, examples = texts_of(saved)
    expected = {
        "mlm": "mean log-probability",
        "minimal-pairs": "margin",
        "token-classification": "mean log-probability",
        "question-answering": "F1",
        "ranking": "nDCG@10",
        "multi-label": "mean log-likelihood",
    }
    assert examples["value"] == expected[task]
    starts = {line.split()[0] for line in lines}
    assert {"mlm": "base", "minimal-pairs": "good"}.get(task, "true") in starts
    assert {"minimal-pairs": "bad"}.get(task, "ablated") in starts
    marks = {mark for _, _, several in examples["texts"] for line in several for _, mark in line}
    assert marks <= {"", "name", "true", "right", "wrong"}
    assert page_data(saved)["examples"] == examples


def test_files_are_as_their_schemas_say(saved):
    check_by_jsonschema(saved.summary)
    for example in saved.examples:
        check_example(example)
    assert len(saved.summary["numbers"]) == saved.outputs["base"].shape[-1]
    assert ("tags" in saved.summary) == (saved.summary["data"]["task"] == "token-classification")


@browser_needed
def test_the_page_shows_hostile_texts_as_text(browser, saved, tmp_path):
    browser.get(write_page(saved, tmp_path / "page.html").as_uri())
    wait_for(lambda: browser.execute_script("return document.body.dataset.ready && document.body.dataset.attention"))
    rows, task = rows_of(browser, "examples"), saved.summary["data"]["task"]
    assert any((HOSTILE if task == "token-classification" else EVIL) in row for row in rows)
    named = {"mlm": "base", "minimal-pairs": "good", "token-classification": "found"}
    assert named.get(task, "true") in rows[0]
    marked = browser.execute_script("return [...document.querySelectorAll('#examples span')].map(one => one.className)")
    assert {"mark-name"} < set(marked) or task == "minimal-pairs"
    assert "Example" in text_of(browser, "#example-text")
    if task == "minimal-pairs":
        choose(browser, "metric", f"accuracy:{EVIL}")
        wait_for(lambda: EVIL in text_of(browser, "#sentence"))
    assert_quiet(browser)


def test_spans_and_parts_of_texts():
    assert spans_of(["I-a", "I-a", "B-a", "E-a", "S-b", "O", "NOUN", "NOUN"]) == [
        *(("a", 0, 2), ("a", 2, 4), ("b", 4, 5)),
        *(("NOUN", 6, 7), ("NOUN", 7, 8)),
    ]
    text = "one two three four five six"
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            pieces = cut_out(text, start, end, "true", around=6)
            assert [piece for piece, mark in pieces if mark == "true"] == [text[start:end]]
            assert "".join(piece for piece, _ in pieces).replace("…", "").strip() in text


def test_guesses_are_the_most_likely_words(tmp_path):
    make_masked(tmp_path)
    lines = write_lines(tmp_path / "lines.txt")
    results = bertjax.ablate(tmp_path, "mlm", data=lines, heads=["0.0", "1.1"], progress=False)
    arrays, outputs = results.attention, results.outputs
    assert arrays["runs"].tolist()[0] == "base"
    for sample, example in enumerate(arrays["examples"].tolist()):
        of_example = outputs["units"] == example
        assert arrays[f"masked_{sample}"].tolist() == outputs["places"][of_example].tolist()
        for run, name in enumerate(arrays["runs"].tolist()):
            of_run = outputs["base"] if not run else outputs["outputs"][results.names.index(name)]
            for word, (chance, rank) in enumerate(of_run[of_example].tolist()):
                guesses = arrays[f"guesses_{sample}"][run, word].tolist()
                truth = arrays[f"truth_{sample}"][word]
                assert (truth in guesses) == (rank <= 5)
                if truth in guesses:
                    place = guesses.index(truth)
                    assert place == rank - 1
                    assert arrays[f"chances_{sample}"][run, word, place] == pytest.approx(
                        2.718281828459045**chance, abs=1e-5
                    )
