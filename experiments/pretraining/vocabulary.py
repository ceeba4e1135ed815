"""A vocabulary of word pieces (Wu et al. 2016) made from texts, and the tokenizer that uses it."""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from bertjax import Tokenizer
from bertjax.atomic_files import atomic_write
from bertjax.checkpoints import saving
from bertjax.errors import DataError
from bertjax.tasks import UNKNOWN

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILE = "vocab.txt"
COMMON = 20  # occurrences of a letter that it has a piece for; words with rarer ones are unknown
REPEATED = 2  # occurrences of two pieces in a row before they become one


def train_vocabulary(texts: Sequence[str], size: int) -> list[str]:
    """The word pieces of texts, special tokens first; the same for the same texts.

    Args:
        texts: in lower case or not: pieces are in lower case and without accents.
        size: how many pieces there are, or fewer where the texts do not have as many.

    Raises:
        DataError: the size has no room for the letters.
    """
    named = [text.replace(UNKNOWN, " ") for text in texts]
    normalizer = BertNormalizer(lowercase=True)
    letters = Counter(letter for text in named for letter in normalizer.normalize_str(text) if not letter.isspace())
    common = sorted(letter for letter, number in letters.items() if number >= COMMON)
    # As if they were special, since the library would number them in another order each time.
    first = [*SPECIAL, *common, *(f"##{letter}" for letter in common)]
    if not common or size < len(first):
        raise DataError(f"{size} word pieces have no room for {len(common)} letters, within and at the start of words")
    backend = tokenizers.Tokenizer(WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizer, BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=REPEATED,
        limit_alphabet=len(common),
        special_tokens=first,
        show_progress=False,
    )
    backend.train_from_iterator(named, trainer)
    pieces = backend.get_vocab()
    return sorted(pieces, key=lambda piece: pieces[piece])


def make_tokenizer(pieces: Sequence[str], max_length: int) -> Tokenizer:
    """BERT's tokenizer in lower case with these pieces.

    Args:
        max_length: the most tokens that the model takes.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / FILE).write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max_length}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        return Tokenizer.from_pretrained(directory)


def save_tokenizer(tokenizer: Tokenizer, pieces: Sequence[str], directory: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `vocab.txt`. Raises `OutputError`."""
    tokenizer.save_pretrained(directory)
    with saving(directory, "vocabulary", [FILE]):
        atomic_write(directory / FILE, "".join(f"{piece}\n" for piece in pieces).encode())
