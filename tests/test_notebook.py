"""The worked notebook runs from its first cell to its last, on the real model, and shows what it says it shows."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "worked_example.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("limit=200", "limit=12")  # of the examples, to save a minute
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    return notebook, folder


def outputs(notebook, source):
    """What the cell that contains this shows, by kind."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return {kind: text for one in cell.outputs for kind, text in one.get("data", {}).items()}


def test_the_notebook_runs_and_shows_results(executed):
    notebook, folder = executed
    assert "ablations of 3 examples" in outputs(notebook, "bertjax.sweep")["text/html"]
    assert "Ablating one head raises the score for" in outputs(notebook, 'output="worked_example"')["text/html"]
    for plot in ("results.plot()", 'plot("ranking")', 'plot("change"'):
        assert "image/png" in outputs(notebook, plot), plot
    compared = outputs(notebook, "saved.compare(")["text/plain"]
    assert "correlation" in compared
    assert "\x1b" not in compared
    assert 700_000 < (folder / "worked_example" / "report.html").stat().st_size < 2_000_000


def test_the_notebook_is_kept_with_its_outputs_and_without_paths_of_a_machine():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    text = NOTEBOOK.read_text()
    assert not any(path in text for path in ("/home/", "/root/", "/tmp/", "site-packages"))
