"""Claims about the base checkpoint of an adapter: where it is looked for, and that only one directory can be meant."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertjax.checkpoints.adapter_config import holds_adapter, locate_base
from bertjax.checkpoints.weight_files import WEIGHT_FILES, CheckpointWarning
from bertjax.errors import CheckpointError, ConfigError


def make_base(directory: Path, weights: str = "model.safetensors") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").touch()
    (directory / weights).touch()
    return directory


def make_adapter(directory: Path, base: str | None = None, **config: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "base_model_name_or_path": base} | config
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    (directory / "adapter_model.safetensors").touch()
    return directory


def refusal(adapter: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        locate_base(adapter)
    assert "\n" not in str(caught.value)
    assert str(adapter / "adapter_config.json") in str(caught.value)
    return str(caught.value)


def test_an_adapter_is_known_by_its_configuration(tmp_path: Path) -> None:
    assert holds_adapter(make_adapter(tmp_path / "adapter"))
    assert holds_adapter(str(tmp_path / "adapter"))
    assert not holds_adapter(make_base(tmp_path / "base"))
    assert not holds_adapter(tmp_path / "absent")


def test_a_base_is_found_by_its_full_path(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    assert locate_base(make_adapter(tmp_path / "adapter", str(base))) == base


@pytest.mark.parametrize("name", ["../base", "./below/base"])
def test_a_base_is_found_from_the_adapters_directory(tmp_path: Path, name: str) -> None:
    adapter = make_adapter(tmp_path / "adapter", name)
    base = make_base(adapter / name)
    assert locate_base(adapter).samefile(base)


def test_a_base_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = make_base(tmp_path / "models" / "base")
    assert locate_base(make_adapter(tmp_path / "adapter", "models/base")).samefile(base)


def test_a_relative_name_that_means_two_directories_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapter = make_adapter(tmp_path / "adapter", "base")
    base = make_base(adapter / "base")
    assert locate_base(adapter) == base
    make_base(tmp_path / "base")
    with monkeypatch.context() as there:
        there.chdir(adapter)
        assert locate_base(adapter).samefile(base)  # two spellings of one directory
    assert "the base 'base' may be" in refusal(adapter)
    assert "write its full path" in refusal(adapter)


@pytest.mark.parametrize("weights", WEIGHT_FILES)
@pytest.mark.parametrize("name", [None, "", "."])
def test_a_model_beside_the_adapter_is_its_base(tmp_path: Path, weights: str, name: str | None) -> None:
    make_base(tmp_path, weights)
    assert locate_base(make_adapter(tmp_path, name)) == tmp_path


def test_a_local_model_other_than_the_named_base_gives_a_warning(tmp_path: Path) -> None:
    """As in transformers; but the model may be what came of merging, which bertjax cannot see."""
    own = make_adapter(make_base(tmp_path / "own"), str(make_base(tmp_path / "base")))
    with pytest.warns(CheckpointWarning, match="into the weights beside it, although .* names the base .*delete"):
        assert locate_base(own) == own
    hub = make_adapter(make_base(tmp_path / "hub"), "google-bert/bert-base-uncased")
    with pytest.warns(CheckpointWarning, match="google-bert/bert-base-uncased"):
        assert locate_base(hub) == hub
    assert locate_base(make_adapter(own, str(own))) == own


def test_weights_without_a_configuration_are_no_model(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", str(base))
    (adapter / "model.safetensors").touch()
    assert locate_base(adapter) == base
    (adapter / "model.safetensors").unlink()
    (adapter / "config.json").touch()
    assert locate_base(adapter) == base


def test_without_a_named_base_the_only_model_nearby_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = make_base(tmp_path / "run")
    adapter = make_adapter(above / "checkpoint-500")
    make_adapter(above / "checkpoint-1000")
    assert locate_base(adapter).samefile(above)
    monkeypatch.chdir(adapter)
    assert locate_base(Path(".")).samefile(above)
    other = make_adapter(tmp_path / "other")
    (other / "notes").mkdir()
    below = make_base(other / "base")
    assert locate_base(other) == below


def test_where_no_base_is_named_none_or_several_are_refused(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter")
    make_base(tmp_path / "beside")  # is neither above nor below
    message = refusal(adapter)
    assert "names no base (base_model_name_or_path), and there is none in, above or directly below" in message
    first, second = make_base(adapter / "first"), make_base(adapter / "second")
    assert f"it may be {first} or {second}; write the path of one there" in refusal(adapter)


def test_a_base_that_is_not_there_is_named(tmp_path: Path) -> None:
    make_base(tmp_path)  # what lies near is no base where another is named
    for name in (f"{tmp_path}/gone", "./gone", "one/two/three"):
        message = refusal(make_adapter(tmp_path / "adapter", name))
        assert f"the base {name!r} is no directory here; write there where the base is" in message
    assert "no installed package" in refusal(make_adapter(tmp_path / "adapter", "package:no_such_package"))


def test_a_base_on_the_hub_is_asked_for_in_its_revision(tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", "someone/some-bert", revision="a1b2")
    message = refusal(adapter)
    assert "the base is not found: someone/some-bert: no such directory here" in message
    assert "at revision 'a1b2'" in message
    with pytest.raises(CheckpointError, match="local_files_only is set"):
        locate_base(adapter, local_files_only=True, cache_dir=tmp_path / "cache", token=False)


def test_a_base_from_a_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_base(tmp_path / "packages" / "a_model_in_a_package")
    (base / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    assert locate_base(make_adapter(tmp_path / "adapter", "package:a_model_in_a_package")).samefile(base)


def test_an_adapter_of_an_adapter_is_refused(tmp_path: Path) -> None:
    first = make_adapter(make_base(tmp_path / "first"))
    assert "holds an adapter itself; merge that one first" in refusal(make_adapter(tmp_path / "second", str(first)))


def test_other_adapters_than_lora_are_refused_before_base_lookup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='peft_type is "IA3"'):
        locate_base(make_adapter(tmp_path, "someone/some-bert", peft_type="IA3"))
