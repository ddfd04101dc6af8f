"""What pages show of commands without being followed: its shape is what the commands print."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import kombu_redisdelay.operations.doctor
from kombu_redisdelay.broker.failure import RESULT
from kombu_redisdelay.broker.processes import new_consumer
from tests.cli.site import QUEUE, Site
from tests.docs.page import PAGES, Block, blocks
from tests.finished import keep_finished
from tests.web.states import dead, delivered, failed, ready, scheduled
from tools.harness.redis_server import RedisServer

ID = "5ab0c1de-93b5-4a0e-8f37-0d2c9a6b7e10"

#: The heading of a table.
_HEADING = re.compile(r" *[A-Z]+(?: +[A-Z]+)+(?: TO 4 WEEKS)?$")


def shown() -> Iterator[tuple[Block, str, str]]:
    """Commands of ours on pages, with what follows `celery delayed`, and the first line of their output."""
    for page in PAGES:
        for block in blocks(page):
            lines = block.text.split("\n")
            for line, first in pairwise(lines):
                found = re.match(r"\$ celery -A \w+ delayed (.*)", line)
                if found and block.language == "text":
                    yield block, found[1], first


SHOWN = list(shown())
TABLES = [(block, words, first) for block, words, first in SHOWN if _HEADING.match(first)]


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    site = Site(server)
    delivered(site, "x1")
    name = new_consumer("celery@web-1")
    site.add_consumer(name, 60_000)
    ready(site, ID)
    site.redis.hset(site.store.keys("celery").unacked(name), "1", "0:" + site.redis.rpop("celery"))
    for queue in ("celery", "emails"):
        scheduled(site, f"s-{queue}", queue=queue, seconds=300)
        ready(site, f"r-{queue}", queue=queue)
    dead(site, "d1")
    site.text("fair", "-Q", "imports", "--force")
    site.text("pause", "-Q", "imports", "--key", "tenant-13")
    site.text("limit", "-Q", "imports", "--key", "tenant-42", "--concurrency", "8")
    yield site
    site.close()


@pytest.mark.parametrize(("block", "words", "heading"), TABLES, ids=str)
def test_the_heading_of_a_table(site: Site, block: Block, words: str, heading: str) -> None:
    if "failed" in words:
        # Where none has failed, other tables have no column for it.
        failed(site, "f1", **({"returned": RESULT} if "RETURNED" in heading else {}))
    if "finished" in words:
        keep_finished(site.store, QUEUE, "f1", ran=14.0)
    first = site.text(*arguments(words)).split("\n", 1)[0]
    # One column is there only while something keeps messages waiting, one only if something has expired.
    without = [
        [name for name in line.split() if name not in ("REASON", "EXPIRED")] for line in (first, heading)
    ]
    assert without[0] == without[1]


def test_there_are_tables() -> None:
    assert len(TABLES) > 10


def test_the_fields_of_a_message(site: Site) -> None:
    [block] = [block for block, words, _ in SHOWN if words == f"show {ID}"]
    fields = set(re.findall(r"^(\w+(?: \w+)?) {2,}\S", block.text, re.M))
    printed = set(re.findall(r"^(\w+(?: \w+)?) {2,}\S", site.text("show", ID), re.M))
    assert len(fields) > 5
    assert fields <= printed


def test_what_adopt_says(site: Site) -> None:
    numbers = re.compile(r"\d+")
    printed = numbers.sub("N", site.text("adopt", "--dry-run")).strip()
    found = {block.text for block, words, _ in SHOWN if words == "adopt --dry-run"}
    would = [line for text in found for line in re.findall("^Would adopt .*", text, re.M)]
    assert len(would) > 2
    assert {numbers.sub("N", line) for line in would} == {printed}


#: A line of the doctor that says more than that all is well: what it has found, or its advice below.
_SAID = re.compile(r"(?:(?:warning|wrong) +(?:queue )?\w+: |        +(?!servers? ))(.+)")


def _said_by_the_doctor() -> set[str]:
    """The texts in the code, as patterns: what is put into them may be anything."""
    package = Path(kombu_redisdelay.operations.doctor.__file__).parent
    found = set()
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)):
                    found.add(re.escape(text))
                case ast.JoinedStr(values=parts):
                    found.add(
                        "".join(
                            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                            for part in parts
                        )
                    )
    # Not those that would match any line.
    return {pattern for pattern in found if len(pattern.replace(".+", "")) > 9}


def test_what_the_doctor_says() -> None:
    lines = [
        (str(block), found[1])
        for block, words, _ in SHOWN
        if words == "doctor"
        for line in block.text.split("\n")
        if (found := _SAID.match(line)) and len(found[1].split()) > 3
    ]
    assert len(lines) > 10
    patterns = _said_by_the_doctor()
    # They name the app of the command.
    said = [(where, text.replace("`celery -A shop ", "`celery ")) for where, text in lines]
    assert [line for line in said if not any(re.fullmatch(each, line[1]) for each in patterns)] == []


def arguments(words: str) -> list[str]:
    """The words of a command, without what picks messages that are not here."""
    return [word for word in shlex.split(words) if "*" not in word and word != "--task"]
