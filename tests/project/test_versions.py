"""Versions are written once, or agree: in the package, its citation, the changelog, and the pinned sets."""

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import bertjax

ROOT = Path(__file__).parents[2]
SETTINGS = configparser.ConfigParser()
SETTINGS.read(ROOT / "setup.cfg")
PYTHONS = ("3.11", "3.12", "3.13")
# For devices that the machine may not have, and for the site, with versions in docs/requirements.txt.
ELSEWHERE = ("cuda", "tpu", "docs")


def requirements(*extras):
    """What setup.cfg asks for, by hand, with these extras."""
    texts = [SETTINGS["options"]["install_requires"], *(SETTINGS["options.extras_require"][name] for name in extras)]
    lines = [line for text in texts for line in text.splitlines() if line and not line.startswith("bertjax[")]
    return [Requirement(line) for line in lines]


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    found = dict(line.split(";")[0].strip().split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(package): Version(version) for package, version in found.items()}


def requirements_of(python, *extras):
    return [one for one in requirements(*extras) if not one.marker or one.marker.evaluate({"python_version": python})]


@pytest.mark.parametrize("python", PYTHONS)
def test_pinned_versions_cover_all_requirements_and_are_allowed(python):
    pinned = pins(f"constraints-py{python.replace('.', '')}.txt")
    extras = [name for name in SETTINGS["options.extras_require"] if name not in ELSEWHERE]
    assert len(extras) > 6
    for one in requirements_of(python, *extras):
        assert pinned[canonicalize_name(one.name)] in one.specifier, one


def test_the_pinned_versions_of_the_site_are_allowed():
    pinned = pins("docs/requirements.txt")
    for one in requirements("docs")[len(requirements()) :]:
        assert pinned[canonicalize_name(one.name)] in one.specifier, one


def test_the_oldest_versions_are_the_floors():
    pinned = pins("constraints-oldest.txt")
    for one in requirements_of("3.11", "torch", "adapters", "datasets", "ranking", "experiments", "smoke"):
        (floor,) = [Version(part.version) for part in one.specifier if part.operator == ">="]
        assert pinned[canonicalize_name(one.name)] == floor, one


def test_python_versions_are_the_same_everywhere():
    classifiers = SETTINGS["metadata"]["classifiers"]
    assert tuple(re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)) == PYTHONS
    assert SETTINGS["options"]["python_requires"] == f">={PYTHONS[0]}"
    assert {path.name for path in ROOT.glob("constraints-py*.txt")} == {
        f"constraints-py{python.replace('.', '')}.txt" for python in PYTHONS
    }


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == bertjax.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[(.*?)\](.*)", changelog, re.MULTILINE | re.DOTALL)
    assert newest[1] == bertjax.__version__ or f"release, {bertjax.__version__}." in newest[2]
    assert SETTINGS["metadata"]["version"] == "attr: bertjax.__version__"
