"""What is supported is said in more than one place. All say the same, and tox tests it."""

from __future__ import annotations

import re
from configparser import ConfigParser
from importlib import import_module
from typing import Any

import pytest

import kombu_redisdelay
from tests.examples.site import ROOT

# Not installed where types are checked.
yaml: Any = import_module("yaml")

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
KOMBUS = ["5.5", "5.6", "5.7"]

#: Environments of tox that are made of factors.
_FACTORS = re.compile(r"py3\d\dt?(-kombu\d\d)?(-redis\d\d)?(-hiredis)?")


def _config(name: str) -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / name)
    return config


def test_classifiers() -> None:
    classifiers = _config("setup.cfg")["metadata"]["classifiers"]
    assert re.findall(r":: (3\.\d+)$", classifiers, re.MULTILINE) == PYTHONS
    assert _config("setup.cfg")["options"]["python_requires"] == f">={PYTHONS[0]}"


def test_tox() -> None:
    tox = _config("tox.ini")["tox"]
    numbers = ",".join(python.replace(".", "") for python in PYTHONS)
    for kombu in KOMBUS:
        assert f"py{{{numbers}}}-kombu{kombu.replace('.', '')}-" in tox["labels"]
    tested = tox["envlist"].split()
    for python in PYTHONS:
        assert any(name.startswith(f"py{python.replace('.', '')}-") for name in tested)
    for kombu in KOMBUS:
        assert any(f"-kombu{kombu.replace('.', '')}-" in name for name in tested)


@pytest.mark.parametrize("name", ["README.md", "VERSIONS.md", "docs/install.rst"])
def test_text(name: str) -> None:
    text = (ROOT / name).read_text()
    assert f"{PYTHONS[0]} to {PYTHONS[-1]}" in text
    assert f"{KOMBUS[0]} to {KOMBUS[-1]}" in text
    assert "4.6" in text or name == "README.md"
    assert "6.2" in text


def test_requirements() -> None:
    options = _config("setup.cfg")["options"]
    major, minor = KOMBUS[-1].split(".")
    limits = f">={KOMBUS[0]},<{major}.{int(minor) + 1}"
    # Not `kombu[redis]`: kombu's extra has upper limits of redis-py that keep applications away which have
    # another one.
    required = [f"kombu{limits}", "packaging", "redis>=4.6,!=5.0.2", "python-dateutil"]
    assert options["install_requires"].split() == required
    extras = _config("setup.cfg")["options.extras_require"]
    found = re.findall(r"celery(\S+)", "\n".join(extras[name] for name in ("celery", "cli", "web")))
    assert found == [limits] * 3


@pytest.mark.parametrize(
    "path", ["compose/Dockerfile", "django_shop/requirements.txt", "fastapi_digest/requirements.txt"]
)
def test_examples_pin_this_release(path: str) -> None:
    major, minor, *_ = kombu_redisdelay.__version__.split(".")
    text = (ROOT / "examples" / path).read_text()
    [pinned] = re.findall(r"kombu-redisdelay\[\S+\](\S*?)\"?$", text, re.MULTILINE)
    assert pinned == f"=={major}.{minor}.*"


def test_all_is_all_extras() -> None:
    extras = dict(_config("setup.cfg")["options.extras_require"])
    [of_all] = re.findall(r"^kombu-redisdelay\[(.+)\]$", extras.pop("all").strip())
    # That of the command line and of the page have Celery.
    assert {*of_all.split(","), "celery"} == set(extras)


def test_the_changes_have_the_version() -> None:
    [newest, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest in (kombu_redisdelay.__version__, "unreleased")


@pytest.mark.parametrize("name", ["tests", "release"])
def test_workflows_run_environments_of_tox(name: str) -> None:
    workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    named = []
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("include", ())
        named += [each for row in matrix for each in row["tox"].split(",")]
        runs = " ".join(step.get("run", "") for step in job["steps"])
        named += re.findall(r"tox -e ([\w-]+)", runs)
    sections = {section.removeprefix("testenv:") for section in _config("tox.ini").sections()}
    assert named
    for each in named:
        assert each in sections or _FACTORS.fullmatch(each), each
    if name == "tests":
        assert set(_config("tox.ini")["tox"]["envlist"].split()) <= set(named)
