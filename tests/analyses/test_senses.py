"""`Study.senses` from pairs of sentences to results."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import bertjax
from bertjax.analyses import random_encoder
from bertjax.analyses.probing.sense_pairs import read_sense_pairs
from bertjax.analyses.probing.senses import controls_of
from bertjax.cli import main
from bertjax.errors import DataError, InputError
from bertjax.representations import threshold_hits
from tests.factories import SENTENCES, make_masked

NOT_ASCII = "é “the” naïve"
LEFT = 5  # words in the 7 pieces that a maximum of 9 tokens leaves


def pair_rows(count=24):
    """Rows of SuperGLUE: sentences with the word near the front, at another place in each."""
    rng, rows = np.random.default_rng(2), []
    for index in range(count):
        row = {"word": "cat", "idx": index, "label": bool(rng.random() < 0.4), "version": 1.1}
        for side in "12":
            words = f"{NOT_ASCII} {SENTENCES[rng.integers(len(SENTENCES))]}".split()
            place = int(rng.integers(len(words)))
            start = len(" ".join([*words[:place], ""]))
            row |= {f"sentence{side}": " ".join(words), f"start{side}": start, f"end{side}": start + len(words[place])}
        rows.append(row)
    return rows


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def write_fields(path, rows):
    """Files of the original distribution."""
    lines = []
    for row in rows:
        indices = [len(row[f"sentence{side}"][: row[f"start{side}"]].split()) for side in "12"]
        lines.append("\t".join([row["word"], "N", "{}-{}".format(*indices), row["sentence1"], row["sentence2"]]))
    path.write_text("\n".join(lines) + "\n")
    gold = path.with_name(path.name.replace(".data.", ".gold."))
    gold.write_text("".join(f"{'FT'[row['label']]}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_masked(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(checkpoint):
    return bertjax.load(checkpoint)


@pytest.fixture(scope="module")
def results(model):
    return bertjax.senses(model, pair_rows(), progress=False)


def hidden_states(encoder, texts):
    """The hidden states of each sentence from the encoder's own call, without padding: `[sentences][layers]`."""
    calls = [encoder(np.array([text.input_ids])) for text in texts]
    return [[np.asarray(layer, np.float64)[0] for layer in call.hidden_states] for call in calls]


def by_transformers(checkpoint):
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(checkpoint, add_pooling_layer=False).eval()

    def encoder(ids):
        with torch.no_grad():
            return model(torch.tensor(ids), output_hidden_states=True)

    return encoder


def cosines_of(encoder, tokenizer, rows):
    """The cosines of the words, and of the means of all other tokens, by layer."""
    sides = []
    for side in "12":
        texts, vectors = tokenizer.encode([row[f"sentence{side}"] for row in rows]), []
        for row, text, layers in zip(rows, texts, hidden_states(encoder, texts), strict=True):
            start, end = row[f"start{side}"], row[f"end{side}"]
            pieces = [place for place, span in enumerate(text.offsets) if span[1] and start <= span[0] < end]
            others = sorted({*range(1, len(text) - 1)} - {*pieces})
            vectors.append([[layer[chosen].mean(axis=0) for chosen in (pieces, others)] for layer in layers])
        sides.append(np.array(vectors))
    norms = np.linalg.norm(sides, axis=-1).prod(axis=0)
    return ((sides[0] * sides[1]).sum(axis=-1) / norms).transpose(2, 1, 0)


def areas_of(cosines, same):
    return [roc_auc_score(same, layer) for layer in cosines]


def scores(results, name):
    rows = results.rows_of(name)
    return [rows[0].base, *(row.score for row in rows)]


@pytest.mark.needs_torch
def test_results_are_those_of_transformers(checkpoint, model, results):
    rows = pair_rows()
    same = np.array([row["label"] for row in rows])
    cosines, others = cosines_of(by_transformers(checkpoint), model.tokenizer, rows)
    random, _ = cosines_of(random_encoder(model), model.tokenizer, rows)
    areas, by_random = areas_of(cosines, same), areas_of(random, same)
    np.testing.assert_allclose(scores(results, "auc"), areas)
    np.testing.assert_allclose(scores(results, "above_random")[1:], np.subtract(areas, by_random)[1:], atol=1e-12)
    separations = [layer[same].mean() - layer[~same].mean() for layer in cosines]
    np.testing.assert_allclose(scores(results, "separation"), separations, atol=1e-6)
    hits = [threshold_hits(layer, same).mean() for layer in cosines]
    np.testing.assert_allclose(scores(results, "accuracy"), hits)
    found = results.summary["senses"]
    assert (found["pairs"], found["majority"]) == (len(rows), max(same.mean(), 1 - same.mean()))
    controls = [*found["layers"].values()]
    np.testing.assert_allclose([layer["random_auc"] for layer in controls], by_random)
    np.testing.assert_allclose([layer["context_auc"] for layer in controls], areas_of(others, same))


def test_all_formats_give_the_same(model, results, tmp_path):
    rows = pair_rows()
    for data in (
        write_jsonl(tmp_path / "val.jsonl", rows),
        write_fields(tmp_path / "dev.data.txt", rows),
        pd.DataFrame(rows),
        [{**row, "label": int(row["label"])} for row in rows],
    ):
        found = bertjax.senses(model, data, progress=False)
        assert [row.score for row in found.rows] == [row.score for row in results.rows]


def test_positions_are_characters_of_any_alphabet(tmp_path):
    rows = pair_rows(8)
    for data in (rows, write_jsonl(tmp_path / "val.jsonl", rows), write_fields(tmp_path / "dev.data.txt", rows)):
        examples = read_sense_pairs(data)
        assert examples.labels.tolist() == [row["label"] for row in rows]
        for row, text, content in zip(rows, examples.second, examples.content, strict=True):
            start, end = content.targets[1]
            assert text[start:end] == row["sentence2"][row["start2"] : row["end2"]]


def test_saved_results_have_the_positions(model, results, tmp_path):
    path = write_jsonl(tmp_path / "val.jsonl", pair_rows())
    bertjax.senses(model, path, output=tmp_path / "found", progress=False)
    again = bertjax.read_results(tmp_path / "found")
    assert again.summary["senses"] == results.summary["senses"]
    assert again.summary["analysis"]["options"]["pairs"] == str(path)
    first = json.loads((tmp_path / "found/examples.jsonl").read_text().splitlines()[0])
    row = pair_rows()[0]
    assert first["targets"] == [[row[f"start{side}"], row[f"end{side}"]] for side in "12"]


def test_words_that_truncation_removes_are_left_out(checkpoint, model, tmp_path, capsys):
    rows = pair_rows()
    ends = [max(len(row[f"sentence{side}"][: row[f"end{side}"]].split()) for side in "12") for row in rows]
    left = [row for row, end in zip(rows, ends, strict=True) if end <= LEFT]
    assert 2 < len(left) < len(rows)
    line = ["senses", "--model", str(checkpoint), "--max-length", "9", "--output", str(tmp_path / "out")]
    assert main([*line, "--data", str(write_jsonl(tmp_path / "val.jsonl", rows))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{len(rows) - len(left)} pairs whose word has no piece left out" in printed
    found, expected = (
        bertjax.read_results(tmp_path / "out"),
        bertjax.senses(model, left, max_length=9, progress=False),
    )
    assert found.summary["senses"] == expected.summary["senses"]
    assert scores(found, "auc") == scores(expected, "auc")


def test_sentences_of_one_word_have_no_context(model):
    rows = [{**row, "sentence2": "cats", "start2": 0, "end2": 4} for row in pair_rows()]
    found = bertjax.senses(model, rows, progress=False)
    assert {layer["context_auc"] for layer in found.summary["senses"]["layers"].values()} == {None}
    assert controls_of(found).endswith("mean of all other tokens of each sentence undefined")


def test_the_command_line_prints_the_controls(checkpoint, tmp_path, capsys):
    path = write_fields(tmp_path / "dev.data.txt", pair_rows())
    assert main(["senses", "--model", str(checkpoint), "--data", str(path), "--output", str(tmp_path / "out")]) == 0
    assert "the most frequent label has" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end1": 900}, r"val.jsonl, line 2: start1 \d+ and end1 900 contain no word of"),
        ({"start2": -1}, "line 2: start2 -1 and end2"),
        ({"start1": 4, "end1": 4}, "start1 4 and end1 4 contain no word"),
        ({"start1": 1, "end1": 2}, "start1 1 and end1 2 contain no word"),
        ({"start1": "x"}, "start1 'x'"),
        ({"label": "perhaps"}, "line 2: label 'perhaps' is neither true"),
        ({"label": None}, "line 2: label None is neither true"),
        ({"sentence1": 3}, "line 2: column 'sentence1' holds 3"),
    ],
)
def test_rows_that_are_no_pairs_are_refused(tmp_path, change, message):
    rows = pair_rows(3)
    rows[1] |= change
    with pytest.raises(DataError, match=message):
        read_sense_pairs(write_jsonl(tmp_path / "val.jsonl", rows))


def test_test_files_and_other_files_are_refused(model, tmp_path):
    rows = pair_rows(3)
    unlabelled = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    with pytest.raises(DataError, match=r"test.jsonl: no column 'label', as in the test file of SuperGLUE"):
        read_sense_pairs(write_jsonl(tmp_path / "test.jsonl", unlabelled))
    with pytest.raises(DataError, match="no column 'sentence1'"):
        read_sense_pairs([{"text": "the cat"}])
    (tmp_path / "lines.txt").write_text("the cat\n")
    with pytest.raises(DataError, match=r"lines.txt: give NAME.data.txt with NAME.gold.txt"):
        read_sense_pairs(tmp_path / "lines.txt")
    with pytest.raises(InputError, match="give pairs of sentences"):
        bertjax.senses(model, progress=False)
    with pytest.raises(InputError, match="senses need pairs with the same sense and pairs with different senses"):
        bertjax.senses(model, [{**row, "label": True} for row in rows], progress=False)


def test_original_files_that_do_not_fit_are_refused(tmp_path):
    path = write_fields(tmp_path / "dev.data.txt", pair_rows(3))
    gold, text = tmp_path / "dev.gold.txt", path.read_text()
    gold.write_text("T\nF\n")
    with pytest.raises(DataError, match=r"dev.gold.txt has 2 labels, but .*dev.data.txt has 3 pairs"):
        read_sense_pairs(path)
    gold.write_text("T\nX\nF\n")
    with pytest.raises(DataError, match=r"dev.data.txt, line 2: label 'X' is neither true"):
        read_sense_pairs(path)
    gold.unlink()
    with pytest.raises(DataError, match=r"dev.data.txt needs its labels: .*dev.gold.txt is missing"):
        read_sense_pairs(path)
    gold.write_text("T\nT\nF\n")
    lines = text.splitlines()
    for field, value, message in (
        (2, "0-99", "line 2: index 99 is not in"),
        (2, "0", "line 2: '0' is not the indices of the word in both sentences, such as 2-1"),
        (4, "a\tb", "line 2: 6 fields separated by tabs, expected 5"),
        (4, " ", "line 2: index"),
    ):
        fields = lines[1].split("\t")
        fields[field] = value
        path.write_text("\n".join([lines[0], "\t".join(fields), lines[2]]) + "\n")
        with pytest.raises(DataError, match=message):
            read_sense_pairs(path)
