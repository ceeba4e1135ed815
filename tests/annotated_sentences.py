"""Invented annotated sentences, and a substitute for spaCy."""

from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import bertjax
from experiments.shared.run import Run


def conllu(*sentences):
    """CoNLL-U of sentences, each a text and rows of id, form, tag, part, head, relation and maybe the last column."""
    blocks = []
    for text, *rows in sentences:
        lines = [] if text is None else [f"# text = {text}"]
        for row in rows:
            number, form, tag, part, head, relation, *last = row.split()
            lines.append("\t".join([number, form, "_", part, tag, "_", head, relation, "_", *(last or ["_"])]))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n\n"


SENTENCES = (
    (
        "the cat sat on the mat",
        *("1 the DT DET 2 det", "2 cat NN NOUN 3 nsubj Entity=(1-animal-new)", "3 sat VBD VERB 0 root"),
        *("4 on IN ADP 6 case", "5 the DT DET 6 det", "6 mat NN NOUN 3 obl"),
    ),
    (
        "the dog sat near a red door and slept",
        *("1 the DT DET 2 det Entity=(2-animal-new", "2 dog NN NOUN 3 nsubj Entity=2)", "3 sat VBD VERB 0 root"),
        *("4 near IN ADP 7 case", "5 a DT DET 7 det", "6 red JJ ADJ 7 amod", "7 door NN NOUN 3 obl"),
        *("8 and CC CCONJ 9 cc", "9 slept VBD VERB 3 conj"),
    ),
    (
        "red doors are old",
        "1 red JJ ADJ 2 amod",
        "2 doors NNS NOUN 4 nsubj",
        "3 are VBP AUX 4 cop",
        "4 old JJ ADJ 0 root",
    ),
    (
        "an old man saw the cat and he ran home",
        *("1 an DT DET 3 det Entity=(3-person-new", "2 old JJ ADJ 3 amod", "3 man NN NOUN 4 nsubj Entity=3)"),
        *("4 saw VBD VERB 0 root", "5 the DT DET 6 det", "6 cat NN NOUN 4 obj", "7 and CC CCONJ 9 cc"),
        *("8 he PRP PRON 9 nsubj Entity=(3-person-giv)", "9 ran VBD VERB 4 conj", "10 home RB ADV 9 advmod"),
    ),
    (
        "he didn't sleep near the door",
        *("1 he PRP PRON 4 nsubj Entity=(4-person-new)", "2-3 didn't _ _ _ _", "2 did VBD AUX 4 aux"),
        *("3 n't RB PART 4 advmod", "4 sleep VB VERB 0 root", "5 near IN ADP 7 case", "6 the DT DET 7 det"),
        "7 door NN NOUN 4 obl",
    ),
    ("cats sleep", "1 cats NNS NOUN 2 nsubj", "2 sleep VBP VERB 0 root"),
)


def write_sentences(path: Path) -> Path:
    """The sentences above as a file."""
    path.write_text(conllu(*SENTENCES), encoding="utf-8")
    return path


def make_run(embedder, path: Path, **more) -> Run:
    """A run of a tiny model on the sentences above."""
    settings = {"model": str(embedder), "conllu": str(write_sentences(path)), "spacy": None, "tagger": None}
    settings |= {"task": ["ewt-sample"], "tuned": [], "patterns": None}
    options = Namespace(**settings | {"limit": None, "seed": 0, "max_length": 40} | more)
    return Run(options, bertjax.load(embedder))


def fake_spacy(monkeypatch, tag, missing=False):
    """A module `spacy` whose models split at spaces; `tag` returns tag, part, head and relation of each word."""
    module = ModuleType("spacy")

    def load(name):
        if missing:
            raise OSError(f"[E050] Can't find model '{name}'.\nIt doesn't seem to be a package")
        return SimpleNamespace(pipe=lambda texts: (make_document(text, tag) for text in texts))

    module.load = load
    monkeypatch.setitem(__import__("sys").modules, "spacy", module)


def make_document(text, tag):
    """Tokens as in spaCy: a second space is a separate token."""
    document, here = [], 0
    for form in text.split(" "):
        document.append(SimpleNamespace(i=len(document), idx=here, text=form or " "))
        here += len(form) + 1
    for token, (name, part, head, relation) in zip(document, tag(text), strict=True):
        token.tag_, token.pos_, token.head, token.dep_ = name, part, document[head], relation
    return document
