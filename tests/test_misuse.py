"""Whatever is given to a public function in place of what it takes, the answer is one line of the project's own.

Tests check types by jaxtyping and beartype, which users do not have: both are off here.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import bertjax
from bertjax import (
    BertConfig,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    Numerics,
    Tokenizer,
    parity,
    plain,
    readouts,
)
from bertjax import ablations as ab
from bertjax import overrides as ov
from bertjax.errors import BertjaxError
from tests.tiny import random_model
from tests.workshop import SENTENCES, add_tokenizer, make_config

CONFIG = make_config()
LAYERS, HEADS = CONFIG.num_hidden_layers, CONFIG.num_attention_heads
IDS = np.array([[2, 9, 10, 3], [2, 11, 3, 0]])
BATCH = {"input_ids": IDS, "attention_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]])}


class Desk:
    """What a user has at hand: a model, a tokenizer, texts, ablations."""

    def __init__(self, directory: Path):
        self.directory = add_tokenizer(directory)
        self.model = random_model(BertForSentenceEmbedding, CONFIG)
        self.classifier = random_model(BertForSequenceClassification, CONFIG)
        self.tokenizer = Tokenizer.from_pretrained(directory)
        self.texts = self.tokenizer.encode(SENTENCES[:3])
        self.heads = [ab.ablation(CONFIG, ["0.1"])]
        self.output = self.model(BATCH)

    def sweep(self, **changes):
        given = {
            "model": self.model,
            "examples": self.texts,
            "ablations": self.heads,
            "readout": readouts.sentence_embedding,
            "progress": False,
        }
        return bertjax.sweep(**given | changes)

    def estimate(self, **changes):
        given = {"model": self.model, "examples": self.texts, "ablations": self.heads}
        return bertjax.estimate(**given | {"readout": readouts.sentence_embedding} | changes)

    def run(self, **changes):
        given = {"model": self.model, "inputs": BATCH, "overrides": ov.stack([ov.zero(CONFIG, ["0.1"])])}
        return plain.run(**given | {"readout": readouts.sentence_embedding} | changes)

    def plain_sweep(self, **changes):
        given = {"model": self.model, "batches": [([0, 1], BATCH)], "overrides": [ov.zero(CONFIG, ["0.1"])]}
        return plain.sweep(**given | {"readout": readouts.sentence_embedding} | changes)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def unchecked():
    """As users run it: without the tests' checks of types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def donor_of(config: BertConfig):
    """A run of a model of other sizes."""
    return random_model(BertForSequenceClassification, config)([[2, 9, 3]])


OTHER = BertConfig(vocab_size=20, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=5)

MISUSES = {
    # load, from_pretrained, Tokenizer.from_pretrained, read_results, save_pretrained
    "load(5)": (lambda d: bertjax.load(5), "path must be.*found 5"),
    "load(None)": (lambda d: bertjax.load(None), "path must be.*found None"),
    "load(list)": (lambda d: bertjax.load(["a"]), "path must be.*found a list"),
    "load('')": (lambda d: bertjax.load(""), "a path is empty"),
    "load, unknown option": (lambda d: bertjax.load(d.saved, dtipe="float32"), "dtipe"),
    "load, dtype": (lambda d: bertjax.load(d.saved, dtype="float7"), "dtype.*float7"),
    "load, dtype int": (lambda d: bertjax.load(d.saved, dtype="int32"), "dtype.*int32"),
    "load, dtype 5": (lambda d: bertjax.load(d.saved, dtype=5), "dtype.*found 5"),
    "load, precision": (lambda d: bertjax.load(d.saved, precision=5), "precision.*found 5"),
    "load, attention": (lambda d: bertjax.load(d.saved, attention="flash"), "attention 'flash' is not one of"),
    "load, attention None": (lambda d: bertjax.load(d.saved, attention=None), "attention.*found None"),
    "load, config": (lambda d: bertjax.load(d.saved, config={"hidden_size": 12}), "config.*found a dict"),
    "load, seed": (lambda d: bertjax.load(d.saved, seed="a"), "seed.*found the string"),
    "load, negative seed": (lambda d: bertjax.load(d.saved, seed=-1), "seed.*at least 0"),
    "load, revision": (lambda d: bertjax.load(d.saved, revision=5), "revision"),
    "BertModel.from_pretrained(5)": (lambda d: bertjax.BertModel.from_pretrained(5), "path must be.*found 5"),
    "Tokenizer.from_pretrained(5)": (lambda d: Tokenizer.from_pretrained(5), "path must be.*found 5"),
    "Tokenizer.from_pretrained(model)": (lambda d: Tokenizer.from_pretrained(d.model), "found a BertForSentence"),
    "Tokenizer('name')": (lambda d: Tokenizer("bert-base-uncased"), "Tokenizer.from_pretrained"),
    "read_results(5)": (lambda d: bertjax.read_results(5), "found 5"),
    "read_results(None)": (lambda d: bertjax.read_results(None), "found None"),
    "save_pretrained(5)": (lambda d: d.model.save_pretrained(5), "found 5"),
    "save_pretrained(None)": (lambda d: d.model.save_pretrained(None), "found None"),
    # models
    "BertModel()": (lambda d: bertjax.BertModel("bert-base-uncased"), "config.*from_pretrained"),
    "BertModel(dict)": (lambda d: bertjax.BertModel({"hidden_size": 12}), "config.*found a dict"),
    "BertModel, key": (lambda d: bertjax.BertModel(CONFIG, 5), "key.*jax.random.key.*found 5"),
    "BertModel, numerics": (lambda d: bertjax.BertModel(CONFIG, None, "float32"), "numerics.*found the string"),
    "classifier, config": (lambda d: BertForSequenceClassification(None), "config.*found None"),
    "embedder, pooling": (lambda d: BertForSentenceEmbedding(CONFIG, pooling="max"), "pooling 'max'"),
    "embedder, pooling 5": (lambda d: BertForSentenceEmbedding(CONFIG, pooling=5), "pooling.*found 5"),
    "embedder, max_length": (lambda d: BertForSentenceEmbedding(CONFIG, max_length="a"), "max_length.*found the str"),
    "Numerics(5)": (lambda d: Numerics(5), "dtype.*found 5"),
    "Numerics, precision": (lambda d: Numerics(precision=None), "precision.*found None"),
    "BertConfig, float": (lambda d: BertConfig(hidden_size=12.0), "hidden_size.*12.0"),
    "BertConfig, string": (lambda d: BertConfig(vocab_size="many"), "vocab_size.*'many'"),
    "BertConfig, labels": (lambda d: BertConfig(id2label=((0, "a"),)), "id2label.*dict"),
    "BertConfig, label numbers": (lambda d: BertConfig(id2label={1: "a"}), "id2label must number"),
    "BertConfig, act": (lambda d: BertConfig(hidden_act=["gelu"]), "hidden_act"),
    "BertConfig, architectures": (lambda d: BertConfig(architectures=5), "architectures.*5"),
    "BertConfig.from_dict(None)": (lambda d: BertConfig.from_dict(None), "found None"),
    "BertConfig.from_dict(list)": (lambda d: BertConfig.from_dict(["a"]), "found a list"),
    "BertConfig.from_file(5)": (lambda d: BertConfig.from_file(5), "found 5"),
    "BertConfig.from_directory(None)": (lambda d: BertConfig.from_directory(None), "found None"),
    # calls
    "model()": (lambda d: d.model(), "no input_ids"),
    "model(None)": (lambda d: d.model(None), "no input_ids"),
    "model, keys missing": (lambda d: d.model(**{"attention_mask": BATCH["attention_mask"]}), "no input_ids"),
    "model, batch without ids": (lambda d: d.model({"attention_mask": [[1]]}), "no input_ids"),
    "model, unknown key": (lambda d: d.model(BATCH | {"labels": [1, 0]}), "labels.*the model takes input_ids"),
    "model, batch and mask": (lambda d: d.model(BATCH, attention_mask=BATCH["attention_mask"]), "beside it"),
    "model('text')": (lambda d: d.model("the cat"), "give tokenizer"),
    "model(texts)": (lambda d: d.model(["the cat"]), "give tokenizer"),
    "model, tokenizer": (lambda d: d.model("the cat", tokenizer=5), "tokenizer.*found 5"),
    "model, tokenizer's answer": (lambda d: d.model("the cat", tokenizer=len), "input_ids"),
    "model(5)": (lambda d: d.model(5), "input_ids"),
    "model(encodings)": (lambda d: d.model(d.texts), "input_ids.*found a list that begins with an Encoding"),
    "model(one row)": (lambda d: d.model([1, 2]), "batch, token"),
    "model(ragged)": (lambda d: d.model([[1, 2], [1]]), "different lengths"),
    "model(floats)": (lambda d: d.model(IDS.astype(float)), "must be integers"),
    "model(bools)": (lambda d: d.model(IDS > 3), "must be integers"),
    "model(object)": (lambda d: d.model(object()), "input_ids.*found an object"),
    "model, mask of words": (lambda d: d.model(IDS, [["a"] * 4] * 2), "attention_mask"),
    "model, mask dict": (lambda d: d.model(IDS, {"a": 1}), "attention_mask"),
    "model, types": (lambda d: d.model(IDS, None, "ab"), "token_type_ids"),
    "model, positions": (lambda d: d.model(IDS, position_ids=5), "position_ids"),
    "model, overrides list": (lambda d: d.model(BATCH, overrides=[ov.zero(CONFIG, ["0.1"])]), "overrides.*a list"),
    "model, overrides ablation": (lambda d: d.model(BATCH, overrides=d.heads[0]), "to_overrides"),
    "model, overrides names": (lambda d: d.model(BATCH, overrides=["0.1"]), "overrides.*bertjax.overrides"),
    "model, overrides by hand": (
        lambda d: d.model(BATCH, overrides=bertjax.Overrides(1, 0, [1])),
        "overrides.weights_gate must be an array",
    ),
    "model, entries by hand": (
        lambda d: d.model(
            BATCH, overrides=bertjax.Overrides(jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.ones((2, 3)), weights=5)
        ),
        "overrides.weights",
    ),
    "output['x']": (lambda d: d.output["x"], "no 'x': it has"),
    "output['logits']": (lambda d: d.output["logits"], "no 'logits'"),
    "output[9]": (lambda d: d.output[9], "no 9"),
    "output[None]": (lambda d: d.output[None], "no None"),
    # tokenizer, collate
    "encode(5)": (lambda d: d.tokenizer.encode(5), "list of texts, found 5"),
    "encode(None)": (lambda d: d.tokenizer.encode(None), "list of texts, found None"),
    "encode('text')": (lambda d: d.tokenizer.encode("the cat"), "list of texts, found the string"),
    "encode, None within": (lambda d: d.tokenizer.encode(["a", None]), "number 1.*None"),
    "encode, bytes within": (lambda d: d.tokenizer.encode([b"a"]), "number 0.*b'a'"),
    "encode, pairs in a list": (lambda d: d.tokenizer.encode([("a", "b")]), "number 0.*a tuple"),
    "encode, dict": (lambda d: d.tokenizer.encode({"a": 1}), "found a dict"),
    "encode, second 5": (lambda d: d.tokenizer.encode(["a"], 5), "second texts.*found 5"),
    "encode, second text": (lambda d: d.tokenizer.encode(["a"], "b"), "second texts.*found the string"),
    "encode, unequal": (lambda d: d.tokenizer.encode(["a"], ["b", "c"]), "equally many"),
    "encode, second None within": (lambda d: d.tokenizer.encode(["a"], [None]), "number 0.*None"),
    "encode, negative length": (lambda d: d.tokenizer.encode(["a"], max_length=-3), "max_length is -3"),
    "encode, length word": (lambda d: d.tokenizer.encode(["a"], max_length="5"), "max_length.*found the string"),
    "encode, length float": (lambda d: d.tokenizer.encode(["a"], max_length=5.0), "max_length.*found 5.0"),
    "encode, length True": (lambda d: d.tokenizer.encode(["a"], max_length=True), "max_length.*found True"),
    "tokenizer(None)": (lambda d: d.tokenizer(None), "list of texts"),
    "tokenizer([])": (lambda d: d.tokenizer([]), "nothing to collate"),
    "decode(None)": (lambda d: d.tokenizer.decode(None), "ids.*found None"),
    "decode('a')": (lambda d: d.tokenizer.decode("a"), "ids.*found the string"),
    "decode, floats": (lambda d: d.tokenizer.decode([1.5]), "ids must be the whole numbers"),
    "decode, two texts": (lambda d: d.tokenizer.decode(IDS), "ids must be.*of one text"),
    "decode, negative": (lambda d: d.tokenizer.decode([-1]), "id -1 is outside"),
    "decode, too large": (lambda d: d.tokenizer.decode([10**6]), "outside the vocabulary"),
    "decode, skip": (lambda d: d.tokenizer.decode([1], skip_special_tokens=None), "skip_special_tokens.*found None"),
    "collate(None)": (lambda d: bertjax.collate(None), "encodings.*found None"),
    "collate(texts)": (lambda d: bertjax.collate(["a"]), "encodings.*number 0.*the string"),
    "collate([])": (lambda d: bertjax.collate([]), "nothing to collate"),
    "collate(one)": (lambda d: bertjax.collate(d.texts[0]), "encodings"),
    "collate, length 0": (lambda d: bertjax.collate(d.texts, 0), "length.*at least 1"),
    "collate, length word": (lambda d: bertjax.collate(d.texts, "a"), "length.*found the string"),
    "collate, pad_id": (lambda d: bertjax.collate(d.texts, pad_id=None), "pad_id.*found None"),
    "collate, negative pad_id": (lambda d: bertjax.collate(d.texts, pad_id=-1), "pad_id.*at least 0"),
    # ablations
    "ablation, config": (lambda d: ab.ablation(d.model, ["0.1"]), "model.config.*found a BertForSentence"),
    "ablation, heads None": (lambda d: ab.ablation(CONFIG, None), "heads.*found None"),
    "ablation, heads string": (lambda d: ab.ablation(CONFIG, "0.1"), "heads.*found the string"),
    "ablation, head float": (lambda d: ab.ablation(CONFIG, [0.1]), "0.1 names no head"),
    "ablation, head None": (lambda d: ab.ablation(CONFIG, [None]), "None names no head"),
    "ablation, mode": (lambda d: ab.ablation(CONFIG, ["0.1"], "half"), "mode 'half' is not one of"),
    "ablation, mode None": (lambda d: ab.ablation(CONFIG, ["0.1"], None), "mode.*found None"),
    "ablation, mode list": (lambda d: ab.ablation(CONFIG, ["0.1"], ["zero"]), "mode.*found a list"),
    "ablation, name": (lambda d: ab.ablation(CONFIG, ["0.1"], name=5), "name.*found 5"),
    "Change, layer": (lambda d: ab.Change("a", 1), "layer.*found the string"),
    "Change, negative": (lambda d: ab.Change(0, -1), "head.*at least 0"),
    "Change, share": (lambda d: ab.Change(0, 1, share="half"), "share.*finite"),
    "Ablation, changes": (lambda d: ab.Ablation("x", ["0.1"]), "changes.*number 0"),
    "Ablation, changes None": (lambda d: ab.Ablation("x", None), "changes.*found None"),
    "single_heads(model)": (lambda d: ab.single_heads(d.model), "model.config"),
    "single_heads(None)": (lambda d: ab.single_heads(None), "config.*found None"),
    "single_heads, mode": (lambda d: ab.single_heads(CONFIG, 5), "mode.*found 5"),
    "whole_layers(dict)": (lambda d: ab.whole_layers({}), "config.*an empty dict"),
    "whole_layers, mode": (lambda d: ab.whole_layers(CONFIG, "zeros"), "mode 'zeros'"),
    "head_pairs, heads": (lambda d: ab.head_pairs(CONFIG, heads=5), "heads.*found 5"),
    "head_pairs, heads for mode": (lambda d: ab.head_pairs(CONFIG, ["0.1", "0.2"]), "mode.*found a list"),
    "head_pairs, string": (lambda d: ab.head_pairs(CONFIG, heads="0.1"), "heads.*found the string"),
    "all_but_one(None)": (lambda d: ab.all_but_one(None), "config.*found None"),
    "cumulative, order": (lambda d: ab.cumulative(CONFIG, order=None), "order.*found None"),
    "cumulative, heads": (lambda d: ab.cumulative(CONFIG, order=[0, 1]), "0 names no head"),
    "random_subsets, size": (lambda d: ab.random_subsets(CONFIG, size="2", count=1), "size.*found the string"),
    "random_subsets, size 0": (lambda d: ab.random_subsets(CONFIG, size=0, count=1), "0 heads cannot be drawn"),
    "random_subsets, count": (lambda d: ab.random_subsets(CONFIG, size=2, count=-1), "count.*at least 1"),
    "random_subsets, count float": (lambda d: ab.random_subsets(CONFIG, size=2, count=1.5), "count.*found 1.5"),
    "random_subsets, seed": (lambda d: ab.random_subsets(CONFIG, size=2, count=1, seed=-1), "seed.*at least 0"),
    "random_subsets, seed None": (lambda d: ab.random_subsets(CONFIG, size=2, count=1, seed=None), "seed.*found None"),
    "random_subsets, mode": (lambda d: ab.random_subsets(CONFIG, 2, size=2, count=1), "mode.*found 2"),
    "read_sets, path": (lambda d: ab.read_sets(5, CONFIG), "found 5"),
    "to_overrides, name": (lambda d: ab.to_overrides(CONFIG, "0.1"), "Ablation.*found the string"),
    "to_overrides, means": (
        lambda d: ab.to_overrides(CONFIG, ab.ablation(CONFIG, ["0.1"], "mean")),
        "plain.mean_head_outputs",
    ),
    "to_overrides, donor": (lambda d: ab.to_overrides(CONFIG, ab.ablation(CONFIG, ["0.1"], "patched")), "give donor"),
    # overrides
    "parse_head, config": (lambda d: ov.parse_head("0.1", None), "config.*found None"),
    "parse_head, huge": (lambda d: ov.parse_head("9" * 5000 + ".1", CONFIG), "names no head"),
    "parse_head, bool": (lambda d: ov.parse_head(True, CONFIG), "True names no head"),
    "heads_of_layer, word": (lambda d: ov.heads_of_layer(CONFIG, "a"), "names no head"),
    "every_head(5)": (lambda d: ov.every_head(5), "config.*found 5"),
    "identity(None)": (lambda d: ov.identity(None), "config.*found None"),
    "uniform, config": (lambda d: ov.uniform(d.model, ["0.1"]), "model.config"),
    "uniform, no config": (lambda d: ov.uniform(["0.1"], ["0.1"]), "config.*found a list"),
    "uniform, heads": (lambda d: ov.uniform(CONFIG, 5), "heads.*found 5"),
    "uniform, gate word": (lambda d: ov.uniform(CONFIG, ["0.1"], "half"), "gate.*found the string"),
    "uniform, gate None": (lambda d: ov.uniform(CONFIG, ["0.1"], None), "gate.*found None"),
    "uniform, gates too many": (lambda d: ov.uniform(CONFIG, ["0.1"], [0.5, 0.5]), r"gate has shape \(2,\)"),
    "factor, transposed": (lambda d: ov.factor(CONFIG, np.ones((HEADS, LAYERS))), r"factor has shape \(3, 2\)"),
    "factor, forgotten": (lambda d: ov.factor(CONFIG, ["0.1"]), "factor.*begins with the string"),
    "factor, word": (lambda d: ov.factor(CONFIG, ["0.1"], "x"), "factor.*found the string"),
    "factor, NaN": (lambda d: ov.factor(CONFIG, ["0.1"], [np.nan]), "factor must be finite"),
    "factor, object": (lambda d: ov.factor(CONFIG, ["0.1"], object()), "factor.*found an object"),
    "zero, head dict": (lambda d: ov.zero(CONFIG, {"0.1": 1}), "heads.*found a dict"),
    "mean, means None": (lambda d: ov.mean(CONFIG, ["0.1"], None), "means.*found None"),
    "mean, means shape": (lambda d: ov.mean(CONFIG, ["0.1"], np.ones(4)), r"means have shape \(4,\)"),
    "mean, means output": (lambda d: ov.mean(CONFIG, ["0.1"], d.output), "means.*found a ModelOutput"),
    "mean, gate": (lambda d: ov.mean(CONFIG, ["0.1"], np.ones((2, 3, 4)), gate="a"), "gate.*found the string"),
    "fixed, list": (lambda d: ov.fixed(CONFIG, [np.eye(4)]), "weights.*found a list"),
    "fixed, words": (lambda d: ov.fixed(CONFIG, {"0.1": "eye"}), "fixed weights.*found the string"),
    "fixed, ragged": (lambda d: ov.fixed(CONFIG, {"0.1": [[1], [1, 2]]}), "fixed weights has rows|different lengths"),
    "fixed, flat": (lambda d: ov.fixed(CONFIG, {"0.1": np.ones(4)}), r"\(4,\).*query, key"),
    "fixed, two sizes": (lambda d: ov.fixed(CONFIG, {"0.1": np.eye(4), "0.2": np.eye(5)}), "4.*5|tokens"),
    "patched_weights, donor": (lambda d: ov.patched_weights(CONFIG, ["0.1"], d.texts), "donor.*found a list"),
    "patched_outputs, donor": (lambda d: ov.patched_outputs(CONFIG, ["0.1"], None), "donor.*found None"),
    "patched_outputs, weights": (lambda d: ov.patched_outputs(CONFIG, ["0.1"], d.output.attentions), "donor.*an array"),
    "patched_outputs, other model": (
        lambda d: ov.patched_outputs(CONFIG, ["0.2"], donor_of(OTHER)),
        r"\(2, 2, 6\), the model \(2, 3, 4\)",
    ),
    "forbidden_edges, None": (lambda d: ov.forbidden_edges(CONFIG, None), "edges.*found None"),
    "forbidden_edges, number": (lambda d: ov.forbidden_edges(CONFIG, [5]), "5 is no edge"),
    "forbidden_edges, three": (lambda d: ov.forbidden_edges(CONFIG, [(0, 1, 2)]), "is no edge"),
    "forbidden_edges, float": (lambda d: ov.forbidden_edges(CONFIG, [(0, 1, 2.5, 0)]), "is no edge"),
    "forbidden_edges, example": (
        lambda d: ov.forbidden_edges(CONFIG, [(0, 1, 0, 0)], "a"),
        "example.*found the string",
    ),
    "fixed_edges, list": (lambda d: ov.fixed_edges(CONFIG, [(0, 1, 0, 0)]), "edges.*found a list"),
    "fixed_edges, word": (lambda d: ov.fixed_edges(CONFIG, {(0, 1, 0, 0): "a"}), "weight of an edge.*a list"),
    "fixed_edges, None": (lambda d: ov.fixed_edges(CONFIG, {(0, 1, 0, 0): None}), "weight of an edge"),
    "fixed_edges, vector": (lambda d: ov.fixed_edges(CONFIG, {(0, 1, 0, 0): [0.5, 0.5]}), "must be one number"),
    "combine(list)": (lambda d: ov.combine([ov.identity(CONFIG)]), "found a list|is a list"),
    "combine(5)": (lambda d: ov.combine(ov.identity(CONFIG), 5), "number 1.*5"),
    "combine()": (lambda d: ov.combine(), "at least one"),
    "combine, other sizes": (lambda d: ov.combine(ov.identity(CONFIG), ov.identity(OTHER)), "heads"),
    "stack(one)": (lambda d: ov.stack(ov.identity(CONFIG)), "found an Overrides"),
    "stack(None)": (lambda d: ov.stack(None), "found None"),
    "stack([5])": (lambda d: ov.stack([5]), "number 0.*5"),
    "stack, other sizes": (lambda d: ov.stack([ov.identity(CONFIG), ov.identity(OTHER)]), "heads"),
    # sweep
    "sweep, model": (lambda d: d.sweep(model="bert-base-uncased"), "model.*bertjax.load.*found the string"),
    "sweep, model config": (lambda d: d.sweep(model=CONFIG), "model.*found a BertConfig"),
    "sweep, examples None": (lambda d: d.sweep(examples=None), "examples.*found None"),
    "sweep, examples 5": (lambda d: d.sweep(examples=5), "examples.*found 5"),
    "sweep, examples []": (lambda d: d.sweep(examples=[]), "no examples"),
    "sweep, texts without tokenizer": (lambda d: d.sweep(examples=["the cat"]), "give tokenizer="),
    "sweep, texts and a word": (
        lambda d: d.sweep(examples=["the cat"], tokenizer="bert"),
        "tokenizer.*found the string",
    ),
    "sweep, None within": (lambda d: d.sweep(examples=["the cat", None], tokenizer=d.tokenizer), "number 1.*None"),
    "sweep, numbers": (lambda d: d.sweep(examples=[[1, 2, 3]]), "number 0.*a list that begins with 1"),
    "sweep, array": (lambda d: d.sweep(examples=IDS), "number 0.*an array"),
    "sweep, batch without ids": (lambda d: d.sweep(examples={"attention_mask": [[1]]}), "no input_ids"),
    "sweep, batch padded left": (
        lambda d: d.sweep(examples={"input_ids": IDS, "attention_mask": BATCH["attention_mask"][:, ::-1]}),
        "padded on the left",
    ),
    "sweep, batch of floats": (lambda d: d.sweep(examples={"input_ids": IDS * 1.0}), "input_ids must be integers"),
    "sweep, batch of unequal rows": (
        lambda d: d.sweep(examples={"input_ids": IDS, "attention_mask": [[1, 1]]}),
        "row 0.*unequal",
    ),
    "sweep, ids beyond": (lambda d: d.sweep(examples={"input_ids": [[2, 10**6]]}), "vocab"),
    "sweep, ablations None": (lambda d: d.sweep(ablations=None), "ablations.*found None"),
    "sweep, ablations []": (lambda d: d.sweep(ablations=[]), "nothing to ablate"),
    "sweep, one ablation": (lambda d: d.sweep(ablations=d.heads[0]), "ablations.*found an Ablation"),
    "sweep, names": (lambda d: d.sweep(ablations=["0.1"]), "ablations.*number 0.*the string '0.1'"),
    "sweep, overrides": (lambda d: d.sweep(ablations=[ov.identity(CONFIG)]), "ablations.*number 0.*an Overrides"),
    "sweep, readout None": (lambda d: d.sweep(readout=None), "readout.*found None"),
    "sweep, readout name": (lambda d: d.sweep(readout="logits"), "readout.*found the string"),
    "sweep, readout gives None": (lambda d: d.sweep(readout=lambda o: None), "readout returns.*found None"),
    "sweep, readout gives an absent field": (lambda d: d.sweep(readout=lambda o: o.logits), "found None"),
    "sweep, readout gives a dict": (lambda d: d.sweep(readout=lambda o: {"a": o[0]}), "readout returns.*found a dict"),
    "sweep, readout gives a tuple": (lambda d: d.sweep(readout=lambda o: (o[0], o[0])), "readout returns.*a tuple"),
    "sweep, readout gives a number": (lambda d: d.sweep(readout=lambda o: 5), "readout returns.*found 5"),
    "sweep, readout of one example": (
        lambda d: d.sweep(readout=lambda o: o.last_hidden_state[0]),
        r"entry for each example, found shape \(\d+, 12\) for 2 examples: keep the first axis",
    ),
    "sweep, readout of one token's axis": (
        lambda d: d.sweep(examples={"input_ids": [[2]]}, readout=lambda o: o.last_hidden_state[0]),
        "keep the first axis",
    ),
    "sweep, readout sums": (lambda d: d.sweep(readout=lambda o: o.last_hidden_state.sum()), r"shape \(\)"),
    "sweep, readout in NumPy": (lambda d: d.sweep(readout=lambda o: np.asarray(o.sentence_embedding)), "jax.numpy"),
    "sweep, readout branches": (lambda d: d.sweep(readout=lambda o: o[0] if o[0].sum() > 0 else -o[0]), "jax.numpy"),
    "sweep, readout of attentions": (lambda d: d.sweep(readout=lambda o: o.attentions), "call the model itself"),
    "sweep, no such readout": (lambda d: d.sweep(readout=readouts.logits), "no logits"),
    "sweep, combine missing": (lambda d: d.sweep(examples=[d.texts[:2]]), "give combine"),
    "sweep, combine 5": (lambda d: d.sweep(examples=[d.texts[:2]], combine=5), "combine.*found 5"),
    "sweep, combine gives None": (lambda d: d.sweep(examples=[d.texts[:2]], combine=lambda a, b: None), "found None"),
    "sweep, combine gives one number": (
        lambda d: d.sweep(examples=[d.texts[:2]], combine=lambda a, b: (a * b).sum()),
        "combine returns for 2 examples",
    ),
    "sweep, unequal texts": (lambda d: d.sweep(examples=[d.texts[:2], d.texts[:1]]), "equally many"),
    "sweep, means missing": (
        lambda d: d.sweep(ablations=[ab.ablation(CONFIG, ["0.1"], "mean")]),
        "plain.mean_head_outputs",
    ),
    "sweep, means word": (lambda d: d.sweep(means="zero"), "means.*found the string"),
    "sweep, means shape": (lambda d: d.sweep(means=[1.0, 2.0]), r"means have shape \(2,\)"),
    "sweep, donors missing": (lambda d: d.sweep(ablations=[ab.ablation(CONFIG, ["0.1"], "patched")]), "donors="),
    "sweep, donors 5": (lambda d: d.sweep(donors=5), "donors.*found 5"),
    "sweep, fewer donors": (lambda d: d.sweep(donors=d.texts[:1]), "1 donors for 3"),
    "sweep, at 5": (lambda d: d.sweep(at=5), "`at`.*found 5"),
    "sweep, at flat": (lambda d: d.sweep(at=[1, 2, 3]), "`at`.*found 1"),
    "sweep, at floats": (lambda d: d.sweep(at=[[1.5]] * 3), "position.*found 1.5"),
    "sweep, at beyond": (lambda d: d.sweep(at=[[99]] * 3, readout=readouts.hidden_state), "asks for 99"),
    "sweep, row_length": (lambda d: d.sweep(row_length=-4), "row_length.*at least 1"),
    "sweep, row_length word": (lambda d: d.sweep(row_length="8"), "row_length.*found the string"),
    "sweep, row_length short": (lambda d: d.sweep(row_length=1), "row only 1"),
    "sweep, one_per_row": (lambda d: d.sweep(one_per_row="yes"), "one_per_row.*found the string"),
    "sweep, tokens_at_once": (lambda d: d.sweep(tokens_at_once=0), "tokens_at_once.*at least 1"),
    "sweep, tokens_at_once float": (lambda d: d.sweep(tokens_at_once=1e3), "tokens_at_once.*found 1000.0"),
    "sweep, memory": (lambda d: d.sweep(memory="much"), "'much' is no amount of memory"),
    "sweep, memory negative": (lambda d: d.sweep(memory=-1), "memory.*at least 1"),
    "sweep, memory list": (lambda d: d.sweep(memory=["4GB"]), "memory.*found a list"),
    "sweep, devices []": (lambda d: d.sweep(devices=[]), "devices is an empty list"),
    "sweep, devices word": (lambda d: d.sweep(devices="cpu"), "devices.*found the string"),
    "sweep, devices numbers": (lambda d: d.sweep(devices=[0]), "devices.*number 0"),
    "sweep, one device": (lambda d: d.sweep(devices=jax.devices()[0]), "devices"),
    "sweep, attention": (lambda d: d.sweep(attention="flash"), "attention 'flash'"),
    "sweep, attention None": (lambda d: d.sweep(attention=None), "attention.*found None"),
    "sweep, journal": (lambda d: d.sweep(journal=5), "path must be.*found 5"),
    "sweep, replace_journal": (lambda d: d.sweep(replace_journal=5), "replace_journal.*found 5"),
    "sweep, settings": (lambda d: d.sweep(settings=["a"]), "settings.*found a list"),
    "sweep, progress": (lambda d: d.sweep(progress=5), "progress.*found 5"),
    "sweep, progress None": (lambda d: d.sweep(progress=None), "progress.*found None"),
    "sweep, say": (lambda d: d.sweep(say=None), "say.*found None"),
    "estimate, model": (lambda d: d.estimate(model=None), "model.*found None"),
    "estimate, examples": (lambda d: d.estimate(examples=None), "examples.*found None"),
    "estimate, ablations": (lambda d: d.estimate(ablations=5), "ablations.*found 5"),
    "estimate, readout": (lambda d: d.estimate(readout=lambda o: None), "readout returns"),
    "estimate, memory": (lambda d: d.estimate(memory="x"), "amount of memory"),
    # plain, parity
    "run, model": (lambda d: d.run(model=None), "model.*found None"),
    "run, inputs": (lambda d: d.run(inputs=5), "input_ids"),
    "run, inputs None": (lambda d: d.run(inputs=None), "no input_ids"),
    "run, one override": (lambda d: d.run(overrides=ov.identity(CONFIG)), "overrides.stack"),
    "run, list": (lambda d: d.run(overrides=[ov.identity(CONFIG)]), "overrides.stack.*found a list"),
    "run, readout": (lambda d: d.run(readout=5), "readout.*found 5"),
    "run, readout gives a dict": (lambda d: d.run(readout=lambda o: {}), "readout returns.*an empty dict"),
    "plain.sweep, batches": (lambda d: d.plain_sweep(batches=None), "batches.*found None"),
    "plain.sweep, batches []": (lambda d: d.plain_sweep(batches=[]), "0, 1, 2"),
    "plain.sweep, batch": (lambda d: d.plain_sweep(batches=[BATCH]), "batches"),
    "plain.sweep, numbers": (lambda d: d.plain_sweep(batches=[([0, 5], BATCH)]), "0, 1, 2"),
    "plain.sweep, numbers fewer": (lambda d: d.plain_sweep(batches=[([0], BATCH)]), "1 numbers for the 2 examples"),
    "plain.sweep, overrides": (lambda d: d.plain_sweep(overrides=ov.identity(CONFIG)), "overrides.*found an Overrides"),
    "plain.sweep, ablations": (lambda d: d.plain_sweep(overrides=d.heads), "overrides.*number 0.*an Ablation"),
    "plain.sweep, chunk_size": (lambda d: d.plain_sweep(chunk_size=0), "chunk_size.*at least 1"),
    "plain.sweep, chunk_size word": (lambda d: d.plain_sweep(chunk_size="a"), "chunk_size.*found the string"),
    "plain.sweep, progress": (lambda d: d.plain_sweep(progress=None), "progress.*found None"),
    "mean_head_outputs, model": (lambda d: plain.mean_head_outputs(None, [BATCH]), "model.*found None"),
    "mean_head_outputs, texts": (lambda d: plain.mean_head_outputs(d.model, d.texts), "batch|input_ids"),
    "mean_head_outputs, []": (lambda d: plain.mean_head_outputs(d.model, []), "at least one real token"),
    "mean_head_outputs, None": (lambda d: plain.mean_head_outputs(d.model, None), "batches.*found None"),
    "random_arguments, config": (lambda d: parity.random_arguments(None, 2, 3), "config.*found None"),
    "random_arguments, batch": (lambda d: parity.random_arguments(CONFIG, 0, 3), "batch.*at least 1"),
    "compare_overrides, mode": (lambda d: parity.compare_overrides(d.model, None, BATCH, "half"), "mode 'half'"),
    "check_model, name": (lambda d: parity.check_model(5, "float32", 2), "path must be.*found 5"),
    "check_model, examples": (lambda d: parity.check_model(d.saved, "float32", 0), "examples.*at least 1"),
    "check_model, precision": (lambda d: parity.check_model(d.saved, "bfloat16", 2), "precision|float32"),
}


@pytest.fixture(scope="module")
def saved(desk, tmp_path_factory):
    """A checkpoint of the desk's model."""
    directory = tmp_path_factory.mktemp("saved")
    desk.model.save_pretrained(directory)
    return add_tokenizer(directory)


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_told_in_one_line_of_the_projects_own(desk, saved, unchecked, name):
    desk.saved = saved
    misuse, message = MISUSES[name]
    with pytest.raises(BertjaxError, match=message) as caught:
        misuse(desk)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert " object at 0x" not in text
    assert len(text) < 300
