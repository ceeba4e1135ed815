"""The classes of tokenizers as data: what each, as transformers 5 builds it, has besides its vocabulary.

Such a class takes from a checkpoint's files the vocabulary and the added tokens, and builds everything else from its
settings and their defaults, whatever else tokenizer.json says. So an entry of `CLASSES` holds all in which one class
differs from another. A tokenizer of no class (`AS_IT_STANDS`) is what its tokenizer.json says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bertjax.errors import DataError, some_of
from bertjax.json_files import show

AS_IT_STANDS = "PreTrainedTokenizerFast"  # tells transformers that everything is in tokenizer.json
# Other names for it, of the library's versions.
_AS_IT_STANDS = (AS_IT_STANDS, "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")

Option = bool | int | None
Options = Mapping[str, Option]
Names = Mapping[str, str]
Scores = list[tuple[str, float]]  # of a Unigram model's tokens, in the order of their numbers
# A part of the `tokenizers` library as options ask for it; None where they leave it out.
Part = Callable[[Options], Any]


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer's files say of its tokens.

    Args:
        numbers: of each token; none of a Unigram model.
        scores: of a Unigram model.
        merges: of a byte-pair encoding: the tokens that become one, in the order in which they do.
        character_map: how SentencePiece normalises characters; None where it does not.
        unknown: the number of the unknown token, where a SentencePiece model says it.
        special: tokens that a SentencePiece model sets apart; None where it is none.
        ends: the special tokens around texts as tokenizer.json has them, a part of the library; None for none.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    scores: Scores = field(default_factory=list)
    merges: list[tuple[str, str]] = field(default_factory=list)
    character_map: bytes | None = None
    unknown: int | None = None
    special: tuple[AddedToken, ...] | None = None
    ends: Any = None

    def number_of(self, token: str) -> int | None:
        """The number of a token, or None."""
        in_order = (number for number, (piece, _) in enumerate(self.scores) if piece == token)
        return self.numbers[token] if token in self.numbers else next(in_order, None)


@dataclass(frozen=True, kw_only=True)
class TokenizerClass:
    """A class of tokenizers.

    Args:
        name: as transformers calls it.
        family: whose tokenizer it is, for messages.
        model: the algorithm: 'WordPiece', 'BPE' or 'Unigram'.
        files: of the vocabulary, where there is no tokenizer.json.
        names: the special tokens where the settings do not name them.
        needed: those that the vocabulary must hold; others are added to it.
        flags: how special tokens are found in a text, where the settings give only their names.
        extra: further special tokens, where the settings name none.
        options: the settings that change tokens, with their defaults.
        normalizer: parts that change the text, in their order.
        maps_characters: whether the vocabulary's `character_map` follows them.
        pre_tokenizer: parts that split the text, in their order.
        decoder: the part that makes a text of tokens.
        ends: the special tokens around texts; called with the names, what gives a token's number, and the options.
        keeps_ends: whether those of tokenizer.json are kept instead.
        unknown: the number of a Unigram model's unknown token; called with the vocabulary, its name and the options.
        pieces: the tokens that are made of a SentencePiece model's; called with those and the names.
        token_types: whether a model is told by default which text of a pair a token belongs to.
    """

    name: str
    family: str
    model: str
    files: tuple[str, ...]
    names: Names
    needed: tuple[str, ...] = ()
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    options: Options = field(default_factory=dict)
    normalizer: tuple[Part, ...] = ()
    maps_characters: bool = False
    pre_tokenizer: tuple[Part, ...]
    decoder: Part
    ends: Callable[[Names, Callable[[str], Any], Options], Any]
    keeps_ends: bool = False
    unknown: Callable[[Vocabulary, str, Options], int] = lambda vocabulary, name, options: 0
    pieces: Callable[[Scores, Names], Scores] = lambda pieces, names: pieces
    token_types: bool = False

    def build(self, vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
        """The tokenizer without added tokens, and without the special tokens around texts, which may be among them.

        Raises:
            DataError: the vocabulary lacks a token.
        """
        missing = [names[key] for key in self.needed if vocabulary.number_of(names[key]) is None]
        if missing:
            raise DataError(f"its vocabulary lacks {some_of(missing)}; is this a {self.family}'s?")
        made = tokenizers.Tokenizer(_MODELS[self.model](self, vocabulary, names, options))
        mapping = vocabulary.character_map if self.maps_characters else None
        last = [] if mapping is None else [_map_of_characters(mapping)]
        made.normalizer = _chain([*_chosen(self.normalizer, options), *last], normalizers.Sequence)
        made.pre_tokenizer = _chain(_chosen(self.pre_tokenizer, options), pre_tokenizers.Sequence)
        made.decoder = self.decoder(options)
        return made

    def finish(self, made: tokenizers.Tokenizer, vocabulary: Vocabulary, names: Names, options: Options) -> None:
        """Put the special tokens around texts, once all tokens have their numbers."""
        kept = vocabulary.ends if self.keeps_ends else None
        made.post_processor = self.ends(names, made.token_to_id, options) if kept is None else kept


def _word_piece(kind: TokenizerClass, vocabulary: Vocabulary, names: Names, options: Options) -> models.WordPiece:
    return models.WordPiece(vocabulary.numbers, unk_token=names["unk_token"])


def _byte_pairs(kind: TokenizerClass, vocabulary: Vocabulary, names: Names, options: Options) -> models.BPE:
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return models.BPE(vocabulary.numbers, vocabulary.merges, dropout=None, fuse_unk=False, **affixes)


def _unigram(kind: TokenizerClass, vocabulary: Vocabulary, names: Names, options: Options) -> models.Unigram:
    unknown = kind.unknown(vocabulary, names["unk_token"], options)
    return models.Unigram(vocabulary.scores, unk_id=unknown, byte_fallback=False)


_MODELS: Mapping[str, Callable[[TokenizerClass, Vocabulary, Names, Options], Any]] = {
    "WordPiece": _word_piece,
    "BPE": _byte_pairs,
    "Unigram": _unigram,
}


def _chosen(parts: Sequence[Part], options: Options) -> list[Any]:
    return [made for part in parts if (made := part(options)) is not None]


def _chain(parts: list[Any], sequence: Callable[[list[Any]], Any]) -> Any:
    """Parts as one part; None for none."""
    return sequence(parts) if len(parts) > 1 else next(iter(parts), None)


def _always(part: Any) -> Part:
    return lambda options: part


def _where(option: str, part: Any, value: bool = True) -> Part:
    """A part that is there where an option has a value."""
    return lambda options: part if options[option] == value else None


def _map_of_characters(mapping: bytes) -> Any:
    library: Any = normalizers.Precompiled  # its types say a list of numbers, which it does not take
    return library(mapping)


def _clean(options: Options) -> normalizers.BertNormalizer:
    """BERT's normaliser."""
    accents = options["strip_accents"]
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=bool(options["do_lower_case"]),
        strip_accents=None if accents is None else bool(accents),
        handle_chinese_chars=bool(options["tokenize_chinese_chars"]),
    )


def _bytes(options: Options) -> pre_tokenizers.ByteLevel:
    """Words with the space before them, as bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=bool(options["add_prefix_space"]))


def _metaspace(part: Callable[..., Any], otherwise: str) -> Part:
    """SentencePiece's sign for a space, before each piece of text, or as `otherwise` says without a prefix space."""
    return lambda options: part(replacement="▁", prepend_scheme="always" if options["add_prefix_space"] else otherwise)


def _in_segments(names: Names, number: Callable[[str], Any], options: Options) -> processors.TemplateProcessing:
    """[CLS] a [SEP] b [SEP], with token type 1 for the second text."""
    first, last = names["cls_token"], names["sep_token"]
    return processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(name, number(name)) for name in (first, last)],
    )


def _of_albert(names: Names, number: Callable[[str], Any], options: Options) -> processors.TemplateProcessing:
    """[CLS] a [SEP] b [SEP]; the tokens are called so whatever their names."""
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", number(names["cls_token"])), ("[SEP]", number(names["sep_token"]))],
    )


def _doubled(names: Names, number: Callable[[str], Any], options: Options) -> processors.TemplateProcessing:
    """<s> a </s></s> b </s>, of the tokens that begin and end a text."""
    first, last = names["bos_token"], names["eos_token"]
    return processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", last, last, "$B", last],
        special_tokens=[(name, number(name)) for name in (first, last)],
    )


def _doubled_and_trimmed(names: Names, number: Callable[[str], Any], options: Options) -> processors.RobertaProcessing:
    """<s> a </s></s> b </s>, where a token's offsets leave out the spaces in it."""
    first, last = names["cls_token"], names["sep_token"]
    trim, prefix = bool(options.get("trim_offsets", True)), bool(options.get("add_prefix_space", False))
    return processors.RobertaProcessing((last, number(last)), (first, number(first)), trim, prefix)


def _unknown_of_deberta(vocabulary: Vocabulary, name: str, options: Options) -> int:
    tokens: list[Any] = list(vocabulary.scores)
    said = options["unk_id"] if vocabulary.unknown is None else vocabulary.unknown
    return tokens.index((name, 0.0)) if (name, 0.0) in tokens else int(said or 0)


def _pieces_of_xlm_roberta(pieces: Scores, names: Names) -> Scores:
    """Four tokens in place of SentencePiece's first three, and one behind all others."""
    first = [(names[key], 0.0) for key in ("bos_token", "pad_token", "eos_token", "unk_token")]
    return [*first, *pieces[3:], (names["mask_token"], 0.0)]


def _pieces_of_camembert(pieces: Scores, names: Names) -> Scores:
    """Five tokens in place of SentencePiece's first, and one behind all others."""
    first = [("<s>NOTUSED", 0.0), (names["pad_token"], 0.0), ("</s>NOTUSED", 0.0), (names["unk_token"], 0.0)]
    return [*first, ("<unk>NOTUSED", -100.0), *pieces[1:], (names["mask_token"], 0.0)]


_SQUARE = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ANGULAR = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_TEXT_ENDS = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_MASK_TAKES_SPACE = {"mask_token": {"lstrip": True}}
_UNCASED = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}

_SENTENCE_PIECES = (_always(pre_tokenizers.WhitespaceSplit()), _metaspace(pre_tokenizers.Metaspace, "never"))

BERT = TokenizerClass(
    name="BertTokenizer",
    family="BERT",
    model="WordPiece",
    files=("vocab.txt",),
    names=_SQUARE,
    needed=("unk_token", "sep_token", "pad_token", "cls_token"),
    options=_UNCASED,
    normalizer=(_clean,),
    pre_tokenizer=(_always(pre_tokenizers.BertPreTokenizer()),),
    decoder=_always(decoders.WordPiece(prefix="##")),
    ends=_in_segments,
    token_types=True,
)
_DISTILBERT = replace(BERT, name="DistilBertTokenizer", family="DistilBERT", token_types=False)
_MPNET = replace(
    BERT,
    name="MPNetTokenizer",
    family="MPNet",
    names=_ANGULAR | {"unk_token": "[UNK]"},
    flags=_MASK_TAKES_SPACE,
    ends=_doubled_and_trimmed,
    token_types=False,
)
_ROBERTA = TokenizerClass(
    name="RobertaTokenizer",
    family="RoBERTa",
    model="BPE",
    files=("vocab.json", "merges.txt"),
    names=_ANGULAR,
    options={"add_prefix_space": False, "trim_offsets": True},
    pre_tokenizer=(_bytes,),
    decoder=_always(decoders.ByteLevel()),
    ends=_doubled_and_trimmed,
)
_XLM_ROBERTA = TokenizerClass(
    name="XLMRobertaTokenizer",
    family="XLM-R",
    model="Unigram",
    files=("sentencepiece.bpe.model",),
    names=_ANGULAR,
    options={"add_prefix_space": True},
    maps_characters=True,
    pre_tokenizer=_SENTENCE_PIECES,
    decoder=_metaspace(decoders.Metaspace, "never"),
    ends=_doubled,
    unknown=lambda vocabulary, name, options: 3,
    pieces=_pieces_of_xlm_roberta,
)
_CAMEMBERT = replace(
    _XLM_ROBERTA,
    name="CamembertTokenizer",
    family="CamemBERT",
    flags=_MASK_TAKES_SPACE,
    extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    unknown=lambda vocabulary, name, options: vocabulary.number_of(name) or 0,
    pieces=_pieces_of_camembert,
)
_DEBERTA = TokenizerClass(
    name="DebertaV2Tokenizer",
    family="DeBERTa-v2",
    model="Unigram",
    files=("spm.model",),
    names=_TEXT_ENDS | _SQUARE,
    options={"do_lower_case": False, "split_by_punct": False, "add_prefix_space": True, "unk_id": 1},
    normalizer=(
        _where("do_lower_case", normalizers.Lowercase()),
        _always(normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")),
        _always(normalizers.NFC()),
        _always(normalizers.Strip(left=False, right=True)),
    ),
    pre_tokenizer=(
        _where("split_by_punct", pre_tokenizers.Punctuation(behavior="isolated")),
        _metaspace(pre_tokenizers.Metaspace, "first"),
    ),
    decoder=_metaspace(decoders.Metaspace, "first"),
    ends=_in_segments,
    unknown=_unknown_of_deberta,
    token_types=True,
)
_ALBERT = replace(
    _XLM_ROBERTA,
    name="AlbertTokenizer",
    family="ALBERT",
    files=("spiece.model",),
    names=_TEXT_ENDS | _SQUARE | {"unk_token": "<unk>", "pad_token": "<pad>"},
    needed=("cls_token", "sep_token"),
    options={"do_lower_case": True, "keep_accents": False, "add_prefix_space": True},
    normalizer=(
        _always(normalizers.Replace("``", '"')),
        _always(normalizers.Replace("''", '"')),
        _where("keep_accents", normalizers.NFKD(), False),
        _where("keep_accents", normalizers.StripAccents(), False),
        _where("do_lower_case", normalizers.Lowercase()),
    ),
    ends=_of_albert,
    keeps_ends=True,
    unknown=lambda vocabulary, name, options: 1,
    pieces=_DEBERTA.pieces,
)

_ALL = (BERT, _DISTILBERT, _MPNET, _ROBERTA, _XLM_ROBERTA, _CAMEMBERT, _ALBERT, _DEBERTA)
BYTE_LEVEL = _ROBERTA.name  # the class whose words need `add_prefix_space` where texts come as lists of words
# By the name in tokenizer_config.json, without "Fast".
CLASSES = {kind.name: kind for kind in _ALL} | {"ElectraTokenizer": BERT}
# By a config's model_type, where no name is given. A ModernBERT's is what tokenizer.json says whatever name is given.
_OF_MODELS: Mapping[str | None, TokenizerClass | None] = {
    None: BERT,
    "bert": BERT,
    "distilbert": BERT,
    "electra": BERT,
    "mpnet": _MPNET,
    "roberta": _ROBERTA,
    "xlm-roberta": _XLM_ROBERTA,
    "camembert": _CAMEMBERT,
    "albert": _ALBERT,
    "deberta-v2": _DEBERTA,
    "modernbert": None,
}


def class_of(name: str | None, model_type: str | None) -> TokenizerClass | None:
    """The class that a checkpoint's tokenizer has, or None where it is what its tokenizer.json says.

    Args:
        name: of the class, as tokenizer_config.json or config.json states it, or None.
        model_type: the model's, or None where there is no config.json.

    Raises:
        DataError: bertjax does not know the class, or no name is given and it does not know the model.

    >>> class_of(None, "mpnet").name, class_of("RobertaTokenizerFast", "bert").name
    ('MPNetTokenizer', 'RobertaTokenizer')
    """
    if name in _AS_IT_STANDS or (model_type in _OF_MODELS and _OF_MODELS[model_type] is None):
        return None
    if name is None and model_type in _OF_MODELS:
        return _OF_MODELS[model_type]
    kind = CLASSES.get((name or "").removesuffix("Fast"))
    if kind is None:
        stated = f"the model_type is {show(model_type)}" if name is None else f"tokenizer_class is {show(name)}"
        raise DataError(
            f'{stated}; bertjax makes {", ".join(sorted(CLASSES))}, and with "tokenizer_class": "{AS_IT_STANDS}" '
            "what tokenizer.json says"
        )
    return kind
