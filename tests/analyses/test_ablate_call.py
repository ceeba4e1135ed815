"""`bertjax.ablate` as a call: its progress, and arguments of the wrong kind, which are refused by their names."""

import pytest

import bertjax
from bertjax.errors import InputError
from tests.factories import make_classifier, write_pairs


def test_progress_calls_a_custom_function(tmp_path):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    calls = []
    bertjax.ablate(model, "mrpc", data=pairs, progress=lambda done, total: calls.append((done, total)))
    last = [place for place, (done, total) in enumerate(calls) if done == total]
    assert last
    assert last[-1] == len(calls) - 1
    starts = [place for place in range(1, len(calls)) if calls[place][0] < calls[place - 1][0]]
    assert len(starts) == 1  # the statistics, after the sweep
    assert all(0 <= done <= total for done, total in calls)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": None}, "split must be a str, found None"),
        ({"model": 3}, "model must be a hub id, a directory, or a model of bertjax .*, found 3"),
        ({"task": ["mrpc"]}, "task must be a str, found a list"),
        ({"data_dir": 5}, "data_dir must be a path, found 5"),
        ({"memory": 8}, "memory must be a str, found 8"),
        ({"heads": "0.0"}, "heads must be a list of heads, each as .*, found the string '0.0'"),
        ({"heads": [3]}, r"heads must be a list of heads, each as .*, but item 0 \(from 0\) is 3"),
        ({"label_names": "no yes"}, "label_names must be a list of str, found the string"),
        ({"text_columns": 2}, "text_columns must be a list of str, found 2"),
        ({"overwrite": "yes"}, "overwrite must be True or False, found the string 'yes'"),
        ({"limit": "20"}, "limit must be an integer of at least 1, found the string '20'"),
        ({"limit": True}, "limit must be an integer of at least 1, found True"),
        ({"seed": -1}, "seed must be an integer of at least 0, found -1"),
        ({"progress": 3}, "progress must be True, False, or a function"),
    ],
    ids=str,
)
def test_arguments_of_wrong_types_are_refused_by_name(wrong, message, unchecked):
    with pytest.raises(InputError, match=message):
        bertjax.ablate(**wrong)


def test_only_results_are_compared(tmp_path, unchecked):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    results = bertjax.ablate(model, "mrpc", data=pairs, heads=["0.0", "0.1"], progress=False)
    with pytest.raises(InputError, match=r"others must be results \(bertjax.read_results\(directory\) reads them\)"):
        results.compare("bertjax-mrpc")
