"""Read a checkpoint's tokenizer from its files as `transformers.AutoTokenizer` does.

tokenizer.json           the vocabulary, and for a tokenizer of no class everything
vocab.txt and others     the vocabulary, where there is no tokenizer.json (`vocabularies.py`)
tokenizer_config.json    the class and settings, which override tokenizer.json
config.json              the class, where tokenizer_config.json has none
special_tokens_map.json, added_tokens.json    names of special tokens, and added tokens, in older checkpoints

Of a class, everything but the vocabulary follows from the settings and their defaults (`tokenizer_classes.py`), so it
is built here from parts of the `tokenizers` library. Any other tokenizer is built from its tokenizer.json. A setting
that would change tokens but that transformers has dropped (such as `do_basic_tokenize`) is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers

from bertjax.atomic_files import encode_json, staged
from bertjax.checkpoints import TOKENIZER, TOKENIZER_FILES, TextSettings, read_text_settings, saving
from bertjax.data.added_tokens import (
    TokensBeside,
    add_tokens,
    declared_beside,
    declared_in_file,
    extra_tokens,
    named_tokens,
    names_in_map,
    read_token,
    token_number,
)
from bertjax.data.tokenizer_classes import (
    AS_IT_STANDS,
    BERT,
    CLASSES,
    Option,
    Options,
    TokenizerClass,
    Vocabulary,
    class_of,
)
from bertjax.data.vocabularies import json_object, model_of, read_vocabulary, vocabulary_of
from bertjax.errors import DataError, library_errors
from bertjax.json_files import show
from bertjax.paths import is_there

FILE, CONFIG, MODEL_CONFIG = "tokenizer.json", "tokenizer_config.json", "config.json"
TOKEN_NAMES = BERT.names
SIDES = ("right", "left")
NO_LIMIT = 10**6  # transformers writes 10^30 for unlimited length

_TYPES = "token_type_ids"

# Settings that have no effect at these values, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True, None),
    "never_split": (None, [], {}),
    "wordpieces_prefix": ("##", None),
    "clean_text": (True, None),
    "split_special_tokens": (False, None),
    "remove_space": (True, None),
    "sp_model_kwargs": ({}, None),
    "auto_map": (None, {}),  # the checkpoint's own code
    "init_inputs": ([], None),
    **dict.fromkeys(("vocab", "merges", "gguf_file", "tokenizer_object"), (None,)),  # a vocabulary from elsewhere
}
# Settings as BERT's normaliser calls them.
_OF_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


@dataclass(frozen=True)
class TokenizerParts:
    """The content of a tokenizer's files.

    Args:
        backend: the tokenizer of the `tokenizers` library.
        names: names of the special tokens.
        max_length: the most tokens the model was made for, or None.
        truncation_side: where long texts are cut.
        prompt: text put before each text.
        token_types: whether the model is told which text of a pair a token belongs to.
        kind: the name of its class, or None where it has none.
        options: the settings from which the class was built.
        extra: special tokens besides those in `names`.
    """

    backend: tokenizers.Tokenizer
    names: Mapping[str, str] = field(default_factory=dict)
    max_length: int | None = None
    truncation_side: str = "right"
    prompt: str = ""
    token_types: bool = True
    kind: str | None = None
    options: Options = field(default_factory=dict)
    extra: tuple[str, ...] = ()


def read_tokenizer(directory: Path) -> TokenizerParts:
    """Read the tokenizer in a checkpoint's directory.

    Raises:
        DataError: there is no tokenizer, a file is damaged, or a setting or the class is not supported.
        ConfigError: text settings of sentence-transformers are not supported.
    """
    path = directory / CONFIG
    settings, declared = _read_settings(path, directory)
    content = json_object(directory / FILE) if is_there(directory / FILE) else None
    text_settings = read_text_settings(directory)
    kind = _class_of(directory, settings)
    source = _source(directory, content, kind)
    named = named_tokens(path, settings, kind, content)
    names = {key: token.content for key, token in named.items()}
    options = {} if kind is None else _options(path, settings, kind)
    if kind is not None and content is None:
        _check_ends(path, settings, kind)
    if declared is None:
        declared = declared_beside(directory, settings) | declared_in_file(source, content or {})
    with library_errors(f"{source}: no tokenizer can be made of it", DataError):
        if kind is None:
            model_of(source, content or {})
            tokens = TokensBeside(declared, named, extra_tokens(path, settings, (), None))
            backend = tokenizers.Tokenizer.from_str(json.dumps(content))
            add_tokens(source, backend, tokens)
        else:
            vocabulary = (
                read_vocabulary(directory, kind, names) if content is None else vocabulary_of(source, content, kind)
            )
            tokens = TokensBeside(declared, named, extra_tokens(path, settings, kind.extra, vocabulary.special))
            backend = _assemble(source, kind, vocabulary, tokens, options)
            if content is not None and kind.model == "WordPiece":
                _compare(source, content, json.loads(backend.to_str()), kind, settings)
        _finish(backend, text_settings)
    return TokenizerParts(
        backend,
        {**TOKEN_NAMES, **names},
        text_settings.max_length or _max_length(directory, settings),  # as sentence-transformers has it
        _side(directory, settings, content),
        text_settings.prompt,
        _token_types(path, settings, kind),
        None if kind is None else kind.name,
        options,
        tuple(token.content for token in tokens.extra),
    )


def write_tokenizer(directory: Path, parts: TokenizerParts) -> None:
    """Write tokenizer.json and tokenizer_config.json, both or neither; transformers and bertjax read them alike.

    Raises:
        OutputError: the directory cannot be written; its earlier content is kept.
    """
    content = json.loads(parts.backend.to_str())
    names = {key: name for key, name in parts.names.items() if parts.backend.token_to_id(name) is not None}
    settings = {
        "tokenizer_class": AS_IT_STANDS,
        "model_max_length": parts.max_length or int(1e30),  # as transformers writes it
        "truncation_side": parts.truncation_side,
        **names,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in content["added_tokens"]
        },
    }
    options = parts.options if parts.kind else _options_of_bert(content)
    built = CLASSES[parts.kind or BERT.name]
    nothing = {key: None for key in built.names if key not in names}
    kind = built if _reads_back(content, built, {**names, **nothing}, options) else None
    if kind is not None:
        settings |= {"tokenizer_class": kind.name, **nothing, **options}
    if parts.extra or (kind and kind.extra):
        settings["extra_special_tokens"] = list(parts.extra)
    if kind is None or parts.token_types != kind.token_types:
        settings["model_input_names"] = ["input_ids", *[_TYPES] * parts.token_types, "attention_mask"]
    files = saving(directory, TOKENIZER, TOKENIZER_FILES)
    with files, staged(directory / FILE, directory / CONFIG) as (tokenizer, config):
        tokenizer.write_bytes(encode_json(content))
        config.write_bytes(encode_json(settings))


def _class_of(directory: Path, settings: Mapping[str, Any]) -> TokenizerClass | None:
    """The tokenizer's class, or None where it is what tokenizer.json says."""
    config = json_object(directory / MODEL_CONFIG)
    stated = settings if settings.get("tokenizer_class") else config
    name, model_type = stated.get("tokenizer_class"), config.get("model_type")
    for key, value in (("tokenizer_class", name), ("model_type", model_type)):
        if not isinstance(value, str | None):
            file = CONFIG if value is settings.get(key) else MODEL_CONFIG
            raise DataError(f"{directory / file}: {key} must be a name, found {show(value)}")
    try:
        return class_of(name or None, model_type or None)
    except DataError as error:
        raise DataError(f"{directory / (CONFIG if stated is settings else MODEL_CONFIG)}: {error}") from None


def _source(directory: Path, content: Mapping[str, Any] | None, kind: TokenizerClass | None) -> Path:
    """The file that holds the vocabulary, the first of several."""
    files = () if kind is None else kind.files
    if content is not None:
        return directory / FILE
    missing = [name for name in files if not is_there(directory / name)]
    if not files or missing:
        raise DataError(f"{directory}: no tokenizer; looked for {' and '.join([FILE, *files])}")
    return directory / files[0]


def _read_settings(path: Path, directory: Path) -> tuple[dict[str, Any], dict[int, AddedToken] | None]:
    """The settings, and the added tokens by number, or None where tokenizer_config.json does not list them.

    Only in that case does transformers read the older special_tokens_map.json.
    """
    settings = json_object(path)
    for key, allowed in _HARMLESS_ONLY_AT.items():
        if key in settings and settings[key] not in allowed:
            raise DataError(f"{path}: {key} is {show(settings[key])}; bertjax supports only {allowed[0]!r}")
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")  # their older name
    added_tokens = settings.get("added_tokens_decoder")
    if added_tokens is None:
        return settings | names_in_map(directory / "special_tokens_map.json", settings), None
    if not isinstance(added_tokens, dict) or not all(isinstance(token, dict) for token in added_tokens.values()):
        raise DataError(f"{path}: added_tokens_decoder must be a table of tokens, found {show(added_tokens)}")
    return settings, {
        token_number(path, number): read_token(path, "a token", token) for number, token in added_tokens.items()
    }


def _assemble(
    path: Path, kind: TokenizerClass, vocabulary: Vocabulary, tokens: TokensBeside, options: Options
) -> tokenizers.Tokenizer:
    """Build a class's tokenizer."""
    try:
        backend = kind.build(vocabulary, tokens.names, options)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    add_tokens(path, backend, tokens)
    kind.finish(backend, vocabulary, tokens.names, options)
    return backend


def _options(path: Path, settings: Mapping[str, Any], kind: TokenizerClass) -> dict[str, Option]:
    """The settings that change a class's tokens."""
    options = {key: settings.get(key, default) for key, default in kind.options.items()}
    for key, value in options.items():
        default = kind.options[key]
        if isinstance(default, bool) or default is None:
            if not isinstance(value, bool) and not (value is None and default is None):
                raise DataError(f"{path}: {key} must be true or false, found {show(value)}")
        else:
            options[key] = token_number(path, value)
    return options


def _options_of_bert(content: Mapping[str, Any]) -> dict[str, Option]:
    """BERT's settings as its normaliser shows them; the defaults where it is another."""
    normalizer = content["normalizer"] or {}
    return {setting: normalizer.get(option, BERT.options[setting]) for setting, option in _OF_NORMALIZER.items()}


def _check_ends(path: Path, settings: Mapping[str, Any], kind: TokenizerClass) -> None:
    """Refuse settings that take the special tokens around texts away, where no tokenizer.json has them."""
    stated = [key for key in ("add_bos_token", "add_eos_token") if kind.keeps_ends and key in settings]
    if stated:
        raise DataError(f"{path}: {stated[0]} is given, which without {FILE} bertjax does not support; leave it out")


def _reads_back(
    content: Mapping[str, Any], kind: TokenizerClass, names: Mapping[str, str | None], options: Options
) -> bool:
    """Whether a tokenizer of this class is again what it was written as."""
    path = Path(FILE)
    declared = declared_in_file(path, content)
    try:
        with library_errors("", DataError):
            tokens = TokensBeside(declared, named_tokens(path, names, kind, content), ())
            built = _assemble(path, kind, vocabulary_of(path, content, kind), tokens, options)
    except DataError:
        return False
    return bool(json.loads(built.to_str()) == content)


def _compare(
    path: Path,
    content: Mapping[str, Any],
    reference: Mapping[str, Any],
    kind: TokenizerClass,
    settings: Mapping[str, Any],
) -> None:
    """Refuse a tokenizer.json that contradicts the tokenizer built from the settings, which would take precedence.

    Versions of transformers differ in which of the two they use.
    """
    model = {key: content["model"].get(key, value) for key, value in _WORD_PIECE.items()}
    normalizer, expected = content.get("normalizer"), reference["normalizer"]
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        overruled = {option: expected[option] for setting, option in _OF_NORMALIZER.items() if setting in settings}
        normalizer = normalizer | overruled
    comparisons = [
        ("normalizer", normalizer, expected),
        ("pre_tokenizer", content.get("pre_tokenizer"), reference["pre_tokenizer"]),
    ]
    comparisons += [(f"model.{key}", model[key], value) for key, value in _WORD_PIECE.items()]
    for name, stated, built in comparisons:
        if stated != built:
            raise DataError(
                f"{path}: its {name} is {show(stated, 120)}, but a {kind.name} has {show(built, 120)}: say in "
                f'{CONFIG} which counts ("do_lower_case" and the like, or "tokenizer_class": "{AS_IT_STANDS}")'
            )


def _finish(backend: tokenizers.Tokenizer, text_settings: TextSettings) -> None:
    """Lower-case first, where sentence-transformers asks for it and the tokenizer does not do it."""
    if (
        not text_settings.do_lower_case
        or '"lowercase":true' in (state := backend.to_str())
        or '"type":"Lowercase"' in state
    ):
        return
    existing = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])


def _max_length(directory: Path, settings: Mapping[str, Any]) -> int | None:
    """`model_max_length`, or `max_len` as it used to be called; None where there is no limit."""
    length = settings.get("model_max_length", settings.get("max_len"))
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or length < 1 or length != int(length):
        raise DataError(f"{directory / CONFIG}: model_max_length must be a positive integer, found {show(length)}")
    return int(length) if length < NO_LIMIT else None


def _side(directory: Path, settings: Mapping[str, Any], content: Mapping[str, Any] | None) -> str:
    """Where texts are cut: as the settings say, else as tokenizer.json says."""
    side = settings.get("truncation_side")
    if side is None:
        truncation = (content or {}).get("truncation")
        direction = truncation.get("direction", "Right") if isinstance(truncation, dict) else "Right"
        side = direction.lower() if isinstance(direction, str) else direction
    if side not in SIDES:
        raise DataError(f"{directory / CONFIG}: truncation_side must be one of {', '.join(SIDES)}, found {show(side)}")
    return str(side)


def _token_types(path: Path, settings: Mapping[str, Any], kind: TokenizerClass | None) -> bool:
    """Whether the model is told which text of a pair a token belongs to."""
    inputs = settings.get("model_input_names")
    if inputs is None:
        return kind is None or kind.token_types
    if not isinstance(inputs, list):
        raise DataError(f"{path}: model_input_names must be a list of names, found {show(inputs)}")
    return _TYPES in inputs
