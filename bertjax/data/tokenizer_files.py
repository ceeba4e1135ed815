"""Read a checkpoint's tokenizer with `transformers.AutoTokenizer`, and write its files.

transformers is imported when the first tokenizer is read, since the import takes about a second, and 2.5 where PyTorch
is installed.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from bertjax.atomic_files import staged
from bertjax.checkpoints import TOKENIZER, TOKENIZER_FILES, has_tokenizer, saving
from bertjax.errors import DataError, MissingDependencyError, library_errors
from bertjax.json_files import read_json, show
from bertjax.paths import is_there

FILE, CONFIG, MODEL_CONFIG = TOKENIZER_FILES[0], TOKENIZER_FILES[1], "config.json"
_NO_LIMIT = 10**6
# Texts on which a tokenizer class and its tokenizer.json are compared; settings may change the tokens of `_SPECIAL`.
_PLAIN = " a dog's door , no. 12-3 (x_y)  end" + 101 * "a"
_SPECIAL = "The caf\u00e9 na\u00efve \u4e2d\u6587 \uff28\uff45 \ufb01ne"
_NORMALISING = {"do_lower_case", "strip_accents", "tokenize_chinese_chars"}
_NEUTRAL = {f"{name}_token" for name in ("pad", "cls", "sep", "mask", "bos", "eos")} | {
    *("tokenizer_class", "model_max_length", "model_input_names", "padding_side", "truncation_side", "backend"),
    *("clean_up_tokenization_spaces", "name_or_path", "is_local", "processor_class", "special_tokens_map_file"),
    "added_tokens_decoder",
}
_MARKS = "#\u0120\u2581"  # marks of pieces inside and at the beginning of words
# Settings that transformers ignores but other programs follow, with the values that change no token.
_IGNORED: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True, None),
    "never_split": (None, [], {}),
    "wordpieces_prefix": ("##", None),
    "clean_text": (True, None),
    "remove_space": (True, None),
    "sp_model_kwargs": ({}, None),
    **dict.fromkeys(("vocab", "merges", "gguf_file", "tokenizer_object"), (None,)),  # another vocabulary
}


def read_tokenizer(directory: Path) -> Any:
    """The tokenizer in a checkpoint's directory: an object of transformers that has a `backend_tokenizer`.

    No code of the checkpoint runs.

    Raises:
        DataError: there is no tokenizer, transformers cannot read it, or it needs custom Python code.
        MissingDependencyError: a package that reads its vocabulary is not installed.
    """
    _check_settings(directory)
    if not has_tokenizer(directory):
        raise DataError(f"{directory}: no tokenizer; looked for {FILE} and vocabulary files such as vocab.txt")
    with _quiet():
        from transformers import AutoTokenizer
        from transformers.utils import is_protobuf_available, is_sentencepiece_available

        pieces = [] if is_there(directory / FILE) else [path.name for path in directory.glob("*.model")]
        if pieces and not (is_sentencepiece_available() and is_protobuf_available()):
            raise MissingDependencyError(
                f"{directory / pieces[0]}: reading it needs the packages sentencepiece and protobuf: "
                "pip install 'bertjax[sentencepiece]'"
            )
        with library_errors(f"{directory}: transformers cannot read a tokenizer from it", DataError):
            try:
                options = {"local_files_only": True, "use_fast": True, "trust_remote_code": False}
                theirs = AutoTokenizer.from_pretrained(directory, **options)
            except ImportError as error:
                reason = " ".join(str(error).split())
                raise MissingDependencyError(f"{directory}: its tokenizer needs another package: {reason}") from error
    check_backend(theirs, directory)
    if is_there(directory / FILE):
        _check_class(directory, theirs)
    return theirs


def check_backend(theirs: Any, source: str | Path) -> None:
    """Raise `DataError` if a tokenizer of transformers runs in Python or has no vocabulary."""
    if getattr(theirs, "backend_tokenizer", None) is None:
        raise DataError(
            f"{source}: a {type(theirs).__name__} runs in Python; bertjax needs one of the tokenizers library"
        )
    if not set(theirs.get_vocab()) - set(theirs.all_special_tokens):  # as transformers makes without a file
        raise DataError(f"{source}: its vocabulary is empty, or not in a file that {type(theirs).__name__} reads")


def _check_class(directory: Path, theirs: Any) -> None:
    """Refuse a tokenizer class whose tokens differ from those of tokenizer.json although no setting explains it.

    transformers 5 builds its classes from the vocabulary and tokenizer_config.json only.
    """
    with library_errors(f"{directory / FILE}: cannot be read", DataError):
        stated, followed = tokenizers.Tokenizer.from_file(str(directory / FILE)), theirs.backend_tokenizer
        settings = read_json(directory / CONFIG, DataError) if is_there(directory / CONFIG) else {}
        different = type(stated.model) is not type(followed.model)
        different = different or any(not _same_tokens(stated, followed, text) for text in _probes(stated, settings))
    if different:
        raise DataError(
            f"{directory}: tokenizer.json and the class {type(theirs).__name__} give different tokens; to use "
            f'tokenizer.json write "tokenizer_class": "PreTrainedTokenizerFast" in {CONFIG}'
        )


def _same_tokens(first: tokenizers.Tokenizer, second: tokenizers.Tokenizer, text: str) -> bool:
    for tokenizer in (first, second):
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return first.encode(text, add_special_tokens=False).ids == second.encode(text, add_special_tokens=False).ids


def _probes(stated: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> list[str]:
    """Texts that two tokenizers must encode equally, given the settings in tokenizer_config.json."""
    unknown = settings.get("unk_token")
    unknown = unknown.get("content") if isinstance(unknown, dict) else unknown
    neutral = _NEUTRAL | {"unk_token"} if unknown == getattr(stated.model, "unk_token", None) else _NEUTRAL
    followed = settings.keys() - neutral
    if followed - _NORMALISING:
        return []
    pieces = sorted(stated.get_vocab())[:: max(1, stated.get_vocab_size() // 200)]
    words = [word for word in (piece.strip(_MARKS) for piece in pieces) if word.isascii() and word.isalpha()]
    lower = " " + " ".join(word for word in words if word.islower())
    return [lower, _PLAIN] if followed else [lower, _PLAIN, lower.title(), _SPECIAL]


def read_limit(theirs: Any) -> int | None:
    """The maximum number of tokens of the model; None for no limit."""
    length = theirs.model_max_length
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    if not is_number or not 1 <= length < 1e300 or length != int(length):
        raise DataError(f"model_max_length must be a positive integer, found {show(length)}")
    return int(length) if length < _NO_LIMIT else None


def takes_token_types(theirs: Any) -> bool:
    """Whether the model takes token types, by the class or its settings; True if neither says so."""
    unstated = type(theirs).__name__ == "TokenizersBackend" and "model_input_names" not in theirs.init_kwargs
    return unstated or "token_type_ids" in theirs.model_input_names


def lower_first(backend: tokenizers.Tokenizer) -> bool:
    """Make the tokenizer lower-case texts, as sentence-transformers does; False if it does so already."""
    state = backend.to_str()
    if '"lowercase":true' in state or '"type":"Lowercase"' in state:
        return False
    existing = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])
    return True


def wrap(backend: tokenizers.Tokenizer, names: Mapping[str, str], token_types: bool) -> Any:
    """Wrap a backend in a tokenizer of transformers."""
    with _quiet():
        from transformers import PreTrainedTokenizerFast

        names = {key: name for key, name in names.items() if backend.token_to_id(name) is not None}
        inputs = ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]
        return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)


def write_tokenizer(directory: Path, theirs: Any, *, max_length: int | None, truncation_side: str) -> None:
    """Write tokenizer.json and tokenizer_config.json, both or neither, for transformers and bertjax.

    Args:
        theirs: a tokenizer of transformers.
        max_length: the maximum number of tokens of the model, or None.
        truncation_side: the side on which long texts are cut.

    Raises:
        OutputError: the directory cannot be written; its earlier content is kept.
    """
    theirs.model_max_length, theirs.truncation_side = max_length or int(1e30), truncation_side
    for option in ("is_local", "local_files_only"):  # options of reading
        theirs.init_kwargs.pop(option, None)
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        theirs.save_pretrained(scratch)
        contents = [Path(scratch, name).read_bytes() for name in TOKENIZER_FILES]
    paths = [directory / name for name in TOKENIZER_FILES]
    with saving(directory, TOKENIZER, TOKENIZER_FILES), staged(*paths) as files:
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of transformers, such as advice to install PyTorch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _check_settings(directory: Path) -> None:
    """Refuse custom code, and settings that transformers would ignore."""
    for name, allowed in ((CONFIG, _IGNORED), (MODEL_CONFIG, {})):
        path = directory / name
        settings = read_json(path, DataError) if is_there(path) else {}
        if settings.get("auto_map"):
            raise DataError(f"{path}: auto_map names custom Python code of the checkpoint, which bertjax never runs")
        for key, values in allowed.items():
            if key in settings and settings[key] not in values:
                raise DataError(f"{path}: {key} is {show(settings[key])}; bertjax supports only {values[0]!r}")
