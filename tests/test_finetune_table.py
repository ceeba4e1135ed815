"""Table 1: means and spreads over seeds."""

from experiments.training.state import Epoch
from experiments.training.table import Trained, make_table, summarise


def test_the_table_has_means_spreads_and_the_papers_numbers():
    scores = {("random", 0): 0.5, ("random", 1): 0.6, ("pretrained", 0): 0.7}
    runs = [
        Trained(
            "rte", init, seed, (90, 10), (Epoch(1.0, {"accuracy": score - 0.1}), Epoch(0.5, {"accuracy": score})), 1
        )
        for (init, seed), score in scores.items()
    ]
    runs.append(Trained("rte", "none", 0, (90, 10), (Epoch(None, {"accuracy": None}),), 0))
    rows = {row.init: row for row in summarise(runs)}
    assert list(rows) == ["none", "random", "pretrained"]
    assert rows["random"].points == (50.0, 60.0)
    assert abs(rows["random"].mean - 55) < 1e-9
    assert abs(rows["random"].spread - 50**0.5) < 1e-9
    assert rows["pretrained"].published == 64.6
    assert rows["none"].as_json()["seeds"] == [None]
    assert make_table(list(rows.values())).row_count == 3
    other = Trained("rte", "random", 2, (90, 10), runs[0].epochs, 1, "other examples")
    assert [len(row.points) for row in summarise([*runs, other]) if row.init == "random"] == [2, 1]
