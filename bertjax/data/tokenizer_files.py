"""Read a checkpoint's tokenizer from its files as `transformers.AutoTokenizer` does.

tokenizer.json, or vocab.txt     the vocabulary, and for tokenizers other than BERT's everything
tokenizer_config.json            settings, which override tokenizer.json
special_tokens_map.json, added_tokens.json    names of special tokens, and added tokens, in older checkpoints

For BERT's own tokenizer everything but the vocabulary follows from the settings and their defaults, so it is built here
from parts of the `tokenizers` library. Any other is built from its tokenizer.json. A setting that would change tokens
but that transformers has dropped (such as `do_basic_tokenize`) is refused by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from bertjax.atomic_files import encode_json, staged
from bertjax.checkpoints import TextSettings, read_text_settings
from bertjax.errors import DataError, library_errors, some_of
from bertjax.json_files import read_json, show
from bertjax.paths import is_there, read_text

FILE, CONFIG, VOCABULARY = "tokenizer.json", "tokenizer_config.json", "vocab.txt"
TOKEN_NAMES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
SIDES = ("right", "left")
LARGEST_ID = 2**31 - 1
MOST_BYTES = 1 << 26  # of a tokenizer's file: four times the largest seen for a BERT
NO_LIMIT = 10**6  # transformers writes 10^30 for unlimited length

_BERT_CLASSES = (None, "BertTokenizer", "BertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast")
_AS_IT_STANDS = "PreTrainedTokenizerFast"  # tells transformers that everything is in tokenizer.json
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

# Settings that have no effect at these values, and are refused at any other.
_HARMLESS_ONLY_AT: dict[str, tuple[Any, ...]] = {
    "do_basic_tokenize": (True, None),
    "never_split": (None, [], {}),
    "wordpieces_prefix": ("##", None),
    "clean_text": (True, None),
    "split_special_tokens": (False, None),
    "auto_map": (None, {}),  # the checkpoint's own code
    "init_inputs": ([], None),
    **dict.fromkeys(("vocab", "merges", "gguf_file", "tokenizer_object"), (None,)),  # a vocabulary from elsewhere
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
    """

    backend: tokenizers.Tokenizer
    names: dict[str, str] = field(default_factory=dict)
    max_length: int | None = None
    truncation_side: str = "right"
    prompt: str = ""


def read_tokenizer(directory: Path) -> TokenizerParts:
    """Read the tokenizer in a checkpoint's directory.

    Raises:
        DataError: there is no tokenizer, a file is damaged, or a setting is not supported.
        ConfigError: text settings of sentence-transformers are not supported.
    """
    settings, declared = _read_settings(directory / CONFIG, directory)
    content = read_json(directory / FILE, DataError, most=MOST_BYTES) if is_there(directory / FILE) else None
    text_settings = read_text_settings(directory)
    names = TOKEN_NAMES | {key: token.content for key, token in _named(directory / CONFIG, settings).items()}
    is_bert = settings.get("tokenizer_class") in _BERT_CLASSES
    if content is not None:
        source = directory / FILE
        model = _model_of(source, content)
        is_bert = is_bert and model.get("type", "WordPiece") == "WordPiece"
        if declared is None:
            declared = _declared_in_file(source, content) | _declared_beside(directory)
    elif is_there(directory / VOCABULARY):
        source = directory / VOCABULARY
        model = {"vocab": _read_vocabulary(source)}
        if not is_bert:
            raise DataError(
                f"{directory / CONFIG}: tokenizer_class is {show(settings['tokenizer_class'])}, and there is only "
                f"{VOCABULARY}; bertjax makes only BertTokenizer of it"
            )
        declared = _declared_beside(directory) if declared is None else declared
    else:
        raise DataError(f"{directory}: no tokenizer; looked for {FILE} and {VOCABULARY}")
    with library_errors(f"{source}: no tokenizer can be made of it", DataError):
        if is_bert:
            backend = _make_bert(source, content, model, settings, names)
        else:
            backend = tokenizers.Tokenizer.from_str(json.dumps(content))
        tokens = _named(directory / CONFIG, settings, TOKEN_NAMES if is_bert else {})
        _add_tokens(source, backend, declared, [*tokens.values(), *_extra(directory / CONFIG, settings)])
        _finish(backend, text_settings)
    return TokenizerParts(
        backend, names, _max_length(directory, settings), _side(directory, settings, content), text_settings.prompt
    )


def write_tokenizer(directory: Path, parts: TokenizerParts) -> None:
    """Write tokenizer.json and tokenizer_config.json, both or neither; transformers and bertjax read them alike.

    Raises:
        OutputError: the directory cannot be written; its earlier content is kept.
    """
    content = json.loads(parts.backend.to_str())
    names = {key: name for key, name in parts.names.items() if parts.backend.token_to_id(name) is not None}
    added = {str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in content["added_tokens"]}
    settings = {
        "tokenizer_class": _AS_IT_STANDS,
        "model_max_length": parts.max_length or int(1e30),  # as transformers writes it
        "truncation_side": parts.truncation_side,
        **names,
        "added_tokens_decoder": added,
    }
    if _is_bert(content, parts):
        normalizer = content["normalizer"]
        settings |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": normalizer["lowercase"],
            "strip_accents": normalizer["strip_accents"],
            "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
        }
    with staged(directory / FILE, directory / CONFIG) as (tokenizer, config):
        tokenizer.write_bytes(encode_json(content))
        config.write_bytes(encode_json(settings))


def _read_settings(path: Path, directory: Path) -> tuple[dict[str, Any], dict[int, AddedToken] | None]:
    """The settings, and the added tokens by number, or None where tokenizer_config.json does not list them.

    Only in that case does transformers read the older special_tokens_map.json.
    """
    settings = _object(path)
    for key, allowed in _HARMLESS_ONLY_AT.items():
        if key in settings and settings[key] not in allowed:
            raise DataError(f"{path}: {key} is {show(settings[key])}; bertjax supports only {allowed[0]!r}")
    added_tokens = settings.get("added_tokens_decoder")
    if added_tokens is None:
        names = _object(older := directory / "special_tokens_map.json")
        if unknown := [key for key in names if not key.endswith(("_token", "_tokens"))]:
            raise DataError(f"{older}: holds {show(unknown[0])}, which is not the name of a token")
        settings |= names
    inputs = settings.get("model_input_names")
    if inputs is not None and not (isinstance(inputs, list) and "token_type_ids" in inputs):
        raise DataError(f"{path}: model_input_names has no token_type_ids, which bertjax always gives")
    if not isinstance(settings.get("tokenizer_class"), str | None):
        raise DataError(f"{path}: tokenizer_class must be a name, found {show(settings['tokenizer_class'])}")
    if added_tokens is None:
        return settings, None
    if not isinstance(added_tokens, dict) or not all(isinstance(token, dict) for token in added_tokens.values()):
        raise DataError(f"{path}: added_tokens_decoder must be a table of tokens, found {show(added_tokens)}")
    return settings, {_number(path, number): _added(path, "a token", token) for number, token in added_tokens.items()}


def _model_of(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The model in a tokenizer.json, with its vocabulary checked."""
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
        raise DataError(f"{path}: holds no tokenizer model with a vocabulary; fetch the checkpoint again")
    vocabulary = model["vocab"]
    for token, number in vocabulary.items() if isinstance(vocabulary, dict) else ():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= LARGEST_ID:
            raise DataError(f"{path}: the number of {show(token)} must be from 0 to {LARGEST_ID}, found {show(number)}")
    return model


def _read_vocabulary(path: Path) -> dict[str, int]:
    """One token per line, numbered from 0; trailing white space, such as a carriage return, is not part of it."""
    lines = read_text(path, DataError, MOST_BYTES).split("\n")
    return {token.rstrip(): number for number, token in enumerate(lines[:-1] if lines[-1] == "" else lines)}


def _declared_in_file(path: Path, content: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The added tokens of a tokenizer.json, by number."""
    tokens = content.get("added_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        raise DataError(f"{path}: added_tokens must be a list of tokens, found {show(tokens)}")
    return {_number(path, token.get("id")): _added(path, "an added token", token) for token in tokens}


def _declared_beside(directory: Path) -> dict[int, AddedToken]:
    """The added tokens of added_tokens.json, by number."""
    path = directory / "added_tokens.json"
    special = {*TOKEN_NAMES.values()}
    return {
        _number(path, number): AddedToken(token, normalized=token not in special, special=token in special)
        for token, number in _object(path).items()
    }


def _named(path: Path, settings: Mapping[str, Any], default: Mapping[str, str] | None = None) -> dict[str, AddedToken]:
    """The special tokens named by the settings, or else by `default`."""
    named_tokens = {**(default or {}), **{key: settings[key] for key in TOKEN_NAMES if settings.get(key) is not None}}
    return {key: _added(path, key, token, special=True) for key, token in named_tokens.items()}


def _extra(path: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    """Special tokens besides those in `TOKEN_NAMES`."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    if not isinstance(extra, list):
        raise DataError(f"{path}: additional_special_tokens must be a list of tokens, found {show(extra)}")
    return [_added(path, "a special token", token, special=True) for token in extra]


def _added(path: Path, what: str, token: Any, special: bool | None = None) -> AddedToken:
    """A token for the library, from its text or from an object with the text as `content`."""
    flags = {} if special is None else {"special": special}
    if isinstance(token, dict):
        content = token.get("content")
        flags = {key: token[key] for key in _FLAGS if key in token} | flags
    else:
        content = token
    if not isinstance(content, str) or not content or not all(isinstance(flag, bool) for flag in flags.values()):
        raise DataError(f"{path}: {what} must be a text, or an object with a text as content, found {show(token)}")
    return AddedToken(content, **flags)


def _add_tokens(
    path: Path, backend: tokenizers.Tokenizer, declared: Mapping[int, AddedToken], special: list[AddedToken]
) -> None:
    """Add declared tokens in order of their numbers, then the other special ones; each must get its declared number."""
    existing = {token.content for token in backend.get_added_tokens_decoder().values()}
    names = {token.content for token in special}
    for _, token in sorted(declared.items()):
        token.special = token.special or token.content in names
    tokens = [token for _, token in sorted(declared.items()) if token.content not in existing]
    backend.add_tokens(tokens)
    for token in special:
        if token.content not in existing | {declared_token.content for declared_token in declared.values()}:
            backend.add_tokens([token])
    for number, token in declared.items():
        if (token_id := backend.token_to_id(token.content)) != number:
            raise DataError(
                f"{path}: the added token {show(token.content)} is said to be number {number}, but is {token_id}"
            )


def _make_bert(
    path: Path,
    content: Mapping[str, Any] | None,
    model: Mapping[str, Any],
    settings: Mapping[str, Any],
    names: Mapping[str, str],
) -> tokenizers.Tokenizer:
    """Build BERT's tokenizer from a vocabulary and settings."""
    needed = [names[key] for key in ("unk_token", "sep_token", "pad_token", "cls_token")]
    if not isinstance(model["vocab"], dict):
        raise DataError(f"{path}: its vocabulary is {show(model['vocab'])}, not numbers by token; is this a BERT's?")
    missing = [name for name in needed if name not in model["vocab"]]
    if missing:
        raise DataError(f"{path}: its vocabulary lacks {some_of(missing)}; is this a BERT's?")
    backend = tokenizers.Tokenizer(models.WordPiece(model["vocab"], unk_token=names["unk_token"]))
    backend.normalizer = _normalizer(path.parent / CONFIG, settings)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = _template(backend, names)
    backend.decoder = tokenizers.decoders.WordPiece(prefix="##")
    if content is not None:
        _compare(path, content, json.loads(backend.to_str()), settings)
    return backend


def _normalizer(path: Path, settings: Mapping[str, Any]) -> normalizers.BertNormalizer:
    """The normaliser with lower-casing and so on as in the settings."""
    options: dict[str, Any] = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
    options |= {key: settings[key] for key in options if key in settings}
    for key, value in options.items():
        if not isinstance(value, bool) and not (key == "strip_accents" and value is None):
            raise DataError(f"{path}: {key} must be true or false, found {show(value)}")
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=options["do_lower_case"],
        strip_accents=options["strip_accents"],
        handle_chinese_chars=options["tokenize_chinese_chars"],
    )


def _template(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> processors.TemplateProcessing:
    first, last = names["cls_token"], names["sep_token"]
    return processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(name, backend.token_to_id(name)) for name in (first, last)],
    )


def _compare(path: Path, content: Mapping[str, Any], reference: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a tokenizer.json that contradicts the tokenizer built from the settings, which would take precedence.

    Versions of transformers differ in which of the two they use.
    """
    model = {key: content["model"].get(key, value) for key, value in _WORD_PIECE.items()}
    normalizer, expected = content.get("normalizer"), reference["normalizer"]
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        overruled = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
        overruled["tokenize_chinese_chars"] = "handle_chinese_chars"
        normalizer = normalizer | {
            option: expected[option] for setting, option in overruled.items() if setting in settings
        }
    comparisons = [
        ("normalizer", normalizer, expected),
        ("pre_tokenizer", content.get("pre_tokenizer"), reference["pre_tokenizer"]),
    ]
    comparisons += [(f"model.{key}", model[key], value) for key, value in _WORD_PIECE.items()]
    for name, stated, built in comparisons:
        if stated != built:
            raise DataError(
                f"{path}: its {name} is {show(stated, 120)}, but a BertTokenizer has {show(built, 120)}: say in "
                f'{CONFIG} which counts ("do_lower_case" and the like, or "tokenizer_class": "{_AS_IT_STANDS}")'
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


def _is_bert(content: Mapping[str, Any], parts: TokenizerParts) -> bool:
    """Whether this tokenizer is BERT's, reproducible from the vocabulary and the settings alone."""
    model, normalizer = content["model"], content["normalizer"] or {}
    return (
        model["type"] == "WordPiece"
        and all(model[key] == value for key, value in _WORD_PIECE.items())
        and model["unk_token"] == parts.names["unk_token"]
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
        and content["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and parts.backend.post_processor is not None
        and content["post_processor"] == json.loads(_template(parts.backend, parts.names).__getstate__())
    )


def _number(path: Path, number: Any) -> int:
    digits = isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 11
    value = int(number) if digits else number
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_ID:
        raise DataError(f"{path}: a token's number must be from 0 to {LARGEST_ID}, found {show(number)}")
    return value


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    return read_json(path, DataError, most=MOST_BYTES) if is_there(path) else {}
