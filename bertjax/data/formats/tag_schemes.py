"""Tagging schemes of entities: which tags form an entity, as seqeval's strict mode defines it (Nakayama 2018).

A tag is a mark and a type, such as `B-PER`. IOB2: each entity begins with B. IOE2: each ends with E. IOBES: B I E, or S
for a single word. BILOU: B I L, or U. IOB1: words of an entity are I; B begins an entity that follows another of its
type. Data whose only mark is I (IO) follow IOB1.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Entity = tuple[str, int, int]  # type, first word, one past the last
ENTITY_TAG = re.compile(r"[BIESLU]-.+", re.DOTALL)
OUTSIDE = ("O", "_")
FITS = 0.5  # a scheme fits data if its entities have at least this share of the words with tags of entities


@dataclass(frozen=True)
class _Scheme:
    """The pairs of neighbouring tags at which an entity begins, continues and ends.

    A pair is written as the mark of the previous tag, the mark of this one, and `=` if the types must be equal or `!`
    if they must differ; `*` stands for any mark.

    Args:
        marks: those of its tags.
        starts: an entity begins at this tag.
        inside: this tag continues the entity of the previous one.
        ends: the entity of the previous tag, which this one does not continue, is complete.
    """

    marks: str
    starts: tuple[str, ...]
    inside: tuple[str, ...]
    ends: tuple[str, ...]


SCHEMES = MappingProxyType(
    {
        "IOB2": _Scheme("BI", ("*B",), ("BI=", "II="), ("B*", "I*")),
        "IOE2": _Scheme("IE", ("OI", "OE", "EI", "EE", "II!", "IE!"), ("IE=", "II="), ("E*",)),
        "IOBES": _Scheme("BIES", ("*B", "*S"), ("BI=", "BE=", "II=", "IE="), ("S*", "E*")),
        "BILOU": _Scheme("BILU", ("*B", "*U"), ("BI=", "BL=", "II=", "IL="), ("U*", "L*")),
        "IOB1": _Scheme("IB", ("OI", "II!", "BI", "IB=", "BB="), ("BI=", "II="), ("I*", "BO", "BI!", "BB=")),
    }
)


def strict_entities(tags: Sequence[str], scheme: str) -> set[Entity]:
    """Entities that have the form of a scheme. Tags that the scheme does not have are outside of entities.

    Args:
        tags: of the words of a sentence.
        scheme: a name in `SCHEMES`.

    >>> sorted(strict_entities(["I-PER", "B-PER", "I-PER", "I-LOC"], "IOB2"))
    [('PER', 1, 3)]
    >>> sorted(strict_entities(["I-PER", "E-PER", "E-PER", "I-LOC"], "IOE2"))
    [('PER', 0, 2), ('PER', 2, 3)]
    """
    rules, found, start, before = SCHEMES[scheme], set[Entity](), -1, OUTSIDE
    for place, tag in enumerate([*(_split(tag, rules.marks) for tag in tags), OUTSIDE]):
        if start >= 0 and not _matches(rules.inside, before, tag):
            if _matches(rules.ends, before, tag):
                found.add((before[1], start, place))
            start = -1
        if start < 0 and _matches(rules.starts, before, tag):
            start = place
        before = tag
    return found


def scheme_of(sentences: Iterable[Sequence[str]]) -> tuple[str | None, int]:
    """The scheme that tags follow: of those that have all their marks, the one whose entities have the most words.

    Args:
        sentences: the tags of each. Only tags of the form X-TYPE count.

    Returns: the name of the scheme, None if none fits; and how many words with tags of entities are in none of its
        entities. Tags without entities follow IOB2.

    >>> scheme_of([["I-PER", "E-PER", "O"]]), scheme_of([["L-PER", "S-LOC"]])
    (('IOE2', 0), (None, 2))
    """
    several = [tags for tags in map(tuple, sentences) if any(map(ENTITY_TAG.fullmatch, tags))]
    tagged = [tag for tags in several for tag in tags if ENTITY_TAG.fullmatch(tag)]
    best, covered = None, 0
    for name, scheme in SCHEMES.items():
        if {tag[0] for tag in tagged} <= {*scheme.marks}:
            words = sum(end - start for tags in several for _, start, end in strict_entities(tags, name))
            if best is None or words > covered:
                best, covered = name, words
    return (None if covered < FITS * len(tagged) else best), len(tagged) - covered


def _split(tag: str, marks: str) -> tuple[str, str]:
    """The mark and the type of a tag; those of `O` for a tag that a scheme with these marks does not have."""
    return (tag[0], tag[1:].strip("-") or "_") if ENTITY_TAG.fullmatch(tag) and tag[0] in marks else OUTSIDE


def _matches(pairs: Sequence[str], before: tuple[str, str], tag: tuple[str, str]) -> bool:
    relation = "=" if before[1] == tag[1] else "!"
    return any(
        pair[0] in (before[0], "*") and pair[1] in (tag[0], "*") and pair[2:] in ("", relation) for pair in pairs
    )
