"""What comes from elsewhere: what builds a release, and what the page stands on."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".github" / "constraints.txt"


@pytest.mark.parametrize("name", ["release", "tests"])
def test_actions_are_named_by_their_commits(name: str) -> None:
    """A tag may be moved to other code."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)] == []


def test_what_builds_a_release_has_a_version() -> None:
    pinned = [Requirement(line) for line in CONSTRAINTS.read_text().splitlines() if line[0] != "#"]
    assert all(len(each.specifier) == 1 and str(each.specifier).startswith("==") for each in pinned)
    groups = (ROOT / "pyproject.toml").read_text().partition("package = [")[2].partition("]")[0]
    needed = {"tox", "setuptools", *re.findall(r'"([\w-]+)"', groups)}
    assert needed - {each.name for each in pinned} == set()
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert release.index("PIP_CONSTRAINT=$PWD/.github/constraints.txt") < release.index("pip install tox")


@pytest.mark.parametrize(
    ("name", "hole", "closed"),
    [("h11", "0.14.0", "0.16.0"), ("jinja2", "3.1.5", "3.1.6"), ("starlette", "0.49.0", "0.49.1")],
)
def test_the_page_stands_on_nothing_with_a_known_hole(name: str, hole: str, closed: str) -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.extras_require"]["web"].split("\n")
    needed = {each.name: each for each in map(Requirement, filter(None, lines))}
    assert not needed[name].specifier.contains(hole)
    assert needed[name].specifier.contains(closed)
