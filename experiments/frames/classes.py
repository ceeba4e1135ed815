"""Classes of words, so that a word is compared with others of its kind.

Where a source has parts of speech, they are the classes: noun, pronoun, verb, adjective, adverb, function. Where it has
none (the authors' sentences), a list of English function words and pronouns separates these from all other words, which
are `content`: this needs no tagger, and nouns, verbs and adjectives form one class. A word with neither letter nor
digit is a mark, whatever its tag.
"""

from collections.abc import Mapping, Sequence

MARK, CONTENT, FUNCTION, PRONOUN = "mark", "content", "function", "pronoun"

# The first prefix of the tag in lower case decides.
TAGSETS: Mapping[str, Mapping[str, str]] = {
    "BNC": {"n": "noun", "pn": PRONOUN, "v": "verb", "aj": "adjective", "av": "adverb"},  # CLAWS 5
    "PENN": {  # as TreeTagger writes it: NP for names, PP for pronouns
        **{"nn": "noun", "np": "noun", "pp$": FUNCTION, "pp": PRONOUN, "prp$": FUNCTION, "prp": PRONOUN},
        **{"wp$": FUNCTION, "wp": PRONOUN, "v": "verb", "md": "verb", "jj": "adjective", "rb": "adverb"},
    },
    "UPOS": {
        **{"noun": "noun", "propn": "noun", "pron": PRONOUN, "verb": "verb", "aux": "verb"},
        **{"adj": "adjective", "adv": "adverb"},
    },
}

_PRONOUNS = (
    "i you he she it we they me him us them who whom mine yours hers ours theirs myself yourself himself herself "
    "itself ourselves yourselves themselves oneself one ones someone somebody something anyone anybody anything "
    "everyone everybody everything nobody nothing none"
)
_FUNCTION_WORDS = (
    "a an the this that these those my your his her its our their some any no every each either neither both all "
    "many much few several such what which whose another other "
    "of in on at by for from with without to into onto upon over under through throughout across along around "
    "about above below behind before after between among against during until till since toward towards beyond "
    "beside besides near inside outside within off out up down like unlike despite per via as than "
    "and or but nor so yet if because although though while whereas whether unless once when where why how "
    "be am is are was were been being have has had having do does did doing done will would shall should can "
    "could may might must ought not n't 's 're 've 'll 'd 'm there oh yes"
)
PRONOUNS = frozenset(_PRONOUNS.split())
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def class_of(word: str, tag: str = "", tagset: str = "") -> str:
    """The class of a word by its tag, or by the list if it has none.

    >>> [class_of(word) for word in ("He", "the", "stretched", ".")]
    ['pronoun', 'function', 'content', 'mark']
    >>> [class_of("x", tag, "BNC") for tag in ("NP0", "PNP", "PRP", "VVD-VVN")]
    ['noun', 'pronoun', 'function', 'verb']
    >>> [class_of("x", tag, "PENN") for tag in ("nns", "PP", "PP$", "in")]
    ['noun', 'pronoun', 'function', 'function']
    """
    if not any(character.isalnum() for character in word):
        return MARK
    if tag:
        prefixes = TAGSETS[tagset].items()
        return next((name for prefix, name in prefixes if tag.lower().startswith(prefix)), FUNCTION)
    lower = word.lower()
    return PRONOUN if lower in PRONOUNS else FUNCTION if lower in FUNCTION_WORDS else CONTENT


def classes_of(words: Sequence[str], tags: Sequence[str] = (), tagset: str = "") -> tuple[str, ...]:
    """The classes of a sentence's words: by their tags if all have one, by the list otherwise.

    >>> classes_of(["dogs", "ran"], ["NN2", "VVD"], "BNC")
    ('noun', 'verb')
    >>> classes_of(["dogs", "ran"], ["NN2", ""], "BNC")
    ('content', 'content')
    """
    if tagset not in TAGSETS or len(tags) != len(words) or not all(tags):
        return tuple(map(class_of, words))
    return tuple(class_of(word, tag, tagset) for word, tag in zip(words, tags, strict=True))
