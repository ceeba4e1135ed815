"""Claims about the sample of QNLI that is shipped with bertjax and the script that draws it."""

import hashlib
import importlib.resources
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from bertjax.tasks import load_examples

REPOSITORY = Path(__file__).parents[2]
HEAVY = ["tensorflow", "tensorflow_datasets", "torch", "transformers"]


def test_the_shipped_sample_matches_its_readme() -> None:
    folder = importlib.resources.files("bertjax.data") / "samples"
    content = (folder / "qnli_sample.tsv").read_bytes()
    readme = (folder / "README.md").read_text(encoding="utf-8")
    examples = load_examples("qnli-sample")
    assert hashlib.sha256(content).hexdigest() in readme
    assert (len(examples), int((examples.labels == 0).sum())) == (600, 292)
    assert "292 pairs are `entailment`" in readme
    for words in ("CC BY-SA 4.0", "not under\nbertjax's Apache-2.0", "Rajpurkar", "Alex Wang"):
        assert words in readme


def test_the_drawing_script_writes_rows_unaltered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With one token per text every pair is short enough, and 600 of 600 are drawn: the same file comes back.
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    sample = REPOSITORY / "bertjax" / "data" / "samples" / "qnli_sample.tsv"
    output = tmp_path / "again.tsv"
    monkeypatch.setattr(sys, "argv", ["draw", str(sample), str(tmp_path), str(output)])
    runpy.run_path(str(REPOSITORY / "benchmarks" / "draw_qnli_sample.py"), run_name="__main__")
    assert output.read_bytes() == sample.read_bytes()


@pytest.mark.integration
def test_reading_local_files_imports_nothing_heavy() -> None:
    code = (
        "import sys; from bertjax import load_examples; import bertjax.data.tokenizer\n"
        f"load_examples('qnli-sample'); print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert found.stdout.strip() == "[]", found.stderr
