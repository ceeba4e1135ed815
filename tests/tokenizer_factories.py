"""Tokenizers as transformers saves them, with small vocabularies, and random lines of many scripts."""

import base64
import functools
import json
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

SLOW = import_module("transformers.convert_slow_tokenizer")  # its package has a function of that name, too

# SentencePiece's map of characters for a few rules, such as "\ufb01" to "fi", full and half width to plain letters, a
# no-break space to a space, and a soft hyphen to nothing.
CHARACTER_MAP = zlib.decompress(
    base64.b85decode(
        "c-kG)cWh2k9LDkIJta{hLgG&&_Lerb+Iv%bS5ZprO>y70sMhF9Rn5M&OKa9{U!!(j)ZVKvL4q2!=l4qP=bq=@bIvd4=ANShlFCZ{"
        "{!-zBl0&k*GIAD`N|4>fxdj;p$x7!PL#()xlAG*DwjzwIE>bbFJtw7<RD>K!=CWcfKjq~cxpIuM+DM)dqhyLu!YV`2(n#|fdkHF!"
        "a;S(3sEkUeiYlm%YN&}CsEu04EJW=jBTuGLAkTGC2lY`84bcFN(Fjctgl1@p7HE!EXbG07)@X;e=z#X<gpS~I)fwH;6+O@$JrRuF"
        "=!L%MgZ}7;ff#_n7=)o1f?){3aD-wcMqm`e5RTCpi!m5yk4Z3^Ksz3jFcDKQ8PhNoGcX;qFcWhy8*>qX`IrZ%{c{n8NGw1!7GWV4"
        "BL;DZ#ZoN6ax8-j@mPr!ScL?vMk3ZA3G1*H8?YY9*oYLku^F4N6<e?!+mMPK*oB=)xAzS8U^n(*FAiWo4k81GaR^6o1jlg<S@xd6"
        "33zY{Cy|ZQIEynlk8`+)3wB?ILzieT!;7o9f@{dZ4P3`9+{7K+#y#A{1Kh_WJj4?`#xp#H54m`O=Xi;{G>2Z(zOwsb9P-6G^p^a_"
        "?!!BLz<YecM|?&;zTykM;~ReB2Y%xh{^F1RpZ@>_<T|4RISQc)3s-ikd{Hj_1KhcxMg"
    )
)

SCRIPTS = {
    "Latin": "aàâäbcçdeéèêfghiïjklmnñoôöpqrsßtuüvwxyz",
    "Latin with capitals": "AÁBCÇDEÉFGHIİJKLMNOÖPQRSŞTUÜVWXYZæœøłđı",
    "Cyrillic": "абвгдеёжзийклмнопрстуфхцчшщъыьэюяАБВЇЄ",
    "Greek": "αάβγδεέζηήθικλμνξοόπρσςτυφχψωΑΣΩ",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآَُِّ",
    "Hebrew": "אבגדהוזחטיכךלמםנןסעפףצץקרשתָּ",
    "Devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढतथदधनपफबभमयरलवशषसहािीुूेैोौ्ं",
    "Chinese": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "Japanese": "あいうえおかきくけこさしすせそたちつてとなにぬねのカキクケコパピプペポーッャュョ日本語",
    "Korean": "가나다라마바사아자차카타파하각난닫랄맘밥삿앙한국어글",
    "Thai": "กขคงจชซดตถทนบปผพมยรลวสหอะาิีึืุูเแโใไ่้",
    "digits": "0123456789٠١٢३४५",
    "signs": ".,;:!?-–—'\"`´’“”«»()[]{}<>/\\|@#$%^&*_+=~§©®°",
}

# Characters that tokenizers treat differently, between the words and inside them.
ODD_TEXTS = [
    *("😀", "👩‍👩‍👧", "🇩🇪", "☕️", "é", "ạ̈́", "ﬁ", "①", "Ａ", "ﾊﾟ", "½", "№", "ǅ", "ſ", "K", "𝔘", "𐍈", "", "�"),
    *(
        "``",
        "''",
        "▁",
        "Ġ",
        "Ċ",
        "##",
        "</w>",
        "[UNK]",
        "[MASK]",
        "[mask]",
        " [SEP]",
        "<mask>",
        " <mask> ",
        "<MASK>",
        "<s>",
    ),
    *("</s>", "<unk>", "<pad>", "[PAD]", "[CLS]", "<e>", "<s>NOTUSED", "don't", "we'll've", "1,000.50", "\x00", "\x07"),
    *("\x1b[0m", "\x7f", "­", "​", "‎", "﻿", "⁠", "İ", "ß", "ẞ", "ΐ", "\u2028", "\x85"),
]

SPACES = [" "] * 12 + ["", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2009", " \n ", "\x0b", "\x1f"]

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

VOCABULARY = 700


def draw_lines(count: int, seed: int) -> list[str]:
    """Lines of a few words, in one script or several, with odd characters and odd spaces."""
    rng = np.random.default_rng(seed)
    letters = {script: [*alphabet] for script, alphabet in SCRIPTS.items()}
    words = [
        "".join(rng.choice(letters[script], rng.integers(1, 8)))
        for script in letters
        for _ in range(60 if len(letters[script]) > 20 else 20)
    ]
    share = 1 / (1 + rng.permutation(len(words)))
    lines = []
    for number in range(count):
        drawn = rng.choice(words, rng.integers(0, 7), p=share / share.sum()).tolist()
        for _ in range(number % 4):
            drawn.insert(int(rng.integers(len(drawn) + 1)), str(rng.choice(ODD_TEXTS)))
        spaces = rng.choice(SPACES, len(drawn) + 1).tolist()
        line = "".join(space + word for space, word in zip(spaces, drawn, strict=False))
        lines.append(line if number % 5 else line + spaces[-1])
    return [*lines[: count - 3], "", " ", "\n\t "]


def trained(model: str) -> tokenizers.Tokenizer:
    """A tokenizer of the library, trained on other lines, with the special tokens first."""
    lines = [" ".join(line.split()) for line in draw_lines(500, 3)]
    options: dict[str, Any] = {"vocab_size": VOCABULARY, "special_tokens": SPECIAL, "show_progress": False}
    if model == "WordPiece":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, trainer = pre_tokenizers.BertPreTokenizer(), trainers.WordPieceTrainer(**options)
    elif model == "BPE":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    else:
        tokenizer = tokenizers.Tokenizer(models.Unigram())
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


@functools.cache
def vocabulary(model: str) -> str:
    """The trained model as the text of tokenizer.json: each caller gets a copy."""
    return json.dumps(json.loads(trained(model).to_str())["model"])


# Each class with its model_type, and the tokens that its vocabulary begins with.
TOKENIZER_FAMILIES = {
    "DistilBertTokenizer": ("distilbert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
    "ElectraTokenizer": ("electra", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
    "MPNetTokenizer": ("mpnet", ["<s>", "<pad>", "</s>", "[UNK]"]),  # the mask is added behind the others
    "RobertaTokenizer": ("roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "XLMRobertaTokenizer": ("xlm-roberta", ["<s>", "<pad>", "</s>", "<unk>"]),
    "CamembertTokenizer": ("camembert", ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]),
    "AlbertTokenizer": ("albert", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "DebertaV2Tokenizer": ("deberta-v2", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
    "PreTrainedTokenizerFast": ("modernbert", ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]),
}

# The algorithm of each class.
OWN_MODEL = {
    "DistilBertTokenizer": "WordPiece",
    "ElectraTokenizer": "WordPiece",
    "MPNetTokenizer": "WordPiece",
    "RobertaTokenizer": "BPE",
    "XLMRobertaTokenizer": "Unigram",
    "CamembertTokenizer": "Unigram",
    "AlbertTokenizer": "Unigram",
    "DebertaV2Tokenizer": "Unigram",
    "PreTrainedTokenizerFast": "BPE",
}


def vocabulary_for(name: str) -> dict[str, Any]:
    """The arguments of a class of transformers that are its vocabulary."""
    model, first = json.loads(vocabulary(OWN_MODEL[name])), TOKENIZER_FAMILIES[name][1]
    if OWN_MODEL[name] == "Unigram":
        scores = [(token, 0.0) for token in first]
        return {"vocab": scores + [(token, score) for token, score in model["vocab"] if token not in SPECIAL]}
    others = [token for token in sorted(model["vocab"], key=model["vocab"].get) if token not in SPECIAL]
    numbers = {token: number for number, token in enumerate([*first, *others])}
    return {"vocab": numbers} | ({"merges": [tuple(pair) for pair in model["merges"]]} if "merges" in model else {})


def modern_bert(directory: Path, **settings: Any) -> None:
    """A tokenizer of no class, with its template and its normaliser in tokenizer.json."""
    vocabulary = vocabulary_for("PreTrainedTokenizerFast")
    backend = tokenizers.Tokenizer(models.BPE(vocabulary["vocab"], vocabulary["merges"]))
    backend.normalizer, backend.decoder = normalizers.NFC(), tokenizers.decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    ends = [(token, vocabulary["vocab"][token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", tokenizers.AddedToken("[MASK]", lstrip=True)])
    names = {f"{key}_token": f"[{key.upper()}]" for key in ("unk", "cls", "sep", "pad", "mask")}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names | inputs | settings)
    tokenizer.save_pretrained(directory)


def make_tokenizer(directory: Path, name: str, **settings: Any) -> Path:
    """A directory as a class of transformers saves it."""
    maps = OWN_MODEL[name] == "Unigram" and name != "DebertaV2Tokenizer"
    options = {"_spm_precompiled_charsmap": CHARACTER_MAP} if maps else {}
    if name == "PreTrainedTokenizerFast":
        modern_bert(directory, **settings)
    else:
        getattr(transformers, name)(**vocabulary_for(name), **options, **settings).save_pretrained(directory)
    change_tokenizer_config(directory, tokenizer_class=name)
    (directory / "config.json").write_text(json.dumps({"model_type": TOKENIZER_FAMILIES[name][0]}))
    return directory


def change_tokenizer_config(directory: Path, **settings: Any) -> Path:
    """Change settings in tokenizer_config.json."""
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))
    return directory


def write_vocabulary(directory: Path, name: str, **settings: Any) -> Path:
    """A directory with the vocabulary in the format of the class, as in older checkpoints, and settings."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary, file = vocabulary_for(name), getattr(transformers, name).vocab_files_names["vocab_file"]
    if file.endswith(".txt"):
        (directory / file).write_text("".join(f"{token}\n" for token in vocabulary["vocab"]), encoding="utf-8")
    elif file.endswith(".json"):
        (directory / file).write_text(json.dumps(vocabulary["vocab"]))
        merges = "".join(f"{first} {second}\n" for first, second in vocabulary["merges"])
        (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    else:
        (directory / file).write_bytes(sentence_pieces(name))
    change_tokenizer_config(directory, tokenizer_class=name, **settings)
    (directory / "config.json").write_text(json.dumps({"model_type": TOKENIZER_FAMILIES[name][0]}))
    return directory


# What SentencePiece's models have before all other tokens: 2 is the unknown one, 3 sets apart, 4 is of the user.
FIRST_PIECES = {
    "XLMRobertaTokenizer": [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<e>", 4)],
    "CamembertTokenizer": [("<unk>", 2), ("<s>", 3), ("</s>", 3)],
    "AlbertTokenizer": [("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 4)],
    "DebertaV2Tokenizer": [("[PAD]", 3), ("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2), ("<e>", 4)],
}


def sentence_pieces(name: str, algorithm: int = 1) -> bytes:
    """A SentencePiece model, written by its protocol."""
    model = SLOW.import_protobuf().ModelProto()
    first = FIRST_PIECES[name]
    for piece, kind in first:
        model.pieces.add(piece=piece, score=-float(kind == 2), type=kind)
    for piece, score in vocabulary_for(name)["vocab"]:
        if piece not in TOKENIZER_FAMILIES[name][1]:
            model.pieces.add(piece=piece, score=score)
    model.trainer_spec.model_type = algorithm
    model.trainer_spec.unk_id = [kind for _, kind in first].index(2)
    model.normalizer_spec.precompiled_charsmap = CHARACTER_MAP
    return model.SerializeToString()


def case_id(case: Any) -> str:
    return case if isinstance(case, str) else "-".join(case)


BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

WORD_PIECES = [
    *BERT_SPECIAL,
    "the",
    "cat",
    "Cat",
    "##s",
    "sat",
    "e",
    "é",
    "on",
    "mat",
    "##ted",
    "un",
    "##able",
    "!",
    "'",
    "中",
]
