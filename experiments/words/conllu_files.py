"""CoNLL-U files: words with their spans in the text and, where a file has them, mentions of entities.

The text of a sentence is its `# text`. A multiword token such as "don't" is one stretch of it. Where the token's words
spell it, as "do" and "n't" do, each has a part; otherwise they all share its span. Mentions of entities are those
of `Entity` in the last column, as GUM (Zeldes 2017) writes them.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import conllu

from experiments.words.annotated import PENN, Annotated, Word
from experiments.words.spans import Span

Token = dict[str, Any]


def read_sentences(path: Path) -> list[Annotated]:
    """All sentences of a file.

    Penn tags are kept if all tags of the file are Penn tags. In a file with mentions, a sentence without any has an
    empty tuple of them; in a file without, `mentions` is None.
    """
    path = Path(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        sentences = [(sentence.metadata.get("text"), list(sentence)) for sentence in conllu.parse_incr(file)]
    penn = {word["xpos"] for _, tokens in sentences for word in tokens if type(word["id"]) is int} <= PENN
    entities = any("Entity" in (word["misc"] or {}) for _, tokens in sentences for word in tokens)
    return [_sentence(text, tokens, penn, entities) for text, tokens in sentences]


def _sentence(text: str | None, tokens: Sequence[Token], penn: bool, entities: bool) -> Annotated:
    text = text or join_forms(tokens)
    words = [token for token in tokens if type(token["id"]) is int]  # no multiword tokens, no empty nodes
    positions = {token["id"]: position for position, token in enumerate(words)} | {0: -1, None: -1}
    spans = find_spans(text, tokens)
    annotated = tuple(
        Word(
            form=token["form"],
            span=span,
            tag=token["xpos"] if penn else "",
            part=token["upos"] or "",
            head=positions[token["head"]],
            relation=token["deprel"] or "",
        )
        for token, span in zip(words, spans, strict=True)
    )
    marks = [(token["misc"] or {}).get("Entity") or "" for token in words]
    return Annotated(text, annotated, tuple(find_mentions(marks, annotated)) if entities else None)


def join_forms(tokens: Sequence[Token]) -> str:
    """The text of a sentence joined from its words, for files that leave it out."""
    covered = {member for token in tokens for member in _members(token)}
    single = [token for token in tokens if type(token["id"]) is int and token["id"] not in covered]
    written = [token for token in tokens if token in single or _members(token)]
    spaced = [token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ") for token in written]
    return "".join(spaced).strip()


def find_spans(text: str, tokens: Sequence[Token]) -> list[Span]:
    """The span of each word in a text.

    Raises:
        LookupError: the text does not contain the words.

    >>> find_spans("I don't.", [{"id": 1, "form": "I"}, {"id": (2, "-", 3), "form": "don't"},
    ...                         {"id": 2, "form": "do"}, {"id": 3, "form": "n't"}, {"id": 4, "form": "."}])
    [(0, 1), (2, 4), (4, 7), (7, 8)]
    """
    forms = {token["id"]: token["form"] for token in tokens if type(token["id"]) is int}
    spans: dict[int, Span] = {}
    start = 0
    for token in tokens:
        members = _members(token)
        empty = type(token["id"]) is not int and not members
        if empty or token["id"] in spans:
            continue
        start += len(text[start:]) - len(text[start:].lstrip())
        end = start + len(token["form"])
        if text[start:end] != token["form"]:
            raise LookupError(f"{token['form']!r} does not stand at character {start} of {text!r}")
        spans |= _split((start, end), {number: forms[number] for number in members or [token["id"]]}, token["form"])
        start = end
    return [spans[number] for number in forms]


def _members(token: Token) -> list[int]:
    """The ids of the words of a multiword token; none for any other token."""
    token_id = token["id"]
    return list(range(token_id[0], token_id[2] + 1)) if type(token_id) is tuple and token_id[1] == "-" else []


def _split(span: Span, forms: dict[int, str], form: str) -> dict[int, Span]:
    if "".join(forms.values()) != form:
        return dict.fromkeys(forms, span)
    spans, start = {}, span[0]
    for number, part in forms.items():
        spans[number] = (start, start + len(part))
        start += len(part)
    return spans


def find_mentions(marks: Sequence[str], words: Sequence[Word]) -> Iterator[tuple[str, int]]:
    """Mentions of entities as (entity, the mention's head: its first word that depends on a word outside it).

    Args:
        marks: each word's `Entity` in GUM's form: `(7-person-...` opens, `7)` closes, `(7-person-...)` does both.
        words: the words.

    Raises:
        ValueError: a mention is closed that is not open, or depends on itself alone.
    """
    opened: list[tuple[str, int]] = []
    for position, mark in enumerate(marks):
        for opens, closes in re.findall(r"\(([^()]+)|([^()]*\))", mark):
            if opens:
                opened.append((opens.split("-")[0].split("[")[0], position))
                continue
            name = closes[:-1].split("[")[0]  # none in "(7-person-...)", which closes what it opened
            open_here = [index for index, (entity, _) in enumerate(opened) if name in ("", entity)]
            if not open_here:
                raise ValueError(f"Entity={mark} closes a mention that is not open")
            entity, first = opened.pop(open_here[-1])
            mention = range(first, position + 1)
            heads = [word for word in mention if words[word].head not in mention]
            if not heads:
                raise ValueError(f"the dependencies within Entity={mark} form a cycle")
            yield entity, heads[0]
