"""Names in the code are the field's terms: words that stood for several things do not come back."""

import ast
import re

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
# Words that are no names of a test: a participle, where a noun is meant.
ALONE = {"own": "custom, target, or the noun that is meant", "made": "result, model, directory or the like"}
KEYS = {"beside", "donor_score"}  # keys of saved files, which stay


def modules_in(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).glob("**/*.py"))


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


def old_words(source, alone=()):
    """Names in a source that contain one of `WORDS`, or are one of `alone`, with what to write."""
    names = [name for name in names_in(source) if name not in KEYS]
    found = {name: WORDS[word] for name in names for word in words_of(name) if word in WORDS}
    return found | {name: ALONE[name] for name in names if name in alone}


def test_names_use_the_terms_of_the_field():
    for path in modules_in("bertjax", "experiments", "benchmarks"):
        assert old_words(path.read_text()) == {}, path


def test_names_in_tests_use_the_terms_of_the_field():
    for path in modules_in("tests"):
        assert old_words(path.read_text(), ALONE) == {}, path


def test_old_words_are_found():
    source = "class Judge:\n    def weigh(self, donors, batch):\n        told = own = batch\n        return told\n"
    assert set(old_words(source)) == {"Judge", "weigh", "donors", "told"}
    assert set(old_words(source, ALONE)) == {"Judge", "weigh", "donors", "told", "own"}


def described(source):
    """Each parameter in the docstrings of a source, as it is named there, and its description's first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = ast.get_docstring(node) or ""
            for section in re.findall(r"^(?:Args|Attributes):\n((?: +.*\n?)+)", text, re.M):
                yield from re.findall(r"^ {4}([\w, ]+): (.*)", section, re.M)


def unclear(source):
    """Parameters that share a sentence, or whose sentence has no noun: "labels: of the examples"."""
    return [name for name, text in described(source) if "," in name or re.match(r"(of|that|as in|by default) ", text)]


def test_each_parameter_has_a_sentence_with_a_noun():
    found = {path: unclear(path.read_text()) for path in modules_in("bertjax")}
    assert {path: names for path, names in found.items() if names} == {}


def test_unclear_sentences_are_found():
    lines = [
        "def f(a, b, c):",
        '    """One.',
        "",
        "    Args:",
        "        a, b: numbers.",
        "        c: of both.",
        '    """',
    ]
    assert unclear("\n".join(lines)) == ["a, b", "c"]
