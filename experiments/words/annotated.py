"""Words of texts with their parts of speech and grammatical roles.

Word classes follow the Penn tags, as in the paper: nouns NN NNS NNP NNPS, verbs VB VBD VBG VBN VBP VBZ (including
auxiliaries, not modals), pronouns PRP PRP$. Where a source has no Penn tags, they follow Universal Dependencies: NOUN
PROPN, VERB AUX, PRON. Roles are spaCy's labels, as in the paper, and the corresponding labels of Universal
Dependencies:

    subjects   nsubj nsubjpass csubj csubjpass agent expl; nsubj:pass csubj:pass nsubj:outer csubj:outer obl:agent
    objects    dobj iobj dative attr oprd; obj

`agent` is the word "by", `obl:agent` the noun after it; UD has no separate labels for `attr` and `oprd`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertjax.data import Encoding
from experiments.words.spans import Span, pieces_of

CLASSES = {  # Penn tags, then UD parts of speech
    "noun": (("NN", "NNS", "NNP", "NNPS"), ("NOUN", "PROPN")),
    "verb": (("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), ("VERB", "AUX")),
    "pronoun": (("PRP", "PRP$"), ("PRON",)),
}
PARTS_OF_SPEECH, ROLES = ("nouns", "verbs", "pronouns"), ("subjects", "objects")
_SPACY_SUBJECTS = ("nsubj", "nsubjpass", "csubj", "csubjpass", "agent", "expl")
_UD_SUBJECTS = ("nsubj", "nsubj:pass", "nsubj:outer", "csubj", "csubj:pass", "csubj:outer", "expl", "obl:agent")
SUBJECTS = frozenset(_SPACY_SUBJECTS + _UD_SUBJECTS)
OBJECTS = frozenset(("dobj", "iobj", "dative", "attr", "oprd", "obj"))
# All Penn tags, including those that the English Web Treebank added.
PENN = frozenset(
    """CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP
    VBZ WDT WP WP$ WRB . , : `` '' " # $ ( ) -LRB- -RRB- ADD AFX GW HYPH NFP XX NIL""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Word:
    """A word of a text.

    Args:
        form: as written in the text.
        span: its first character, and one past its last.
        tag: the Penn tag; empty where the source uses other tags.
        part: the part of speech in Universal Dependencies.
        head: the index, among the text's words, of the word it depends on; -1 for none.
        relation: its dependency relation to the head.
    """

    form: str
    span: Span
    tag: str
    part: str
    head: int
    relation: str

    @property
    def kind(self) -> str:
        """The word class: noun, verb, pronoun, or the empty string.

        >>> Word("goes", (0, 4), "VBZ", "VERB", -1, "root").kind, Word("du", (0, 2), "", "PRON", 1, "nsubj").kind
        ('verb', 'pronoun')
        """
        kinds = {
            name for name, (tags, parts) in CLASSES.items() if (self.tag in tags if self.tag else self.part in parts)
        }
        return min(kinds, default="")


@dataclass(frozen=True)
class Annotated:
    """A text and its words.

    Args:
        text: the text.
        words: in order.
        mentions: pairs of an entity and a word that heads a mention of it; None where the source does not mark them.
    """

    text: str
    words: tuple[Word, ...]
    mentions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True)
class AnnotatedSample:
    """Texts or pairs of texts, what the model reads of each, and their words.

    Args:
        source: one line saying where they come from.
        ids: of the examples.
        texts: as tokens; a pair is one row.
        annotations: for each example its text, or its two texts.
        unknown: the members of `PARTS_OF_SPEECH` and `ROLES` that the annotation lacks.
    """

    source: str
    ids: tuple[int | str, ...]
    texts: tuple[Encoding, ...]
    annotations: tuple[tuple[Annotated, ...], ...]
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def to_dict(self) -> dict[str, Any]:
        """The sample's entry in results."""
        rows = [
            [example_id, *(text.text for text in texts)]
            for example_id, texts in zip(self.ids, self.annotations, strict=True)
        ]
        digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        return {"examples": len(self), "source": self.source, "sha256": digest}


def word_pieces(encoding: Encoding, texts: Sequence[Annotated]) -> list[list[list[int]]]:
    """For each text of an example, the tokens that overlap each of its words; none for a word that was cut off."""
    return [[pieces_of(encoding, word.span, segment) for word in text.words] for segment, text in enumerate(texts)]
