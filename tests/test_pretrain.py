"""Pre-training: texts and what is held out of them, the vocabulary, hidden words, going on after a kill, the model."""

import gzip
import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

import bertjax
from bertjax import BertConfig, BertForMaskedLM, Tokenizer
from bertjax.errors import DataError
from bertjax.tasks import MASKED, encode_examples, load_examples
from experiments.pretrain import batch_of_step, main
from experiments.pretraining.corpus import Text, read_corpus
from experiments.pretraining.masking import Rows, encode_texts
from experiments.pretraining.vocabulary import SPECIAL, make_tokenizer, train_vocabulary
from experiments.pretraining.words import read_words, score_frequencies
from experiments.training.state import RunDirectory
from experiments.training.trainer import Recipe, learning_rates
from tests.tiny_models import largest_difference, random_model

pytestmark = pytest.mark.integration

TEST = "the old king of the north kept seven black horses in a stable"
NAMES = ("anna", "bert", "carla", "dora", "emil", "frida", "gustav", "hanna")
THINGS = ("door", "horse", "river", "letter", "window", "garden", "bridge", "kettle")
SHIPPED = Path(__file__).parent.parent / "experiments" / "data" / "small_mlm"
SMALL = "--vocabulary 120 --layers 2 --hidden 12 --heads 3 --mlp 20 --length 24 --batch-size 4 --learning-rate 0.01"


def sentences(rng, count):
    """Sentences in which the second name is always the first one's."""
    names, things, verbs = rng.choice(NAMES, count), rng.choice(THINGS, count), rng.choice(["sold", "saw"], count)
    rows = zip(names, things, verbs, range(count), strict=True)
    return [f"{name} {verb} the {thing} at {hour} and then {name} went home" for name, thing, verb, hour in rows]


def write_data(directory, count=160):
    """A directory of made-up texts in the layout and formats that the program reads."""
    several = sentences(np.random.default_rng(5), 5 * count)
    wiki, questions, answers, contexts, web = (several[start::5] for start in range(5))
    files = {
        "wikitext2/valid.txt.gz": [" = Doors = ", " ", *wiki, f"They say {TEST} .", "marches of two @-@ day <unk>"],
        "wikitext2/test.txt.gz": [" = Horses = ", f"{TEST} and fed them"],
        "glue/QNLI/dev.tsv": ["index\tquestion\tsentence\tlabel"]
        + [f"{n}\twho {q}?\t{a}\tentailment" for n, (q, a) in enumerate(zip(questions, answers, strict=True))],
        "xquad/xquad.en.json.gz": [json.dumps({"data": [{"paragraphs": [{"context": text} for text in contexts]}]})],
        "ud/UD_English-EWT/en_ewt-ud-train.conllu.gz": [f"# text = {text}\n1\tx\t_\n" for text in web],
        "blimp/transitive.jsonl": [json.dumps({"sentence_good": web[0], "sentence_bad": "he is is"})],
    }
    for name, lines in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def corpus(data):
    return read_corpus(data)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return make_tokenizer(train_vocabulary([text.whole for text in corpus.train], 120), 24)


@pytest.fixture
def rows(corpus, tokenizer):
    return Rows.of(tokenizer, encode_texts(tokenizer, corpus.train, 24), 24)


@pytest.fixture
def command(data, tmp_path):
    """The options of a short run, and where it writes."""
    output = tmp_path / "out"
    return [*f"{SMALL} --data {data} --steps 10 --save-every 4 --output".split(), str(output)], output


def contents(directory):
    """All files of a run by name."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.*")}


def runs_of_eight(texts):
    """All runs of eight words."""
    several = [text.lower().replace("?", "").split() for text in texts]
    return {tuple(words[start : start + 8]) for words in several for start in range(len(words) - 7)}


def test_nothing_is_learnt_from_that_is_held_out_or_measured_by(corpus, data):
    train, held_out = ({text.whole for text in texts} for texts in (corpus.train, corpus.held_out))
    assert 3 <= len(held_out) <= 0.06 * len(train)
    lines = [line for text in train for line in text.splitlines()]
    judged = [line for text in held_out for line in text.splitlines()]
    web = json.loads((data / "blimp" / "transitive.jsonl").read_text())["sentence_good"]
    measured = [TEST, web]
    assert not runs_of_eight(lines) & runs_of_eight([*judged, *measured])
    assert not runs_of_eight(judged) & runs_of_eight(measured)
    assert corpus.left_out["wikitext2"] >= 1
    assert corpus.left_out["ewt"] >= 1
    assert {"marches of two-day <unk>", "= Doors ="} <= {text.strip() for text in lines}
    assert {text.origin for text in corpus.train} == {"wikitext2", "qnli dev", "xquad", "ewt"}
    pairs = [text for text in corpus.train if text.second is not None]
    assert 0.3 < len(pairs) / 160 < 0.7
    assert all(text.first.startswith("who ") and text.first.endswith("?") for text in pairs)


def test_what_is_held_out_does_not_depend_on_other_sources(corpus, data, tmp_path):
    shutil.copytree(data / "glue", tmp_path / "glue")
    alone = read_corpus(tmp_path)
    assert set(alone.held_out) == {text for text in corpus.held_out if text.origin == "qnli dev"} != set()
    assert alone.sha256 != corpus.sha256


def test_the_vocabulary_is_the_same_each_time_and_lower_case(corpus, tokenizer):
    texts = [text.whole.replace("anna", "ÀNNA") for text in corpus.train]
    pieces = train_vocabulary(texts, 120)
    assert tuple(pieces[:5]) == SPECIAL
    assert len(set(pieces)) == len(pieces) <= 120
    assert {"anna", "door", "##d"} <= set(pieces)
    assert all(train_vocabulary(texts, 120) == pieces for _ in range(3))
    assert all(piece == piece.lower() for piece in pieces[5:])
    (encoding,) = tokenizer.encode(["Ánna SAW the døor"])
    assert encoding.tokens == ("[CLS]", "anna", "saw", "the", "[UNK]", "[SEP]")
    with pytest.raises(DataError, match="30 word pieces have no room for"):
        train_vocabulary(texts, 30)


def test_long_texts_are_split_and_unknown_words_reported(tokenizer):
    long = " ".join(THINGS) + " <unk> " + " ".join(NAMES * 5)
    parts = encode_texts(tokenizer, [Text(long, None, ""), Text("who saw?", "anna saw " + long, "")], 24)
    *divided, pair = parts
    assert all(len(part) <= 24 for part in parts)
    assert len(divided) == 4
    assert max(map(len, divided)) - min(map(len, divided)) <= 1
    (whole,) = tokenizer.encode([long.replace("<unk>", "[UNK]")])
    assert [token for part in divided for token in part.input_ids[1:-1]] == list(whole.input_ids[1:-1])
    assert whole.input_ids.count(tokenizer.unk_token_id) == 1
    assert len(pair) == 24
    assert set(pair.token_type_ids) == {0, 1}


def test_words_are_hidden_as_in_bert(rows, tokenizer):
    """15 % of a row's words; 80 % of them are [MASK], 10 % another word, 10 % themselves; no special token."""
    kinds, places = Counter(), range(len(rows))
    for step in range(30):
        batch = rows.hide(places, len(rows), (0, step))
        original = rows.packed.input_ids
        real = batch["share"] > 0
        words = (~np.isin(original, rows.special)).sum(axis=1)
        assert np.array_equal(real.sum(axis=1), np.round(0.15 * words))
        assert not np.isin(batch["targets"][real], rows.special).any()
        assert np.array_equal(batch["targets"], np.take_along_axis(original, batch["at"], axis=1))
        shown = np.take_along_axis(batch["input_ids"], batch["at"], axis=1)
        assert (batch["input_ids"] != original).sum() == (shown != batch["targets"])[real].sum()
        masked, same = shown[real] == tokenizer.mask_token_id, shown[real] == batch["targets"][real]
        assert not np.isin(shown[real][~masked], rows.special).any()
        kinds.update(mask=int(masked.sum()), same=int(same.sum()), all=int(real.sum()))
    assert abs(kinds["mask"] / kinds["all"] - 0.8) < 0.03
    assert abs(kinds["same"] / kinds["all"] - 0.1) < 0.03


def test_masking_depends_on_the_seed_and_not_on_padding_rows(rows):
    first, again, other = (rows.hide((3, 5), 4, seed) for seed in ((1, 2, 7), (1, 2, 7), (1, 2, 8)))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["at"], other["at"])
    assert first["input_ids"].shape == (4, 24)
    assert first["share"][:2].sum() > 0
    assert first["share"][2:].sum() == 0


def test_an_epoch_has_each_row_once_and_steps_mask_other_words(rows, tokenizer):
    recipe, steps = Recipe(batch_size=7, seed=3), -(-len(rows) // 7)
    epochs = [[batch_of_step(rows, recipe, step, 8) for step in range(start, start + steps)] for start in (0, steps)]
    for batches in epochs:
        counted = [batch["segments"][batch["share"].any(axis=1)] for batch in batches]
        assert np.array_equal(sort_rows(np.concatenate(counted)), sort_rows(rows.packed.segments))
    (first, *_), (later, *_) = epochs
    assert not np.array_equal(first["segments"], later["segments"])
    alone = Rows.of(tokenizer, tokenizer.encode(["anna saw the door at 5 and then anna went home"]), 24)
    hidden = {batch_of_step(alone, Recipe(batch_size=1), step, 1)["input_ids"].tobytes() for step in range(9)}
    assert len(hidden) > 3


def sort_rows(array):
    """The rows of an array in an order that does not depend on the one that they have."""
    return array[np.lexsort(array.T)]


def test_texts_of_a_row_do_not_see_each_other(corpus, tokenizer):
    """What is read of a word in a row of several texts is what the model says of the text by itself."""
    encodings = tokenizer.encode(["anna saw the door", "emil sold it", "a river"])
    rows = Rows.of(tokenizer, encodings, 24)
    assert len(rows) == 1
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 7}
    config = BertConfig(vocab_size=tokenizer.vocab_size, **sizes, max_position_embeddings=24, initializer_range=0.3)
    model = random_model(BertForMaskedLM, config)
    at = np.arange(24, dtype=np.int32)[None]
    names = ("input_ids", "token_type_ids", "position_ids", "segments")
    batch = {name: getattr(rows.packed, name) for name in names}
    found = read_words(model, {**batch, "at": at, "targets": batch["input_ids"]}, lambda x, rate: x)[0]
    for place, start in enumerate(rows.packed.starts[0]):
        encoding = encodings[rows.packed.examples[0, place]]
        ids = np.array([encoding.input_ids])
        scores = jax.nn.log_softmax(model(ids).logits)
        alone = np.take_along_axis(np.asarray(scores), ids[:, :, None], axis=2)[0, :, 0]
        assert largest_difference(found[start : start + len(encoding), 0], alone) < 1e-5


def stop_after(monkeypatch, stretches):
    """Interrupt a run when so many stretches are saved, or, given 0.5 more, just before the next one is."""
    save, done = RunDirectory.save_state, []

    def save_state(self, trees, several):
        if len(done) + 0.5 == stretches:
            raise KeyboardInterrupt
        save(self, trees, several)
        done.append(1)
        if len(done) == stretches:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "save_state", save_state)


def test_an_interrupted_run_goes_on_to_the_same_bytes(command, tmp_path, monkeypatch, capsys):
    arguments, output = command
    assert main(arguments) == 0
    whole = contents(output)
    assert {"last/model.safetensors", "last/vocab.txt", "last/tokenizer.json", "result.json"} <= set(whole)
    assert "state.safetensors" not in whole
    for stretches in (1, 1.5, 2, 3):
        arguments[-1] = str(tmp_path / f"killed {stretches}")
        with monkeypatch.context() as patch:
            stop_after(patch, stretches)
            assert main(arguments) == 130
        assert not (tmp_path / f"killed {stretches}" / "result.json").exists()
        capsys.readouterr()
        assert main(arguments) == 0
        assert f"{min(4 * int(stretches), 10)} of 10 steps are there" in capsys.readouterr().out
        again = contents(tmp_path / f"killed {stretches}")
        chosen = whole["result.json"].replace(str(output).encode(), arguments[-1].encode())
        assert again == {**whole, "result.json": chosen}
    arguments[-1] = str(tmp_path / "other")
    assert main([*arguments, "--seed", "1"]) == 0
    assert contents(tmp_path / "other")["last/model.safetensors"] != whole["last/model.safetensors"]


def test_who_interrupts_is_told_what_is_saved(command, monkeypatch, capsys):
    arguments, _ = command
    with monkeypatch.context() as patch:
        patch.setattr("experiments.pretrain.Learner.take_step", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(arguments) == 130
    assert "0 of 10 steps are saved: the same command resumes there" in capsys.readouterr().err


def test_the_rate_rises_and_falls_once_over_all_stretches(command, monkeypatch, capsys):
    arguments, _ = command
    rates = []

    def take_step(self, batch, number, rate):
        rates.append((number, float(rate)))
        return 1.0

    monkeypatch.setattr("experiments.pretrain.Learner.take_step", take_step)
    assert main([*arguments, "--warmup", "0.2"]) == 0
    assert rates == list(enumerate(learning_rates(Recipe(learning_rate=0.01, warmup=0.2), 10).tolist()))


def test_it_learns_more_than_frequencies(command, capsys):
    """Half of the names can be known from the other mention of them, which frequencies do not tell."""
    arguments, output = command
    options = [*arguments, "--steps", "400", "--save-every", "400", "--hidden", "36", "--learning-rate", "0.01"]
    assert main(options) == 0
    result = json.loads((output / "result.json").read_text())
    model, frequencies = result["data"]["model"], result["data"]["frequencies"]
    assert model["loss"] < frequencies["loss"] - 1.0
    assert model["accuracy"] > frequencies["accuracy"] + 0.2
    assert abs(model["loss"] - result["epochs"][-1]["scores"]["loss"]) < 0.01  # float16 and float32
    assert f"{model['loss']:.3f} nats" in capsys.readouterr().out


def test_frequencies_are_those_of_training(rows):
    counts = Counter(rows.words.tolist())
    targets = np.array([min(counts), max(sorted(counts), key=counts.__getitem__)], np.int32)
    total = sum(counts.values()) + rows.vocab - len(rows.special)
    expected = -np.mean([np.log((counts[word] + 1) / total) for word in targets.tolist()])
    found = score_frequencies(rows, targets)
    assert abs(found["loss"] - expected) < 1e-6
    assert found["accuracy"] == 0.5


@pytest.mark.needs_torch
def test_the_model_is_the_same_in_pytorch(command, capsys):
    arguments, output = command
    assert main(arguments) == 0
    same_in_pytorch(output / "last", ["Anna saw the DOOR", "[MASK] sold the río 1990"])


def same_in_pytorch(directory, texts):
    """Check tokens and logits of a checkpoint against transformers."""
    import torch
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about parts that the checkpoint lacks
        model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    twin = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    assert twin.dtype == torch.float32
    for text in texts:
        given = transformers.AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt")
        (encoding,) = tokenizer.encode([text])
        assert given["input_ids"][0].tolist() == list(encoding.input_ids)
        with torch.no_grad():
            theirs = twin(**given).logits.numpy()
        ours = model(np.array([encoding.input_ids])).logits
        assert np.abs(theirs).max() > 0.01
        assert largest_difference(ours, theirs) < 5e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--data", "{nowhere}"], "has none of wikitext2/valid.txt.gz"),
        (["--vocabulary", "9"], "9 word pieces have no room"),
        (["--heads", "5"], "5"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_mistakes_end_in_one_line(command, changes, words, tmp_path, capsys):
    arguments, output = command
    (tmp_path / "nowhere").mkdir()
    try:
        code = main([*arguments, *(change.format(nowhere=tmp_path / "nowhere") for change in changes)])
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr().err
    assert code == 2
    assert words in told
    assert "Traceback" not in told
    assert not output.exists()


def test_directories_of_other_or_finished_runs_are_kept(command, capsys):
    arguments, output = command
    assert main(arguments) == 0
    before = contents(output)
    assert main([*arguments, "--steps", "11"]) == 2
    assert "holds a run with other settings: steps" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "holds this run already" in capsys.readouterr().out
    assert contents(output) == before


@pytest.mark.needs_torch
def test_the_shipped_model_is_the_same_in_pytorch():
    same_in_pytorch(SHIPPED, ["She was born in [MASK].", "A café of 1,500 [MASK] — naïve", "中"])
    assert (SHIPPED / "model.safetensors").stat().st_size < 11_000_000


def test_the_shipped_model_reads_the_context():
    """Of sentences like those it learnt from it names hidden words much better than when the others are shuffled."""
    model, tokenizer = bertjax.load(SHIPPED), Tokenizer.from_pretrained(SHIPPED)
    encoded = encode_examples(model, tokenizer, load_examples(MASKED, limit=60))
    batch, rng = bertjax.collate(encoded.encodings, 128, tokenizer.pad_id), np.random.default_rng(0)
    shuffled = batch["input_ids"].copy()
    for row, at, encoding in zip(shuffled, encoded.at, encoded.encodings, strict=True):
        free = np.setdiff1d(np.arange(1, len(encoding) - 1), at)
        row[free] = row[rng.permutation(free)]
    losses = []
    for ids in (batch["input_ids"], shuffled):
        logits = model(**{**batch, "input_ids": ids}).logits
        chosen = jax.numpy.take_along_axis(logits, jax.numpy.asarray(encoded.at)[:, :, None], axis=1)
        scores = np.asarray(jax.nn.log_softmax(chosen))
        words = np.take_along_axis(scores, encoded.targets[:, :, None], axis=2)[:, :, 0]
        losses.append(-words[encoded.positions.real].mean())
    assert losses[0] < 5.2
    assert losses[1] > losses[0] + 1.5
