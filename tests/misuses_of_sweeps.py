"""Misuses of sweeps, of the plain form and of parity: a call with `MisuseFixtures`, and what its error must say."""

import jax.numpy as jnp
import numpy as np

import bertjax
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import patching, readouts
from bertjax.jobs import parity
from tests.misuse_fixtures import BATCH, CONFIG, IDS

HUGE = 10**5000  # Python writes out no number of more than 4,300 digits
MATRIX = np.ones((2, 3))

MISUSES = {
    # sweep
    "sweep, model": (lambda d: d.sweep(model="bert-base-uncased"), "model.*bertjax.load.*found the string"),
    "sweep, model config": (lambda d: d.sweep(model=CONFIG), "model.*found a BertConfig"),
    "sweep, examples None": (lambda d: d.sweep(examples=None), "examples.*found None"),
    "sweep, examples []": (lambda d: d.sweep(examples=[]), "no examples"),
    "sweep, texts without tokenizer": (lambda d: d.sweep(examples=["the cat"]), "give tokenizer="),
    "sweep, texts and a word": (
        lambda d: d.sweep(examples=["the cat"], tokenizer="bert"),
        "tokenizer.*found the string",
    ),
    "sweep, None within": (lambda d: d.sweep(examples=["the cat", None], tokenizer=d.tokenizer), "item 1.*None"),
    "sweep, numbers": (lambda d: d.sweep(examples=[[1, 2.5, 3]]), "item 0.*a list that begins with 1"),
    "sweep, array": (lambda d: d.sweep(examples=IDS * 1.0), "token ids, found an array"),
    "sweep, batch without ids": (lambda d: d.sweep(examples={"attention_mask": [[1]]}), "no input_ids"),
    "sweep, batch padded left": (
        lambda d: d.sweep(examples={"input_ids": IDS, "attention_mask": BATCH["attention_mask"][:, ::-1]}),
        "padding on the left",
    ),
    "sweep, batch of floats": (lambda d: d.sweep(examples={"input_ids": IDS * 1.0}), "input_ids must be integers"),
    "sweep, batch of unequal rows": (
        lambda d: d.sweep(examples={"input_ids": IDS, "attention_mask": [[1, 1]]}),
        "row 0.*unequal",
    ),
    "sweep, ids beyond": (lambda d: d.sweep(examples={"input_ids": [[2, 10**6]]}), "vocab"),
    "sweep, ablations []": (lambda d: d.sweep(ablations=[]), "nothing to ablate"),
    "sweep, one ablation": (lambda d: d.sweep(ablations=d.heads[0]), "ablations.*found an Ablation"),
    "sweep, names": (lambda d: d.sweep(ablations=["0.1"]), "ablations.*item 0.*the string '0.1'"),
    "sweep, overrides": (lambda d: d.sweep(ablations=[ov.identity(CONFIG)]), "ablations.*item 0.*an Overrides"),
    "sweep, readout None": (lambda d: d.sweep(readout=None), "readout.*found None"),
    "sweep, readout gives None": (lambda d: d.sweep(readout=lambda o: None), "readout returns.*found None"),
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
    "sweep, readout of attentions": (lambda d: d.sweep(readout=lambda o: o.attentions), "call the model instead"),
    "sweep, no such readout": (lambda d: d.sweep(readout=readouts.logits), "no logits"),
    "sweep, combine missing": (lambda d: d.sweep(examples=[d.texts[:2]]), "give combine"),
    "sweep, combine 5": (lambda d: d.sweep(examples=[d.texts[:2]], combine=5), "combine.*found 5"),
    "sweep, combine gives None": (lambda d: d.sweep(examples=[d.texts[:2]], combine=lambda a, b: None), "found None"),
    "sweep, combine gives one number": (
        lambda d: d.sweep(examples=[d.texts[:2]], combine=lambda a, b: (a * b).sum()),
        "combine returns for 2 examples",
    ),
    "sweep, unequal texts": (lambda d: d.sweep(examples=[d.texts[:2], d.texts[:1]]), "same number"),
    "sweep, means missing": (
        lambda d: d.sweep(ablations=[ab.ablation(CONFIG, ["0.1"], "mean")]),
        "bertjax.mean_head_outputs",
    ),
    "sweep, means word": (lambda d: d.sweep(means="zero"), "means.*found the string"),
    "sweep, means shape": (lambda d: d.sweep(means=[1.0, 2.0]), r"means have shape \(2,\)"),
    "sweep, sources missing": (lambda d: d.sweep(ablations=[ab.ablation(CONFIG, ["0.1"], "patched")]), "sources="),
    "sweep, sources 5": (lambda d: d.sweep(sources=5), "sources.*found 5"),
    "sweep, fewer sources": (lambda d: d.sweep(sources=d.texts[:1]), "1 sources for 3"),
    "sweep, at 5": (lambda d: d.sweep(at=5), "`at`.*found 5"),
    "sweep, at flat": (lambda d: d.sweep(at=[1, 2, 3]), "`at`.*found 1"),
    "sweep, at floats": (lambda d: d.sweep(at=[[1.5]] * 3), "position.*found 1.5"),
    "sweep, at beyond": (lambda d: d.sweep(at=[[99]] * 3, readout=readouts.hidden_state), "asks for 99"),
    "sweep, at beyond, an array": (
        lambda d: d.sweep(at=np.array([[0], [-1], [0]]), readout=readouts.hidden_state),
        "example 1 has tokens.*asks for -1",
    ),
    "sweep, row_length": (lambda d: d.sweep(row_length=-4), "row_length.*at least 1"),
    "sweep, row_length short": (lambda d: d.sweep(row_length=1), "row only 1"),
    "sweep, one_per_row": (lambda d: d.sweep(one_per_row="yes"), "one_per_row.*found the string"),
    "sweep, tokens_at_once": (lambda d: d.sweep(tokens_at_once=0), "tokens_at_once.*at least 1"),
    "sweep, memory": (lambda d: d.sweep(memory="much"), "'much' is not an amount of memory"),
    "sweep, memory negative": (lambda d: d.sweep(memory=-1), "memory.*at least 1"),
    "sweep, devices []": (lambda d: d.sweep(devices=[]), "devices is an empty list"),
    "sweep, devices word": (lambda d: d.sweep(devices="cpu"), "devices.*found the string"),
    "sweep, devices numbers": (lambda d: d.sweep(devices=[0]), "devices.*item 0"),
    "sweep, attention": (lambda d: d.sweep(attention="flash"), "attention 'flash'"),
    "sweep, journal": (lambda d: d.sweep(journal=5), "path must be.*found 5"),
    "sweep, replace_journal": (lambda d: d.sweep(replace_journal=5), "replace_journal.*found 5"),
    "sweep, settings": (lambda d: d.sweep(settings=["a"]), "settings.*found a list"),
    "sweep, progress": (lambda d: d.sweep(progress=5), "progress.*found 5"),
    "sweep, say": (lambda d: d.sweep(say=None), "say.*found None"),
    "estimate, model": (lambda d: d.estimate(model=None), "model.*found None"),
    "estimate, readout": (lambda d: d.estimate(readout=lambda o: None), "readout returns"),
    # plain, parity
    "run, model": (lambda d: d.run(model=None), "model.*found None"),
    "run, inputs": (lambda d: d.run(inputs=5), "input_ids"),
    "run, one override": (lambda d: d.run(overrides=ov.identity(CONFIG)), "overrides.stack"),
    "run, readout": (lambda d: d.run(readout=5), "readout.*found 5"),
    "run, readout gives a dict": (lambda d: d.run(readout=lambda o: {}), "readout returns.*an empty dict"),
    "reference.sweep, batches": (lambda d: d.plain_sweep(batches=None), "batches.*found None"),
    "reference.sweep, batches []": (lambda d: d.plain_sweep(batches=[]), "0, 1, 2"),
    "reference.sweep, batch": (lambda d: d.plain_sweep(batches=[BATCH]), "batches"),
    "reference.sweep, numbers": (lambda d: d.plain_sweep(batches=[([0, 5], BATCH)]), "0, 1, 2"),
    "reference.sweep, numbers fewer": (lambda d: d.plain_sweep(batches=[([0], BATCH)]), "1 indices for the 2 examples"),
    "reference.sweep, overrides": (
        lambda d: d.plain_sweep(overrides=ov.identity(CONFIG)),
        "overrides.*found an Overrides",
    ),
    "reference.sweep, ablations": (lambda d: d.plain_sweep(overrides=d.heads), "overrides.*item 0.*an Ablation"),
    "reference.sweep, chunk_size": (lambda d: d.plain_sweep(chunk_size=0), "chunk_size.*at least 1"),
    "reference.sweep, progress": (lambda d: d.plain_sweep(progress=None), "progress.*found None"),
    "mean_head_outputs, model": (lambda d: bertjax.mean_head_outputs(None, [BATCH]), "model.*found None"),
    "mean_head_outputs, texts": (lambda d: bertjax.mean_head_outputs(d.model, d.texts), "batch|input_ids"),
    "mean_head_outputs, []": (lambda d: bertjax.mean_head_outputs(d.model, []), "at least one real token"),
    "random_arguments, config": (lambda d: parity.random_arguments(None, 2, 3), "config.*found None"),
    "random_arguments, batch": (lambda d: parity.random_arguments(CONFIG, 0, 3), "batch.*at least 1"),
    "compare_overrides, mode": (lambda d: parity.compare_overrides(d.model, None, BATCH, "half"), "mode 'half'"),
    "check_model, name": (lambda d: parity.check_model(5, "float32", 2), "path must be.*found 5"),
    "check_model, examples": (lambda d: parity.check_model(d.saved, "float32", 0), "examples.*at least 1"),
    "check_model, precision": (lambda d: parity.check_model(d.saved, "bfloat16", 2), "precision|float32"),
}
# What fuzzing found.
MISUSES |= {
    "a name": (lambda d: ab.ablation(CONFIG, ["0.1"], "zero", MATRIX), "name must be a string, found an array"),
    "a precision": (lambda d: bertjax.load(d.saved, precision=jnp.asarray(MATRIX)), "precision.*found an array"),
    "no precision": (lambda d: bertjax.load(d.saved, precision=0), "precision.*found 0"),
    "a dtype": (lambda d: bertjax.load(d.saved, dtype=HUGE), "dtype.*a very large number"),
    "a complex gate": (lambda d: ov.uniform(CONFIG, ["0.1"], 0.5j), "gate must be.*found 0.5j"),
    "a head": (lambda d: ov.zero(CONFIG, [(0, HUGE)]), "there is no head 0.a very large number"),
    "no pair": (lambda d: ov.parse_head(HUGE, CONFIG), "a very large number names no head"),
    "a factor": (lambda d: ov.factor(CONFIG, ["0.1"], np.float64(1e300)), "factor must be finite"),
    "a share": (lambda d: ab.Change(0, 1, "zero", 10**400), "share of head 0.1 must be a finite number"),
    "a complex share": (lambda d: ab.Change(0, 1, "zero", np.complex64(1)), "share of head 0.1 .* finite"),
    "an example": (lambda d: ov.forbidden_edges(CONFIG, [(0, 1, 0, 0)], 2**31), "example.*2147483648"),
    "a token": (lambda d: ov.forbidden_edges(CONFIG, [(0, 1, 2**31, 0)]), r"edge .*2147483648.* beyond"),
    "a length": (lambda d: d.tokenizer.encode(["a"], max_length=-HUGE), "max_length.*64 bits.*a very large number"),
    "a batch": (lambda d: bertjax.collate(d.texts, length=10**12), "length 1000000000000 takes .* TB of memory"),
    "padding": (lambda d: bertjax.collate(d.texts, pad_id=2**31), "pad_id is 2147483648"),
    "labels of another number": (
        lambda d: bertjax.compute_statistics("accuracy", np.eye(2), np.ones((1, 2, 2)), [0, 1, 1]),
        r"outputs of shape \[2, 2, 2\] and labels of shape \[3\] don't fit",
    ),
    "a base of another shape": (
        lambda d: bertjax.compute_statistics("accuracy", np.ones((3, 2)), np.ones((1, 2, 2)), [0, 1]),
        r"outputs have shape \[1, 2, 2\], but base \[3, 2\]",
    ),
    "labels of texts": (
        lambda d: bertjax.compute_statistics("accuracy", np.eye(2), np.ones((1, 2, 2)), ["a", "b"]),
        "labels must be an array of numbers, found a list that begins with the string 'a'",
    ),
    "a mask of another length": (
        lambda d: patching.patched(CONFIG, "queries", ["0.1"], d.output, tokens=np.ones((2, 3))),
        r"mask of tokens has shape \(2, 3\), but there are 2 examples of \d+ tokens",
    ),
    "a mask of other examples": (
        lambda d: patching.token_mask(np.ones((3, 5)), 2, 5),
        r"mask of tokens has shape \(3, 5\), but there are 2 examples of 5 tokens",
    ),
    "a form": (
        lambda d: d.estimate(attention=MATRIX),
        "attention.*found an array",
    ),
}
