"""Table 1: means and spreads over seeds, and how far recipes are apart."""

import pytest

from experiments.training.table import gain_lines, scores_table, summarise

pytestmark = pytest.mark.integration


def trained(init, seed, *scores, **changes):
    """A run on RTE whose epochs have these accuracies."""
    epochs = [{"loss": 1.0, "scores": {"accuracy": score}} for score in scores]
    return {"task": "rte", "init": init, "seed": seed, "examples": [90, 10], "epochs": epochs} | changes


RUNS = [
    trained("random", 0, 0.4, 0.5),
    trained("random", 1, 0.7, 0.6),
    trained("pretrained", 0, 0.6, 0.7),
    trained("none", 0, None),
]


def test_the_table_has_last_and_published_numbers():
    rows = {row.init: row for row in summarise(RUNS)}
    assert list(rows) == ["none", "random", "pretrained"]
    assert rows["random"].points == (50.0, 60.0)
    assert abs(rows["random"].mean - 55) < 1e-9
    assert abs(rows["random"].spread - 50**0.5) < 1e-9
    assert rows["pretrained"].paper == 64.6
    line = scores_table(list(rows.values())).splitlines()[2]
    assert "**55.0 ± 7.1** (2 seeds; paper 52.7)" in line
    other = RUNS[0] | {"seed": 2, "data": "other examples"}
    assert [len(row.points) for row in summarise([*RUNS, other]) if row.init == "random"] == [2, 1]


def test_the_mean_gain_is_over_the_tasks_of_the_paper():
    none = [trained("none", seed, score) for seed, score in enumerate((0.5, 0.6))]
    mrpc = [
        one | {"task": "mrpc", "epochs": [{"loss": 1.0, "scores": {"f1": 0.1, "accuracy": score}}]}
        for one, score in ((none[0], 0.3), (RUNS[2], 0.85))
    ]
    (line,) = gain_lines(summarise([*none, RUNS[2], *mrpc]))
    gains = 70 - 55, 85 - 30
    paper = 64.6 - 52.7, 82.3 - 31.6
    assert line == (
        f"mean gain by fine-tuning over 2 tasks: {sum(gains) / 2:.1f} points; "
        f"the paper's table, of the same tasks: {sum(paper) / 2:.1f}"
    )
    assert gain_lines(summarise(none)) == []


def test_recipes_are_rows_of_their_own():
    published = trained("pretrained", 42, 0.6, 0.65, published=True)
    rows = summarise([*RUNS, published])
    assert [row.published for row in rows] == [False, False, False, True]
    assert "pre-trained, fine-tuned as published" in scores_table(rows)
