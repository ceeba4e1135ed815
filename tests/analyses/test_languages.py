"""`Study.languages` from parallel texts to results."""

import gzip
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import bertjax
from bertjax.analyses import random_encoder
from bertjax.analyses.probing.parallel_texts import read_parallel
from bertjax.cli import main
from bertjax.errors import DataError, InputError
from bertjax.representations import split_texts
from tests.factories import SENTENCES, make_masked

NAMES = ("en", "de")


def parallel_rows(count=30):
    """Sentences and their words in the opposite order as translations."""
    rng = np.random.default_rng(2)
    words = [[*" ".join(SENTENCES[index] for index in rng.choice(len(SENTENCES), 2)).split()] for _ in range(count)]
    return [{"en": " ".join(one), "de": " ".join(one[::-1][: -1 - len(one) % 2])} for one in words]


def write_squad(path, rows, name):
    """A file in SQuAD's format, with a question for each row."""
    qas = [
        {"id": str(index), "question": row[name], "answers": [{"text": "cat", "answer_start": 4}]}
        for index, row in rows
    ]
    content = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": qas}]}]}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertjax.load(make_masked(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def results(model):
    return bertjax.languages(model, parallel_rows(), seed=0, progress=False)


def sentence_vectors(model, tokenizer, texts):
    """Means over the tokens without special tokens, from the model's own call: an array for each layer."""
    lengths = tokenizer(texts)["attention_mask"].sum(axis=1)
    states = model(texts, tokenizer=tokenizer).hidden_states
    cut = [[row[1 : length - 1] for row, length in zip(np.asarray(one), lengths, strict=True)] for one in states]
    return np.array([[row.mean(axis=0) for row in rows] for rows in cut])


def by_hand(model, tokenizer, rows, seed=0):
    """Retrieval, centred retrieval and the nearest centroid at each layer, sentence by sentence."""
    of_language = [sentence_vectors(model, tokenizer, [row[name] for row in rows]) for name in NAMES]
    split = split_texts(len(rows), seed)
    found = []
    for states in zip(*of_language, strict=True):
        means = [of[split.train].mean(axis=0) for of in states]
        right = np.zeros(3)
        for query in range(2):
            test, other = states[query][split.test], states[1 - query][split.test]
            for column, (left, candidates) in enumerate(
                [(test - means[query], other - means[1 - query]), (test, other)]
            ):
                for index, vector in enumerate(left):
                    cosines = candidates @ vector / np.linalg.norm(candidates, axis=1) / np.linalg.norm(vector)
                    right[column] += cosines.argmax() == index
            distances = [np.linalg.norm(test - mean, axis=1) for mean in means]
            right[2] += (np.argmin(distances, axis=0) == query).sum()
        found.append(right / (2 * len(split.test)))
    return np.array(found)


def test_results_are_those_by_hand(model, results):
    rows, tokenizer = parallel_rows(), model.tokenizer
    expected, random = (by_hand(one, tokenizer, rows) for one in (model, random_encoder(model)))
    scores = {name: [row.score for row in results.rows_of(name)] for name in results.summary["metrics"]}
    assert results.names == [str(layer) for layer in range(model.config.num_hidden_layers)]
    for column, name in enumerate(("retrieval_centred", "retrieval", "nearest_centroid")):
        np.testing.assert_allclose(scores[name], expected[1:, column])
        assert results.rows_of(name)[0].base == pytest.approx(expected[0, column])
    np.testing.assert_allclose(scores["above_random"], expected[1:, 0] - random[1:, 0])
    found = results.summary["languages"]
    assert found["sentences"] == {"train": 18, "select": 6, "test": 6}
    assert found["chance"] == pytest.approx(1 / 6)
    pairs = found["layers"]["0"]["pairs"]
    assert np.mean([pairs["en-de"], pairs["de-en"]]) == pytest.approx(expected[1, 0])


def test_the_language_is_identified_as_by_scikit_learn(model, results):
    rows, split = parallel_rows(), split_texts(30, 0)
    of_languages = [sentence_vectors(model, model.tokenizer, [row[name] for row in rows]) for name in NAMES]
    labels = [np.repeat([0, 1], len(part)) for part in vars(split).values()]
    scores = []
    for states in zip(*of_languages, strict=True):
        parts = [np.concatenate([of[part] for of in states]) for part in vars(split).values()]
        mean, scale = parts[0].mean(axis=0), parts[0].std(axis=0)
        train, select, test = ((part - mean) / scale for part in parts)
        models = [LogisticRegression(C=strength, max_iter=200, tol=1e-3) for strength in (0.001, 0.01, 0.1)]
        best = max(models, key=lambda model: model.fit(train, labels[0]).score(select, labels[1]))
        scores.append(best.score(test, labels[2]))
    rows = results.rows_of("language_identification")
    assert [rows[0].base, *(row.score for row in rows)] == pytest.approx(scores)
    assert 0 < min(scores) < 1


def test_files_of_languages_and_tables_give_the_same(model, results, tmp_path):
    rows = list(enumerate(parallel_rows()))
    files = [
        write_squad(tmp_path / "x.en.json.gz", rows, "en"),
        write_squad(tmp_path / "x.de.json.gz", rows[::-1], "de"),
    ]
    of_files = bertjax.languages(model, files, output=tmp_path / "found", progress=False)
    assert [row.score for row in of_files.rows] == [row.score for row in results.rows]
    again = bertjax.read_results(tmp_path / "found")
    assert again.summary["languages"] == results.summary["languages"]
    assert again.summary["analysis"]["options"]["parallel"] == [str(path) for path in files]
    assert again.report().exists()


def test_lines_of_text_files_are_parallel(tmp_path):
    rows = parallel_rows(6)
    files = [tmp_path / f"{name}.txt" for name in NAMES]
    for name, path in zip(NAMES, files, strict=True):
        path.write_text("".join(f"{row[name]}\n" for row in rows))
    languages, examples = read_parallel(files)
    assert languages == NAMES
    assert examples.first == tuple(row["en"] for row in rows)
    assert [content.texts["de"] for content in examples.content] == [row["de"] for row in rows]


def test_the_command_line_takes_several_files(tmp_path, capsys):
    rows = list(enumerate(parallel_rows(12)))
    files = [str(write_squad(tmp_path / f"x.{name}.json.gz", rows, name)) for name in NAMES]
    checkpoint = str(make_masked(tmp_path / "model"))
    assert main(["languages", "--model", checkpoint, "--data", *files, "--output", str(tmp_path / "out")]) == 0
    assert "shuffled translations" in capsys.readouterr().out


def test_data_that_are_not_parallel_are_refused(model, tmp_path):
    rows = list(enumerate(parallel_rows(6)))
    one = write_squad(tmp_path / "x.en.json.gz", rows[:3], "en")
    other = write_squad(tmp_path / "x.de.json.gz", rows[3:], "de")
    same = write_squad(tmp_path / "y.en.json.gz", rows, "en")
    (tmp_path / "en.txt").write_text("the cat sat\nthe dog sat\n")
    (tmp_path / "de.txt").write_text("the cat sat\n")
    for data, message in (
        (one, "x.en.json.gz has the sentences of one language: give a file for each language"),
        ([one, other], "no id is in all files"),
        ([one, same], "two files are of one language"),
        ([tmp_path / "en.txt", tmp_path / "de.txt"], "equal numbers of lines: en.txt has 2, de.txt has 1"),
        ([{"en": "the cat sat"}], "two or more languages; found en"),
    ):
        with pytest.raises(DataError, match=message):
            read_parallel(data)
    with pytest.raises(InputError, match="give parallel texts"):
        bertjax.languages(model, progress=False)
