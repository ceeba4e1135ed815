"""Names in the code are the field's terms: words that stood for several things do not come back."""

import ast
import re

import pytest

from tests.layering import ROOT

# Words that were used as nouns or for several things, and what to write.
WORDS = {
    **dict.fromkeys(["told", "said"], "metadata, message, description"),
    **dict.fromkeys(["asked", "wanted"], "targets, requested"),
    "given": "arguments, inputs",
    **dict.fromkeys(["weigh", "weighed", "weighing", "evidence"], "statistics, test"),
    **dict.fromkeys(["donor", "donors", "donate", "donated"], "source, sources"),
    **dict.fromkeys(["rooms", "door", "doors", "house"], "package, public API"),
    **dict.fromkeys(["oracle", "rehearsal", "likeliest", "judge", "judges"], "reference, dry run, most likely, metric"),
    **dict.fromkeys(["beside", "alike"], "others, equal"),
}
KEYS = {"beside", "donor_score"}  # keys of saved files, which stay
FILES = sorted(path for folder in ("bertjax", "experiments", "benchmarks") for path in (ROOT / folder).glob("**/*.py"))


def words_of(name):
    """The words of an identifier, in lower case."""
    return re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())


def names_in(source):
    """Functions, classes, arguments and variables that a source defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def old_words(source):
    """Names in a source that contain one of `WORDS`, with what to write."""
    return {
        name: WORDS[word] for name in names_in(source) if name not in KEYS for word in words_of(name) if word in WORDS
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_use_the_terms_of_the_field(path):
    assert old_words(path.read_text()) == {}


def test_old_words_are_found():
    source = "class Judge:\n    def weigh(self, donors, batch):\n        told = batch\n        return told\n"
    assert set(old_words(source)) == {"Judge", "weigh", "donors", "told"}
