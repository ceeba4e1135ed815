"""Contrasts: the share of a score that patches and paths restore, compared with single model calls."""

import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import bertjax
from bertjax import cli, collate
from bertjax.analyses import patch_paths
from bertjax.analyses.patching.contrasts import EncodedContrasts
from bertjax.analyses.patching.patches import patching_table
from bertjax.data import Tokenizer, draw
from bertjax.errors import BertjaxError, ConfigError, DataError
from bertjax.interventions import SWEPT, readouts
from bertjax.results import show_table
from tests.browser import assert_quiet, browser_needed, rows_of, start_browser, text_of, wait_for
from tests.factories import add_tokenizer, make_masked
from tests.family_models import saved_by_torch

SMALL = Path(__file__).parents[2] / "experiments/data/small_mlm"
RELATIVE = ("deberta-v2", "modernbert")  # families whose attention depends on distances between tokens


# Of the tiny models' words. A random embedder may find either text of a contrast more like the second: where that
# matters, `right_way_round` puts the more similar one first.
PAIRS = [
    {"clean": "the cat sat near a door", "corrupted": "the dog sat near a door", "second": "an old cat slept"},
    {"clean": "a man ran home", "corrupted": "a cat ran home", "second": "he ran"},
    {"clean": "red doors sat on the mat", "corrupted": "red cats sat on the mat", "second": "doors are old"},
    {"clean": "the cat sat", "corrupted": "the cat sat near an old door", "second": "cats sleep"},
]


def right_way_round(directory, rows):
    """The contrasts with the text first that the embedder finds more like the second one."""
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)

    def embed(text):
        return np.asarray(model(collate(tokenizer.encode([text]))).sentence_embedding[0])

    found = []
    for row in rows:
        texts = sorted((row["clean"], row["corrupted"]), key=lambda text: -embed(text) @ embed(row["second"]))
        found.append({**row, "clean": texts[0], "corrupted": texts[1]})
    return found


def other_way_round(row):
    return {**row, "clean": row["corrupted"], "corrupted": row["clean"]}


@pytest.fixture(scope="module")
def patched(embedder, tmp_path_factory):
    path = tmp_path_factory.mktemp("patching")
    file = path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in right_way_round(embedder, PAIRS)))
    return bertjax.patch(embedder, file, output=path / "out", progress=False), path


def test_all_that_differs_in_the_embeddings_restores_all(patched):
    results, _ = patched
    summary = results.summary["patching"]
    assert summary["spans"] == ["first", "before", "changed", "after", "special"]
    assert summary["places"] == ["hidden_states", "attention_outputs", "feed_forward_outputs"]
    assert len(results.names) == 3 * 2 * 5 - 4  # before layer 0 texts differ at one span alone
    rows = dict(zip(results.names, results.rows_of("restored"), strict=True))
    assert rows["hidden_states 0 at changed"].score == pytest.approx(1, abs=1e-6)
    assert "hidden_states 0 at before" not in rows
    scores = dict(zip(results.names, results.rows_of("score"), strict=True))
    for name, row in rows.items():
        expected = (scores[name].score - summary["own_score"]) / (summary["donor_score"] - summary["own_score"])
        assert row.score == pytest.approx(expected, abs=1e-6)


def test_the_score_of_an_embedder_is_the_similarity(patched, embedder):
    results, _ = patched
    model, tokenizer = bertjax.load(embedder), Tokenizer.from_pretrained(embedder)
    rows = right_way_round(embedder, PAIRS[:3])
    vectors = [
        np.stack([np.asarray(model(collate(tokenizer.encode([row[name]])))["sentence_embedding"][0]) for row in rows])
        for name in ("clean", "corrupted", "second")
    ]
    summary = results.summary["patching"]
    assert summary["donor_score"] == pytest.approx((vectors[0] * vectors[2]).sum(-1).mean(), abs=1e-6)
    assert summary["own_score"] == pytest.approx((vectors[1] * vectors[2]).sum(-1).mean(), abs=1e-6)


def test_patches_are_read_plotted_and_shown(patched, tmp_path):
    results, path = patched
    assert bertjax.read_results(path / "out").summary["patching"] == results.summary["patching"]
    figure = results.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == [
        "residual stream, before the layer",
        "what attention adds",
        "what the feed-forward layer adds",
    ]
    assert results.plot("patches", metric="score").axes
    assert cli.main(["report", str(path / "out")]) == 0
    assert cli.main(["show", str(path / "out")]) == 0


@pytest.mark.integration
@browser_needed
def test_the_page_shows_the_grids_and_what_cells_did(patched):
    results, _ = patched
    browser = start_browser()
    try:
        browser.get(results.report().as_uri())
        wait_for(lambda: browser.execute_script("return document.body.dataset.ready"))
        cells = browser.execute_script("return document.querySelectorAll('#overview .cell').length")
        assert cells == len(results.names)
        assert "Share restored is above 0 for" in text_of(browser, "#sentence")
        assert len(rows_of(browser, "table")) == len(results.names)
        assert_quiet(browser)
    finally:
        browser.quit()


def test_the_other_direction_loses_what_this_one_restores(embedder):
    both = {
        into: bertjax.patch(embedder, PAIRS, sites=["hidden_states"], into=into, progress=False)
        for into in ("corrupted", "clean")
    }
    one, other = (dict(zip(found.names, found.rows_of(), strict=True)) for found in both.values())
    assert both["clean"].metric == "lost"
    assert one["hidden_states 0 at changed"].score == pytest.approx(1, abs=1e-6)
    assert other["hidden_states 0 at changed"].score == pytest.approx(1, abs=1e-6)
    ends = [found.summary["patching"] for found in both.values()]
    assert ends[0]["own_score"] == pytest.approx(ends[1]["donor_score"], abs=1e-6)


NOUNS = ("house", "school", "river", "station", "road", "town")


def test_heads_and_tokens_of_a_masked_model():
    template = "the {} near the river [MASK] built in the city ."
    rows = [
        {"template": template, "clean": noun, "corrupted": f"{noun}s", "good": "was", "bad": "were"} for noun in NOUNS
    ]
    rows[2]["corrupted"] = "unbelievablenesses"  # of another number of pieces
    found = bertjax.patch(SMALL, rows[:5], sites=["head_outputs", "keys"], heads=["1.1", "3.7"], progress=False)
    summary = found.summary["patching"]
    assert found.summary["data"]["examples"] == 4
    assert summary["spans"][:3] == ["0 [CLS]", "1 the", "2 house/houses ..."]
    assert summary["spans"][6] == "6 [MASK]"
    assert len(found.names) == 2 * 2 * 13 - 12  # in the last layer heads act at [MASK], and keys at all tokens
    assert {"1.1 at 0", "keys 3.7 at 6", "3.7 at 6"} <= {*found.names}
    assert found.examples[0]["beside"] == {"good": "was", "bad": "were"}
    model, tokenizer = bertjax.load(SMALL), Tokenizer.from_pretrained(SMALL)
    texts = [template.replace("{}", noun) for noun in NOUNS[:1] + NOUNS[1:2] + NOUNS[3:5]]
    chances = jax.nn.log_softmax(model(**collate(tokenizer.encode(texts))).logits[:, 6], axis=-1)
    good, bad = (tokenizer.encode([word])[0].input_ids[1] for word in ("was", "were"))
    assert summary["donor_score"] == pytest.approx(float((chances[:, good] - chances[:, bad]).mean()), abs=1e-5)


AGREEING = [
    {
        "template": "the {} near a door [MASK] home",
        "clean": clean,
        "corrupted": corrupted,
        "good": "sat",
        "bad": "ran",
    }
    for clean, corrupted in (("cat", "mat"), ("dog", "old"), ("man", "red"))
]


def test_paths_of_contrasts_are_scored_as_patches_are(tmp_path):
    masked, receivers = make_masked(tmp_path), {"queries": ["1.2"], "values": ["1.2", "1.0"]}
    found = bertjax.patch_paths(masked, AGREEING, receivers=receivers, into="clean", progress=False)
    assert found.names == ["0.0", "0.1", "0.2"]
    summary = found.summary["patching"]
    assert summary["receivers"] == receivers
    assert found.kind == "head"
    model, tokenizer = bertjax.load(masked), Tokenizer.from_pretrained(masked)
    good, bad = (tokenizer.encode([word])[0].input_ids[1] for word in ("sat", "ran"))
    batch, sources = (
        collate(tokenizer.encode([row["template"].replace("{}", row[name]) for row in AGREEING]))
        for name in ("clean", "corrupted")
    )
    senders, logits = patch_paths(model, batch, sources, receivers, masked_logits, senders=["0.1", "0.2"])
    assert senders == [(0, 1), (0, 2)]
    expected = (logits[..., good] - logits[..., bad]).mean(axis=1)
    scores = dict(zip(found.names, found.rows_of("score"), strict=True))
    assert [scores[name].score for name in ("0.1", "0.2")] == pytest.approx(expected.tolist(), abs=1e-5)
    ends = [np.asarray(masked_logits(model(part))) for part in (batch, sources)]
    target, source = ((end[:, good] - end[:, bad]).mean() for end in ends)
    shares = dict(zip(found.names, found.rows_of("lost"), strict=True))
    assert shares["0.1"].score == pytest.approx((expected[0] - target) / (source - target), abs=1e-4)
    assert found.plot().axes


def masked_logits(output):
    return output.logits[:, 6]


@pytest.mark.integration
def test_paths_of_an_embedder_and_on_the_command_line(embedder, tmp_path, capsys):
    rows = PAIRS[:3]
    found = bertjax.patch_paths(embedder, rows, receivers={"values": ["1.1"]}, heads=["0.0", "0.2"], progress=False)
    model, tokenizer = bertjax.load(embedder), Tokenizer.from_pretrained(embedder)
    for number, name in enumerate(found.names):
        similar = []
        for row in rows:  # one by one, without padding
            batch, sources, second = (collate(tokenizer.encode([row[one]])) for one in ("corrupted", "clean", "second"))
            embedding = patch_paths(
                model, batch, sources, {"values": ["1.1"]}, readouts.sentence_embedding, senders=[name]
            )[1][0, 0]
            similar.append(embedding @ np.asarray(model(second).sentence_embedding[0]))
        assert found.rows_of("score")[number].score == pytest.approx(np.mean(similar), abs=1e-5)
    words = ["--template", "a {} ran", "--words", "man/dog", "old/cat", "--second", "he ran home"]
    line = [
        "patch",
        "--model",
        str(embedder),
        *words,
        "--paths-to",
        "keys=1.1,1.2",
        "values=1.2",
        "--heads",
        "0.1",
        "--output",
        str(tmp_path / "p"),
    ]
    assert cli.main(line) == 0
    assert "picture in" in capsys.readouterr().out
    summary = bertjax.read_results(tmp_path / "p").summary
    assert summary["patching"]["receivers"] == {"keys": ["1.1", "1.2"], "values": ["1.2"]}
    assert summary["data"]["source"] == "template 'a {} ran' (2 contrasts)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--template", "A {} runs."], "--template and --words go together"),
        (["--good", "was"], "--good goes with --template"),
        (["--template", "A {} runs.", "--words", "man"], "'man' is no pair of words"),
        (["--template", "A {}.", "--words", "a/b", "--data", "x.tsv"], "not both"),
        (["--freeze-feed-forward"], "is of paths"),
        (["--paths-to", "queries"], "names no receivers"),
        (["--paths-to", "weights=1.1"], "a receiver"),
        (["--paths-to", "keys=1.1", "--spans", "tokens"], "leave them out"),
        ([], "give contrasts"),
    ],
)
def test_commands_that_cannot_be_are_refused(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["patch", *line]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_grid_resumes(embedder, tmp_path):
    options = {"sites": ["head_outputs"], "heads": ["0.1", "1.2"], "output": tmp_path / "out"}
    whole = bertjax.patch(embedder, PAIRS, **{**options, "output": None}, progress=False)
    calls = []

    def interrupt(done, total):
        calls.append(done)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, BertjaxError)):
        bertjax.patch(embedder, PAIRS, **options, progress=interrupt)
    found = bertjax.patch(embedder, PAIRS, **options, progress=False)
    assert [row.score for row in found.rows_of()] == [row.score for row in whole.rows_of()]
    assert not (tmp_path / "out" / "patches").exists()


def test_ids_are_kept_and_a_limit_draws(embedder, tmp_path):
    rows = [{**PAIRS[0], "id": number} for number in (7, 3, 5, 9)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, limited = (
        bertjax.patch(embedder, data, sites=["hidden_states"], limit=2, seed=1, progress=False) for data in (file, rows)
    )
    ids = [[example["id"] for example in found.examples] for found in (whole, limited)]
    assert ids == [[rows[number]["id"] for number in draw(4, 2, 1)]] * 2
    assert whole.summary["mode"]["title"] == "patched from the other text"


def test_paths_refuse_what_they_do_not_have(embedder):
    options = {"receivers": {"keys": ["0.1"]}, "progress": False}
    with pytest.raises(BertjaxError, match="no head comes before the receivers"):
        bertjax.patch_paths(embedder, PAIRS[:3], **options)
    with pytest.raises(BertjaxError, match="attention is not an option of this call"):
        bertjax.patch_paths(embedder, PAIRS[:3], **options, attention="fused")


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    "kind",
    ["masked words", "embedder", "roberta", *(pytest.param(one, marks=pytest.mark.integration) for one in RELATIVE)],
)
def test_cells_that_are_left_out_would_change_nothing(kind, embedder, tmp_path, monkeypatch):
    places = [*SWEPT]
    if kind == "masked words":
        model = make_masked(tmp_path / "model")
        rows = [
            {"clean": "the cat [MASK] near a door", "corrupted": "the dog [MASK] near a door"},
            {"clean": "an old man ran [MASK] .", "corrupted": "an old cat ran [MASK] ."},
        ]
        rows = [{**row, "good": "sat", "bad": "home"} for row in rows]
    elif kind == "embedder":
        model, rows, places = embedder, PAIRS[:3], ["hidden_states", "queries", "attention_outputs"]
    else:
        size = {"vocab_size": 64, "max_position_embeddings": 60, "pad_token_id": 0, "num_labels": 2}
        model = saved_by_torch(kind, "sequence classification", tmp_path / "model", **size)
        (add_tokenizer(model) / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
        rows = [{"clean": "a cat sat", "corrupted": "a dog sat"}, {"clean": "the door", "corrupted": "the mat"}]
    found = bertjax.patch(model, rows, sites=places, spans="regions", progress=False)
    monkeypatch.setattr(EncodedContrasts, "can_act", lambda *args: True)
    every = bertjax.patch(model, rows, sites=places, spans="regions", progress=False)
    shares = {row.name: row.score for row in every.rows_of()}
    left = {*shares} - {*found.names}
    assert left
    assert max(abs(shares[name]) for name in left) < 1e-5
    assert {row.name: row.score for row in found.rows_of()} == {
        name: pytest.approx(share, abs=1e-5) for name, share in shares.items() if name not in left
    }


def test_reversed_contrasts_are_reported_and_can_be_left_out(embedder, tmp_path, capsys):
    rows = right_way_round(embedder, PAIRS[:3])
    both_ways = [*rows, *map(other_way_round, rows[1:])]
    options = {"sites": ["hidden_states"], "spans": "all", "progress": False}
    whole, right = (bertjax.patch(embedder, both_ways, **options, only_right=only) for only in (False, True))
    assert whole.summary["patching"]["right_way"] == right.summary["patching"]["right_way"] == 3
    assert [found.summary["patching"]["other_way"] for found in (whole, right)] == [2, 0]
    assert right.rows_of()[0].score == pytest.approx(1)
    alone = bertjax.patch(embedder, rows, **options)
    scores = [[row.score for row in found.rows_of("score")] for found in (right, alone)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert [example["id"] for example in right.examples] == [0, 1, 2]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in both_ways))
    line = [
        "patch",
        "--model",
        str(embedder),
        "--data",
        str(file),
        "--sites",
        "hidden_states",
        "--spans",
        "all",
        "--output",
    ]
    assert cli.main([*line, str(tmp_path / "all")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 of 5 contrasts go the other way" in printed
    outputs = np.asarray(whole.outputs["outputs"])[0]
    assert f"in contrast {(outputs[:, 2] - outputs[:, 1]).argmin()}," in printed
    assert "contrasts cancel" in printed
    assert cli.main([*line, str(tmp_path / "right"), "--only-right"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "left out" in printed
    assert "cancel" not in printed
    with pytest.raises(DataError, match="no clean text scores above"):
        bertjax.patch(embedder, both_ways[3:], **options, only_right=True)


def test_the_reason_of_each_omitted_contrast_is_printed(embedder, tmp_path, capsys):
    rows = [
        {**PAIRS[0], "id": "a"},
        {**PAIRS[3], "id": "longer"},
        {**PAIRS[0], "corrupted": PAIRS[0]["clean"], "id": "same"},
        {**PAIRS[3], "id": "longer too"},
        {"clean": "a " * 40, "corrupted": "b " * 40, "second": "c", "id": "cut"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = ["patch", "--model", str(embedder), "--data", str(file), "--sites", "hidden_states", "--max-length", "20"]
    assert cli.main([*line, "--output", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "4 contrasts left out: 2 with texts of different numbers of tokens (first longer); 1 with two equal texts"
        in printed
    )
    assert "1 of more than 20 tokens (first cut)" in printed


@pytest.mark.integration
def test_other_patches_have_other_directories(embedder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    template = ["--model", str(embedder), "--template", "a {} sat", "--second", "a cat"]
    for more in ([], ["--spans", "all"], ["--into", "clean"], ["--paths-to", "values=1.1", "--heads", "0.1"]):
        arguments = [] if "--paths-to" in more else ["--sites", "hidden_states"]
        assert cli.main(["patch", *template, "--words", "cat/dog", *arguments, *more]) == 0
    assert cli.main(["patch", *template, "--words", "man/dog", "--sites", "hidden_states"]) == 0
    assert cli.main(["patch", *template, "--words", "man/dog", "--sites", "hidden_states"]) == 0  # there already
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 5
    assert sum(name.startswith(f"bertjax-{embedder.name}-contrasts-patching-") for name in names) == 4
    assert sum(name.startswith(f"bertjax-{embedder.name}-contrasts-paths-") for name in names) == 1


def test_few_contrasts_are_drawn_in_full_colours(patched):
    results, _ = patched
    texts = [text.get_text() for text in results.plot().texts]
    few = "3 contrasts: too few contrasts for a test of "
    assert any(few in text for text in texts)
    assert few in patching_table(results).caption
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(show_table(results))
    assert few in console.export_text()
    measured = results.sentence_of("score")
    assert measured.startswith("Patching one cell raises the score for ")
    assert any("grey: cannot act" in text for text in texts)
    with pytest.raises(BertjaxError, match="--figure patches"):
        results.plot("change")
    with pytest.raises(BertjaxError, match="has no layers, but cells"):
        results.plot("layers")
    caption = [text.get_text() for text in results.plot(metric="score").texts]
    assert "Similarity with the\nsecond text" in caption  # all of it except the scale
    changes = [text.get_text() for text in results.plot(metric="score").axes[0].texts]
    assert {len(change.partition(".")[2]) for change in changes} == {3}  # and not 0.2 everywhere


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrasts": ()}, "list of dicts: holds no examples"),
        ({"contrasts": [{"clean": "a"}]}, "need columns clean and corrupted"),
        ({"contrasts": [{"clean": "a b", "corrupted": "a c"}]}, "give a column second"),
        ({"contrasts": [{"clean": "a [MASK]", "corrupted": "b [MASK]", "good": "c", "bad": "d"}]}, "no masked-LM head"),
        ({"contrasts": PAIRS[3:]}, "no contrast can be patched: 1 with"),
        ({"contrasts": PAIRS, "sites": "weights"}, "weights cannot be patched in a grid"),
        ({"contrasts": PAIRS, "sites": []}, "one at least"),
        ({"contrasts": PAIRS, "spans": "words"}, "spans"),
        ({"contrasts": PAIRS, "spans": "tokens"}, "take --spans regions"),
        ({"contrasts": PAIRS, "into": "both"}, "into"),
        ({"contrasts": PAIRS, "heads": ["0.0"]}, "leave heads out"),
        ({"contrasts": PAIRS, "mode": "zero"}, "mode is not an option of this call"),
        ({"contrasts": [{**PAIRS[0], "template": "no place"}]}, "exactly once"),
    ],
)
def test_contrasts_that_cannot_be_patched_are_refused(options, message, embedder):
    with pytest.raises((BertjaxError, DataError, ConfigError), match=message):
        bertjax.patch(embedder, **options, progress=False)
