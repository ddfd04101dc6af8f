"""The blocks of code of all pages: what can be checked of them without running them."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
import pytest
from kombu.transport import TRANSPORT_ALIASES

import kombu_redisdelay  # noqa: F401 - it makes the URL schemes known
from kombu_redisdelay.cli import delayed
from tests.docs.page import DOCS, PAGES, Block, blocks

# Not installed where types are checked.
yaml: Any = import_module("yaml")

ALL = [block for page in PAGES for block in blocks(page)]


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_is_python(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_is_yaml(block: Block) -> None:
    assert isinstance(yaml.safe_load(block.text), (dict, list))


@pytest.mark.parametrize("block", of("ini"), ids=str)
def test_a_unit_of_systemd_has_its_sections(block: Block) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(block.text)
    assert unit.sections() == ["Unit", "Service", "Install"]


def commands() -> Iterator[tuple[str, str]]:
    """Where it stands, and what follows `celery delayed`, of all commands of ours on all pages."""
    for block in ALL:
        for line in re.sub(r"\\\n", " ", block.text).split("\n"):
            # In a shell, in a unit, in a service of Compose.
            found = re.search(r"(?:^|[$=/ ;])celery -A \S+ delayed\b([^#|>;]*)", line)
            # In a container of Kubernetes.
            listed = re.search(r"command: \[celery, -A, \w+, delayed, (.*)\]", line)
            if found:
                yield str(block), found[1].strip()
            elif listed:
                yield str(block), shlex.join(word.strip(' "') for word in listed[1].split(","))


@pytest.mark.parametrize(("place", "line"), sorted(set(commands())), ids=lambda each: each.replace(" ", "_"))
def test_a_command_has_these_options(place: str, line: str) -> None:
    words = shlex.split(line.replace("ID...", "ID").replace("...", ""))
    command: click.Command = delayed
    context = click.Context(command, info_name="delayed")
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"{place}: no such command: {line}"
        command, words = found, words[1:]
        context = click.Context(command, context, info_name=command.name)
    command.make_parser(context).parse_args(words)


def test_there_are_commands() -> None:
    """The pattern still finds them."""
    assert len(list(commands())) > 60


def test_each_scheme_is_on_the_page_of_urls() -> None:
    page = (DOCS / "urls.rst").read_text()
    # kombu makes a scheme with `+socket` out of each one that is known.
    schemes = {name for name in TRANSPORT_ALIASES if name.startswith("redisdelay")} | {"redisdelay+socket"}
    assert set(re.findall(r"``(redisdelay[\w+-]*)://", page)) == schemes
