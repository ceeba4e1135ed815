"""Cross-encoders and prompts match the sentence-transformers package, and their scores have metrics."""

import json
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

import bertjax
from bertjax import BertConfig, BertForSequenceClassification, Tokenizer
from bertjax.checkpoints.architecture import SEQUENCE
from bertjax.checkpoints.sentence_transformers import TORCH_ACTIVATIONS
from bertjax.cli import main
from bertjax.data import Examples
from bertjax.engine import reference
from bertjax.engine import run as engine
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import readouts
from bertjax.tasks import TASKS, encode_examples
from tests.factories import SENTENCES, add_tokenizer, make_classifier, make_config, make_embedder
from tests.family_models import DISTINCT, saved_by_torch, sometimes
from tests.tiny_models import encodings, largest_difference, random_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers import CrossEncoder, SentenceTransformer

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
PAIRS = [(first, second) for first in SENTENCES[:4] for second in SENTENCES[3:]]
IDENTITY, SIGMOID, TANH = (TORCH_ACTIVATIONS[name] for name in ("identity", "sigmoid", "tanh"))


def make_cross_encoder(directory, config=None):
    """A random classifier with one label, and the activation in its config.json."""
    one = BertConfig.from_dict(make_config().to_dict() | {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}})
    words = directory.with_name(f"{directory.name}-tokenizer")
    words.mkdir(parents=True)
    model = random_model(BertForSequenceClassification, one)
    model.save_pretrained(directory, Tokenizer.from_pretrained(add_tokenizer(words)))
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
    return directory


def scores_of(directory):
    model, tokenizer = bertjax.load(directory), Tokenizer.from_pretrained(directory)
    return model(**tokenizer(*map(list, zip(*PAIRS, strict=True)))).score


def predicted(directory):
    return CrossEncoder(str(directory), device="cpu", local_files_only=True).predict(PAIRS)


SAID = {
    "identity": ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "4.1.0"}}, "identity"),
    "sigmoid, older": ({"sbert_ce_default_activation_function": SIGMOID}, "sigmoid"),
    "both": (
        {"sentence_transformers": {"activation_fn": TANH}, "sbert_ce_default_activation_function": SIGMOID},
        "tanh",
    ),
    "older, with a version": (
        {"sentence_transformers": {"version": "4.0.1"}, "sbert_ce_default_activation_function": IDENTITY},
        "identity",
    ),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("name", SAID)
def test_scores_match_sentence_transformers(name, tmp_path):
    config, activation = SAID[name]
    directory = make_cross_encoder(tmp_path / "made", config)
    assert BertConfig.from_directory(directory).score_activation == activation
    assert largest_difference(scores_of(directory), predicted(directory)) < 1e-5
    model = bertjax.load(directory)
    assert "score" in model.fields_of_first_token
    model.save_pretrained(tmp_path / "saved", Tokenizer.from_pretrained(directory))
    assert largest_difference(predicted(tmp_path / "saved"), predicted(directory)) == 0
    assert bertjax.load(tmp_path / "saved").config.score_activation == activation


@pytest.mark.parametrize("family", sometimes(DISTINCT, "deberta-v2"))
def test_scores_match_sentence_transformers_in_every_family(family, tmp_path):
    size = {"vocab_size": make_config().vocab_size, "max_position_embeddings": 40}
    size |= {"type_vocab_size": 2} if family == "roberta" else {}  # as this tokenizer gives
    directory = add_tokenizer(saved_by_torch(family, SEQUENCE, tmp_path, num_labels=1, **size))
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 30} | names
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    assert largest_difference(scores_of(directory), predicted(directory)) < 1e-5


def save_anew(tmp_path, **changes):
    """A cross-encoder as the package's newest version writes it, with changes of config_sentence_transformers.json."""
    encoder = CrossEncoder(str(make_cross_encoder(tmp_path / "made")), device="cpu", activation_fn=torch.nn.Identity())
    encoder.save(str(tmp_path / "new"), create_model_card=False)
    path = tmp_path / "new" / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path / "new"


def test_files_of_the_newest_version_are_read(tmp_path):
    directory = save_anew(tmp_path, prompts={"query": "the dog "}, default_prompt_name="query")
    assert isinstance(bertjax.load(directory), BertForSequenceClassification)
    assert bertjax.load(directory).config.score_activation == "identity"
    assert largest_difference(scores_of(directory), predicted(directory)) < 1e-5
    assert np.abs(scores_of(directory)).max() > 1


ODD = [
    ("config.json", {"sentence_transformers": {"activation_fn": "own.Scale"}}, 'sentence_transformers is "own.Scale"'),
    ("config.json", {"sbert_ce_default_activation_function": "torch.nn.Mish"}, "sbert_ce_default_act.* bertjax knows"),
    ("config.json", {"sentence_transformers": {"scale": 3}}, "sentence_transformers must be a dict of .*scale"),
    ("config.json", {"sentence_transformers": "yes"}, "sentence_transformers must be a dict"),
    ("config.json", {"score_activation": "sigmoid"}, "does not know the key 'score_activation'"),
    ("config_sentence_transformers.json", {"activation_fn": "own.Scale"}, 'activation_fn is "own.Scale"'),
    ("sentence_bert_config.json", {"max_seq_length": 5}, "max_seq_length is 5"),
    ("sentence_bert_config.json", {"module_output_name": "causal_logits"}, 'module_output_name is "causal_logits"'),
]


@pytest.mark.parametrize(("file", "change", "message"), ODD)
def test_settings_that_change_scores_are_refused_by_name(file, change, message, tmp_path):
    path = save_anew(tmp_path) / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message) as refused:
        bertjax.load(path.parent)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_further_modules_of_a_cross_encoder_are_refused(tmp_path):
    path = save_anew(tmp_path) / "modules.json"
    dense = {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}
    path.write_text(json.dumps([*json.loads(path.read_text()), dense]))
    with pytest.raises(ConfigError, match=r"cross-encoders with a single Transformer; found .*Transformer, .*Dense"):
        bertjax.load(path.parent)


def test_a_sweep_of_scores_is_single_runs(rng):
    one = BertConfig.from_dict(make_config().to_dict() | {"id2label": {"0": "LABEL_0"}, "label2id": None})
    model = random_model(BertForSequenceClassification, one)
    texts, heads = encodings(one, rng, [5, 1, 9, 3]), ab.single_heads(one)
    found = engine.sweep(model, texts, heads, readouts.score)
    expected = reference.run(
        model,
        model.inputs(**bertjax.collate(texts)),
        ov.stack([ab.to_overrides(one, head) for head in heads]),
        readouts.score,
    )
    assert found.outputs.shape == (6, 4)
    assert largest_difference(found.outputs, expected) < 2e-5


def test_several_labels_have_no_score():
    model = random_model(BertForSequenceClassification, make_config())
    with pytest.raises(InputError, match="this model has no score: it is not a classifier with one label"):
        readouts.score(model([[2, 9, 3]]))


def write_task(path, labels):
    rows = ["label\tfirst\tsecond"]
    rows += [f"{labels[number % len(labels)]}\t{first}\t{second}" for number, (first, second) in enumerate(PAIRS)]
    path.write_text("\n".join(rows) + "\n")
    return {
        "task": "custom",
        "data": path,
        "text_columns": ["first", "second"],
        "label_column": "label",
        "heads": ["0.0"],
        "progress": False,
    }


def test_binary_labels_of_a_cross_encoder_use_ranking_metrics(tmp_path):
    directory = make_cross_encoder(tmp_path / "model", SAID["identity"][0])
    labels = ["no", "yes", "yes", "no", "no"]
    options = write_task(tmp_path / "task.tsv", labels) | {"label_names": ["no", "yes"]}
    results = bertjax.ablate(directory, output=tmp_path / "out", **options)
    yes = [labels[number % 5] == "yes" for number in range(len(PAIRS))]
    assert results.summary["outputs"] == "score"
    assert results.summary["metrics"] == ["roc_auc", "average_precision"]
    assert results.base == pytest.approx(sklearn.metrics.roc_auc_score(yes, predicted(directory)))
    saved = bertjax.read_results(tmp_path / "out").outputs
    assert largest_difference(saved["base"], predicted(directory)) < 1e-5
    assert saved["outputs"].shape == (1, len(PAIRS))
    other = write_task(tmp_path / "other.tsv", ["low", "high"]) | {"label_names": ["low", "high"]}
    with pytest.raises(DataError, match=r"none of custom's labels .* means that a pair is similar"):
        bertjax.ablate(directory, **other)


def test_ratings_use_cross_encoder_scores_or_logits(tmp_path):
    options = write_task(tmp_path / "task.tsv", [3, 1, 4, 1.5, 5, 2.6])
    ratings = [[3, 1, 4, 1.5, 5, 2.6][number % 6] for number in range(len(PAIRS))]
    for name, kind, chosen in (("sigmoid, older", "score", "spearman"), ("nothing", "logits", None)):
        directory = make_cross_encoder(tmp_path / kind, SAID[name][0])
        results = bertjax.ablate(directory, metric="pearson", **options)
        assert results.summary["outputs"] == kind
        values = scores_of(directory)
        values = np.log(values / (1 - values)) if kind == "logits" else values
        expected = scipy.stats.pearsonr(np.asarray(values, np.float64), ratings).statistic
        assert results.base == pytest.approx(expected, abs=1e-4)
        assert chosen is None or bertjax.ablate(directory, **options).summary["metric"]["name"] == chosen


def test_error_metrics_of_ratings_use_logits(tmp_path, capsys):
    options = write_task(tmp_path / "task.tsv", [3, 1, 4, 1.5, 5, 2.6])
    directory = make_cross_encoder(tmp_path / "model", SAID["nothing"][0])
    results = bertjax.ablate(directory, metric="mean_squared_error", output=tmp_path / "out", **options)
    assert results.summary["metrics"] == ["mean_squared_error", "pearson", "spearman", "mean_absolute_error"]
    labels, arrays = [example["label"] for example in results.examples], results.outputs
    for name in ("mean_squared_error", "mean_absolute_error"):
        function = getattr(sklearn.metrics, name)
        rows = results.rows_of(name)
        assert rows[0].base == pytest.approx(function(labels, arrays["base"][:, 0]), rel=1e-6)
        for row, values in zip(rows, arrays["outputs"][..., 0], strict=True):
            assert row.score == pytest.approx(function(labels, values), rel=1e-6)
    assert main(["show", str(tmp_path / "out")]) == 0
    assert "scores and changes without a unit; lower is better" in capsys.readouterr().out
    glue = bertjax.ablate(directory, **options | {"task": "stsb"})
    assert glue.summary["metrics"] == ["pearson", "spearman"]
    (tmp_path / "embedder").mkdir()
    embedder = make_embedder(tmp_path / "embedder")
    for other in (make_cross_encoder(tmp_path / "sigmoid", SAID["sigmoid, older"][0]), embedder):
        with pytest.raises(InputError, match=r"mean_squared_error cannot score .*: choose pearson or spearman$"):
            bertjax.ablate(other, metric="mean_squared_error", label_names=[], **options)


def test_cross_encoder_inputs_are_truncated_as_in_the_package(tmp_path):
    long = {"max_position_embeddings": 300}
    one = BertConfig.from_dict(make_config().to_dict() | long | {"id2label": {"0": "a"}, "label2id": None})
    for name, length in (("identity", 300), ("nothing", 128)):
        directory = tmp_path / name
        random_model(BertForSequenceClassification, one).save_pretrained(directory)
        add_tokenizer(directory)
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | SAID[name][0]))
        examples = Examples(
            TASKS["stsb"], (0,), ("the cat " * 200,), ("a dog",), np.zeros(1, np.float32), "made up", "test"
        )
        encoded = encode_examples(bertjax.load(directory), Tokenizer.from_pretrained(directory), examples)
        assert encoded.lengths.tolist() == [length]


def test_prompts_precede_first_and_second_texts(tmp_path, capsys, monkeypatch):
    directory = make_embedder(tmp_path / "model")
    prompts = {"query": "the dog ", "passage": "red doors "}
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    theirs = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    options = write_task(tmp_path / "task.tsv", [3, 1, 4, 1.5, 5, 2.6])
    ratings = [[3, 1, 4, 1.5, 5, 2.6][number % 6] for number in range(len(PAIRS))]
    bases = []
    for chosen, (first, second) in (
        (["query", "passage"], ("the dog ", "red doors ")),
        (["passage"], ("red doors ", "red doors ")),
        (["a man ", ""], ("a man ", "")),
        (None, ("", "")),
    ):
        results = bertjax.ablate(directory, prompts=chosen, **options)
        sides = zip(zip(*PAIRS, strict=True), (first, second), strict=True)
        vectors = [theirs.encode(list(texts), prompt=prompt) for texts, prompt in sides]
        expected = scipy.stats.spearmanr((vectors[0] * vectors[1]).sum(1), ratings).statistic
        assert results.base == pytest.approx(expected)
        assert results.summary["settings"]["prompts"] == chosen
        bases.append(results.base)
    assert len(set(bases)) == 4
    monkeypatch.chdir(tmp_path)
    command = ["ablate", "--model", str(directory), "--task", "custom", "--data", "task.tsv", "--heads", "0.0"]
    command += ["--text-columns", "first", "second", "--label-column", "label", "--label-names"]
    for more in ([], ["--prompts", "query", "passage"], ["--prompts", "query"]):
        assert main([*command, *more]) == 0
    assert len(list(tmp_path.glob("bertjax-model-custom-task-*"))) == 3
    assert main([*command, "--prompts", "qeury"]) == 2
    assert "there is no prompt 'qeury': this checkpoint's prompts are query, passage" in capsys.readouterr().err
    assert main([*command, "--prompts", "query", "query", "passage"]) == 2
    assert "--prompts takes one for both texts of a pair, or two: found 3" in capsys.readouterr().err


def test_a_classifier_has_one_prompt(tmp_path):
    directory = make_classifier(tmp_path / "model")
    options = write_task(tmp_path / "task.tsv", ["no", "yes"]) | {"label_names": ["no", "yes"]}
    with pytest.raises(InputError, match="reads a pair as one text with one prompt"):
        bertjax.ablate(directory, prompts=["query: ", "passage: "], **options)
    assert bertjax.ablate(directory, prompts=["the dog "], **options).base != bertjax.ablate(directory, **options).base
