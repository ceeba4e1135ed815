"""What needs a package that a plain install lacks says in one line which extra brings it; the rest does without."""

import subprocess
import sys

import pytest

from bertjax.checkpoints import BertConfig
from bertjax.cli import main
from bertjax.errors import MissingDependencyError
from bertjax.jobs import torch_reference
from bertjax.models import BertModel
from bertjax.tasks import load_examples
from tests.tiny_models import SIZES, random_model

pytestmark = pytest.mark.integration

EXTRAS = ("torch", "peft", "transformers", "datasets", "tensorflow_datasets", "pytrec_eval", "pandas", "plotly")


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_parity_names_its_extra(missing, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    model = random_model(BertModel, BertConfig(**SIZES["three heads"]))
    with pytest.raises(MissingDependencyError, match=r"PyTorch and transformers .*: pip install 'bertjax\[torch\]'"):
        torch_reference.load_torch(model, tmp_path)


def test_glue_by_name_names_its_extra(monkeypatch, capsys, tmp_path):
    for missing in ("tensorflow_datasets", "datasets"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertjax\[datasets\]', or give local files"):
        load_examples("mrpc", data_dir=tmp_path)
    with pytest.raises(MissingDependencyError, match=r"three ways: .* pip install 'bertjax\[datasets\]'"):
        load_examples("mrpc")
    assert main(["ablate", "--task", "mrpc", "--output", str(tmp_path / "out")]) != 0
    assert "pip install 'bertjax[datasets]'" in capsys.readouterr().err


def test_no_room_loads_what_an_extra_brings():
    packages = (
        "analyses, attention, checkpoints, data, engine, interventions, jobs, models, plots, results, statistics, study"
    )
    code = f"import sys\nfrom bertjax import {packages}, tasks\nfrom bertjax import cli\n"
    code += f"print(sorted(set({EXTRAS!r}) & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
