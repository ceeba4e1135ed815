"""The lines of Python of a map compute the same numbers."""

import numpy as np
import pytest

import bertjax
from bertjax.explorer import subject_of_model
from bertjax.explorer.compute import compute_map, kind_of, read_query
from bertjax.explorer.messages import MapRequest, Question, Target, read_message
from bertjax.explorer.python_lines import python_lines
from bertjax.formatting import to_json
from tests.explorer.subjects import KINDS, kind_named
from tests.factories import make_classifier, make_embedder, write_pairs


def numbers_of_map(kind, query, target):
    """The base, and the quantity without each head by name."""
    lines = []
    compute_map(kind, query, target, lines.append, lambda: None)
    values = {
        f"{line['layer']}.{head}": value
        for line in lines[1:-1]
        for head, value in enumerate(line["values"])
        if value is not None
    }
    return lines[0]["base"], values


def check_lines(kind, message, known=None):
    request = read_message(to_json(message).encode(), MapRequest)
    query = read_query(kind, request)
    names = dict(known or {})
    code = python_lines(kind, query, request.target)
    exec(compile(code, "map", "exec"), names)
    base, values = numbers_of_map(kind, query, request.target)
    assert set(names["values"]) == set(values)
    np.testing.assert_allclose(names["base"], base, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose([names["values"][head] for head in values], [*values.values()], rtol=2e-5, atol=2e-6)
    return code


@pytest.mark.parametrize("name", KINDS)
def test_the_lines_reproduce_a_map(name):
    kind = kind_named(name, with_examples=False)
    known = {"model": kind.subject.model, "tokenizer": kind.subject.tokenizer}
    _, _, texts, target = KINDS[name]
    for mode, off in (("uniform", []), ("zero", ["0.1", "1.0"])):
        check_lines(kind, {"texts": texts, "mode": mode, "off": off, "target": target}, known)


def test_the_lines_load_the_model(tmp_path):
    directory = make_classifier(tmp_path)
    kind = kind_of(subject_of_model(bertjax.load(directory), f"bertjax.load({str(directory)!r})"))
    code = check_lines(kind, {"texts": ['it\'s "the" cat\\'], "target": {"class": 1}})
    assert f"model = bertjax.load({str(directory)!r})" in code


@pytest.mark.parametrize("make", [make_classifier, make_embedder])
def test_the_lines_load_the_study(tmp_path, make):
    (tmp_path / "model").mkdir()
    directory, data = make(tmp_path / "model"), write_pairs(tmp_path / "msr_paraphrase_test.tsv", 9)
    study = bertjax.Study(str(directory), "mrpc", data=str(data), limit=5)
    kind = kind_of(study.explorer_subject())
    target = {"class": 1} if kind.name == "classes" else {}
    for mode in ("uniform", "mean"):
        message = {"texts": ["the cat ran", "a dog sat"], "mode": mode, "off": ["0.1"], "target": target}
        code = check_lines(kind, message)
    assert f"study = bertjax.Study(model={str(directory)!r}, task='mrpc', data={str(data)!r}, limit=5)" in code
    assert "means=means" in code


def test_lines_of_a_study_in_memory_name_it():
    model = kind_named("classes").subject.model
    study = bertjax.Study(model, texts=["the cat ran", "a dog sat", "red doors"], labels=["no", "yes", "perhaps"])
    kind = kind_of(study.explorer_subject())
    query = read_query(kind, Question(texts=["the cat ran"], mode="mean"))
    code = python_lines(kind, query, Target(label=0))
    assert "# study = bertjax.Study(...)" in code
    check_lines(kind, {"texts": ["the cat ran"], "mode": "mean", "target": {"class": 0}}, {"study": study})
