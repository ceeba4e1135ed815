"""The task `mlm`: log-probabilities of masked words equal those of PyTorch; texts are the units of statistics."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.cli import main
from bertjax.data import Tokenizer
from bertjax.engine import SweepResult
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.jobs import torch_reference
from bertjax.results import read_results
from bertjax.statistics import compute_statistics
from bertjax.tasks import form_named, load_examples
from bertjax.tasks.masked_words import mask_words
from tests.factories import make_masked, write_lines
from tests.tiny_models import comparable_environment, largest_difference


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_masked(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("lines") / "lines.txt")


@pytest.fixture(scope="module")
def ablated(model, lines, tmp_path_factory):
    """The results of a whole job, from the command line."""
    output = tmp_path_factory.mktemp("results") / "mlm"
    assert main(["ablate", "--model", str(model), "--task", "mlm", "--data", str(lines), "--output", str(output)]) == 0
    return read_results(output)


def test_a_text_file_is_a_text_in_each_line(lines):
    examples = load_examples("mlm", data=lines)
    assert len(examples) == 30
    assert examples.first[:2] == ("= the cat =", "the <unk> sat near-by a door")
    assert np.isnan(examples.labels).all()
    assert examples.task.name == "mlm"
    assert len(load_examples("masked-lm", limit=5)) == 5
    assert "sentences of QNLI" in load_examples("mlm").source


def test_texts_without_a_word_are_counted(model, tmp_path):
    """A blank text, and one of nothing but a line separator, do not refuse a file."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("the cat", " ", "\u2028", "a dog ran")))
    results = bertjax.ablate(model, "mlm", data=path, heads=["0.0"], progress=False)
    assert "2 texts without a word to mask (first 1)" in results.summary["data"]["source"]
    assert sorted({*results.outputs["units"].tolist()}) == [0, 3]


def masked_by_hand(directory, examples, seed):
    """Which words the job masks: 15 % of each text's, one at least, none unknown or special."""
    tokenizer = Tokenizer.from_pretrained(directory)
    encodings = tokenizer.encode([text.replace("<unk>", "[UNK]") for text in examples.first])
    found = []
    for example, encoding in enumerate(encodings):
        words = [place for place, token in enumerate(encoding.tokens) if token not in ("[CLS]", "[SEP]", "[UNK]")]
        count = max(1, round(0.15 * len(words)))
        chosen = np.random.default_rng([seed, example]).choice(words, count, replace=False)
        found.append((encoding.input_ids, sorted(chosen.tolist())))
    return tokenizer, found


def log_probabilities(reference, ids, hidden, mask):
    """Log-probability and rank of hidden words, by PyTorch."""
    import torch

    masked = torch.tensor([ids])
    masked[0, hidden] = mask
    with torch.no_grad():
        shares = torch.log_softmax(reference(masked).logits[0].double(), -1).numpy()
    return [(shares[place, ids[place]], 1 + (shares[place] > shares[place, ids[place]]).sum()) for place in hidden]


@pytest.mark.needs_torch
def test_outputs_and_scores_are_those_of_a_loop_in_pytorch(ablated, model, lines):
    """The base, and one run for each head with uniform attention."""
    loaded = bertjax.load(model)
    reference = torch_reference.load_torch(loaded, model)
    tokenizer, chosen = masked_by_hand(model, load_examples("mlm", data=lines), seed=0)
    arrays = ablated.outputs
    assert arrays["units"].tolist() == [number for number, (_, places) in enumerate(chosen) for _ in places]
    assert arrays["places"].tolist() == [place for _, places in chosen for place in places]
    assert arrays["labels"].tolist() == [ids[place] for ids, places in chosen for place in places]
    runs = [(None, arrays["base"]), *zip(ablated.names, arrays["outputs"], strict=True)]
    assert len(runs) == 7
    for name, outputs in runs:
        expected = []
        for ids, places in chosen:
            args = reference, ids, places, tokenizer.mask_token_id
            if name is None:
                expected += log_probabilities(*args)
            else:
                head = tuple(map(int, name.split(".")))
                real = np.ones((1, len(ids)), bool)
                with torch_reference.overridden_head(reference, loaded.config, head, "uniform", real):
                    expected += log_probabilities(*args)
        expected = np.array(expected)
        assert largest_difference(outputs[:, 0], expected[:, 0]) < 1e-5
        assert outputs[:, 1].tolist() == expected[:, 1].tolist()
        row = {one.metric: one for one in ablated.rows if name in (None, one.name)}
        scores = {metric: one.base if name is None else one.score for metric, one in row.items()}
        assert scores["cross_entropy"] == pytest.approx(-outputs[:, 0].astype(float).mean(), abs=1e-12)
        assert scores["word_accuracy"] == pytest.approx((expected[:, 1] == 1).mean(), abs=1e-12)
        assert scores["pseudo_perplexity"] == pytest.approx(np.exp(scores["cross_entropy"]), rel=1e-9)


def test_texts_are_drawn_not_words(ablated):
    arrays = ablated.outputs
    options = {"units": arrays["units"], "seed": 0}
    statistics = compute_statistics("cross_entropy", arrays["base"], arrays["outputs"], arrays["labels"], **options)
    rows = ablated.rows_of("cross_entropy")
    assert statistics.examples == rows[0].examples == 30 < len(arrays["units"])
    assert [row.low for row in rows] == statistics.low.tolist()
    assert [row.q for row in rows] == statistics.q.tolist()
    assert rows[0].interval == "t"


@pytest.mark.needs_torch
def test_every_word_is_masked_by_itself(model, lines):
    """The sum over a text is its pseudo-log-likelihood."""
    results = bertjax.ablate(model, "mlm", data=lines, every_word=True, heads=["0.1"], limit=4, progress=False)
    reference = torch_reference.load_torch(bertjax.load(model), model)
    tokenizer, arrays = Tokenizer.from_pretrained(model), results.outputs
    for number, example in enumerate(results.examples):
        ids = tokenizer.encode([example["first"].replace("<unk>", "[UNK]")])[0].input_ids
        places = [place for place in range(1, len(ids) - 1) if ids[place] != tokenizer.unk_token_id]
        expected = [log_probabilities(reference, ids, [place], tokenizer.mask_token_id)[0] for place in places]
        in_text = arrays["units"] == number
        assert arrays["places"][in_text].tolist() == places
        assert largest_difference(arrays["base"][in_text], np.array(expected)) < 1e-5
    assert results.kept == [example["id"] for example in results.examples]


def test_masked_words_are_the_same_for_the_same_seed_alone(model, lines):
    tokenizer = Tokenizer.from_pretrained(model)
    texts = tokenizer.encode(load_examples("mlm", data=lines).first)
    draws = [mask_words(tokenizer, texts, seed=seed, every_word=False)[1] for seed in (0, 0, 1)]
    assert draws[0].tokens.tolist() == draws[1].tokens.tolist() != draws[2].tokens.tolist()
    some = mask_words(tokenizer, texts[:10], seed=0, every_word=False)[1]
    assert some.tokens.tolist() == draws[0].tokens[draws[0].units < 10].tolist()
    with pytest.raises(InputError, match="no text has a word to mask"):
        mask_words(tokenizer, tokenizer.encode(["", "zzzz"]), seed=0, every_word=True)


@pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece"])
def test_all_but_special_tokens_and_unknown_words_are_masked(kind, model):
    """Also a space that is a token by itself, which byte-level tokenizers place at no character."""
    if kind == "WordPiece":
        tokenizer, text = Tokenizer.from_pretrained(model), "the cat zzz sat [SEP] [MASK]"
    else:
        tokenizer, text = Tokenizer(byte_level(), NAMES), "the  cat <mask> <sep>"
    (encoding,) = tokenizer.encode([text])
    hidden, targets = mask_words(tokenizer, [encoding], seed=0, every_word=True)
    special = {"[CLS]", "[SEP]", "[MASK]", "[UNK]", *NAMES.values()}
    places = [place for place, token in enumerate(encoding.tokens) if token not in special]
    assert targets.tokens.tolist() == places
    assert len(places) == {"WordPiece": 3, "byte-level BPE": 11}[kind]
    assert [text.input_ids.count(tokenizer.mask_token_id) for text in hidden] == [2] * len(places)
    assert {text.tokens[place] for text, place in zip(hidden, places, strict=True)} == {tokenizer.mask_token}


NAMES = {
    name: f"<{name.removesuffix('_token')}>"
    for name in ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token")
}


def byte_level():
    """A tokenizer whose words are bytes, as RoBERTa's without merges."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*NAMES.values(), *letters])}
    backend = Backend(models.BPE(vocabulary, [], unk_token=NAMES["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.add_special_tokens([*NAMES.values()])
    ends = [(NAMES[name], vocabulary[NAMES[name]]) for name in ("sep_token", "cls_token")]
    backend.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True)
    return backend


def test_show_plot_report_and_plan_read_it(ablated, model, lines, tmp_path, capsys):
    directory = str(ablated.directory)
    assert main(["show", directory]) == 0
    assert "scores and changes in nats; lower is better" in capsys.readouterr().out
    assert main(["plot", directory, "-o", str(tmp_path / "map.png")]) == 0
    assert main(["report", directory, "-o", str(tmp_path / "page.html")]) == 0
    assert "mean log-probability" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert main(["plan", "--model", str(model), "--task", "mlm", "--data", str(lines), "--every-word"]) == 0
    tokenizer = Tokenizer.from_pretrained(model)
    texts = tokenizer.encode([example["first"].replace("<unk>", "[UNK]") for example in ablated.examples])
    words = sum(len(text) - 2 - text.tokens.count("[UNK]") for text in texts)
    assert re.search(rf"examples +{words}, ", capsys.readouterr().out)


def test_what_does_not_fit_is_refused_in_a_line(model, lines, classifier, embedder, tmp_path):
    with pytest.raises(ConfigError, match="BertForMaskedLM has no output for qnli-sample: give --task mlm, "):
        bertjax.ablate(model, progress=False)
    for other in (classifier, embedder):
        with pytest.raises(ConfigError, match="has no masked-LM head, which mlm needs"):
            bertjax.ablate(other, "mlm", progress=False)
    with pytest.raises(InputError, match="accuracy cannot score masked words of mlm: choose cross_entropy or word"):
        bertjax.ablate(model, "mlm", metric="accuracy", progress=False)
    with pytest.raises(InputError, match="--every-word is an option of mlm, not of qnli-sample"):
        bertjax.ablate(classifier, every_word=True, progress=False)
    with pytest.raises(InputError, match="--prompts are for texts with labels and similarities: mlm has none"):
        bertjax.ablate(model, "mlm", data=lines, prompts=["a prompt"], progress=False)
    with pytest.raises(DataError, match="mlm has no labels in a file"):
        load_examples("mlm", data=lines, label_names=["a", "b"])
    with pytest.raises(DataError, match="is a directory; mlm needs a file of texts"):
        load_examples("mlm", data=tmp_path)
    assert main(["ablate", "--model", str(model), "--task", "mlm", "--engine", "reference"]) == 2


def test_ranks_neither_hide_nor_make_an_effect(model, lines, tmp_path):
    """A rank is much larger than a log-probability: an effect of 0.001 nats is not an effect of rounding."""
    results = bertjax.ablate(model, "mlm", data=lines, heads=["0.0", "1.2"], progress=False)
    assert results.summary["without_effect"] == []
    swept = SweepResult(np.array([[-1.0, 30_000.0]]), np.array([[[-1.001, 30_000.0]]]))
    assert form_named("words").sizes(swept)[1].tolist() == [[[-1.001]]]
    assert form_named("logits").sizes(swept)[1] is swept.outputs
    coarse = bertjax.ablate(model, "mlm", data=lines, heads=["0.0"], precision="bfloat16", progress=False)
    assert 0 < coarse.summary["float32"]["largest_output_difference"] < 1


TWO_DEVICES = """
import json, sys
import jax, bertjax
assert len(jax.devices()) == 2
results = bertjax.ablate(sys.argv[1], "mlm", data=sys.argv[2], progress=False)
print(json.dumps(results.outputs["outputs"].tolist()))
"""


@pytest.mark.integration
def test_two_devices_give_the_same(ablated, model, lines):
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(model), str(lines)],
        env=comparable_environment(2),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.array(json.loads(done.stdout.strip().splitlines()[-1]))
    assert largest_difference(found[..., 0], ablated.outputs["outputs"][..., 0]) < 2e-5
