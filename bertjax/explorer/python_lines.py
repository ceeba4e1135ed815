"""Python code that reproduces a map."""

from collections.abc import Sequence

from bertjax.explorer.compute import Query
from bertjax.explorer.kinds import Kind, Similarity
from bertjax.explorer.messages import Target
from bertjax.explorer.subject import MEAN_BATCH, MEAN_EXAMPLES


def python_lines(kind: Kind, query: Query, target: Target) -> str:
    """Python code that computes `base`, and `values`: the quantity when a head is ablated, by the head's name.

    Args:
        kind: the kind of the model's answer.
        query: the texts, and the heads that are ablated in all runs.
        target: the part of the answer that the map follows.

    Raises:
        InputError: the texts do not have the target.
    """
    line, mode = kind.line(query.encodings, target), query.mode
    off = [f"{layer}.{head}" for layer, head in sorted(query.off)]
    options = dict(line.options)
    readout = options.pop("readout")
    if mode == "mean":
        options["means"] = "means"
    keywords = "".join(f", {name}={code}" for name, code in options.items())
    lines = [
        *dict.fromkeys(["import numpy as np", *(one for one in line.before if one.startswith(("import", "from")))]),
        "",
        "import bertjax",
        *(["", *rest] if (rest := [one for one in line.before if not one.startswith(("import", "from"))]) else []),
        "",
        *kind.subject.loading,
        *_encoding_lines(kind, query.texts),
        *(_mean_lines(kind) if mode == "mean" else []),
        f"off = {off!r}",
        "heads = [one.name for one in bertjax.ablations.single_heads(model.config) if one.name not in off]",
        "sets = [off, *([*off, head] for head in heads)]",
        f"ablations = [bertjax.ablations.ablation(model.config, one, {mode!r}) for one in sets]",
        f"values = bertjax.sweep(model, examples, ablations, {readout}{keywords}).outputs[:, 0]",
        f"base, *others = np.ravel({line.value}).tolist()",
        "values = dict(zip(heads, others, strict=True))",
    ]
    return "\n".join(lines) + "\n"


def _encoding_lines(kind: Kind, texts: Sequence[str]) -> list[str]:
    """Lines that tokenise the texts."""
    longest, prompts = kind.subject.longest, kind.subject.prompts
    if not isinstance(kind, Similarity):
        prompted = [] if prompts is None else [f"tokenizer = tokenizer.with_prompt({prompts[0]!r})"]
        pair = f", [{texts[1]!r}]" if len(texts) > 1 else ""
        return [*prompted, f"examples = tokenizer.encode([{texts[0]!r}]{pair}, max_length={longest})"]
    if prompts is None:
        return [f"examples = [tokenizer.encode({list(texts)!r}, max_length={longest})]"]
    chosen = zip((prompts[0], prompts[-1]), texts, strict=True)
    parts = [f"tokenizer.with_prompt({prompt!r}).encode([{text!r}], max_length={longest})" for prompt, text in chosen]
    return [f"examples = [{' + '.join(parts)}]"]


def _mean_lines(kind: Kind) -> list[str]:
    """Lines that compute the heads' mean outputs over the examples of the study."""
    longest, prompts = kind.subject.longest, kind.subject.prompts
    examples = kind.subject.examples
    assert examples is not None
    first, second = f"list(study.examples.first[:{MEAN_EXAMPLES}])", f"list(study.examples.second[:{MEAN_EXAMPLES}])"
    sides = [(first, "" if prompts is None else f".with_prompt({prompts[0]!r})")]
    if examples.second is not None:
        sides.append((second, "" if prompts is None else f".with_prompt({prompts[-1]!r})"))
    if isinstance(kind, Similarity):
        parts = [f"tokenizer{prompt}.encode({column}, max_length={longest})" for column, prompt in sides]
    else:
        columns = ", ".join(column for column, _ in sides)
        parts = [f"tokenizer.encode({columns}, max_length={longest})"]
    batches = f"encodings[start : start + {MEAN_BATCH}]) for start in range(0, len(encodings), {MEAN_BATCH})"
    return [
        f"encodings = {' + '.join(parts)}",
        f"means = bertjax.mean_head_outputs(model, [bertjax.collate({batches}])",
    ]
