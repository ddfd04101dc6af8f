"""Each page that a reader follows with a terminal is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import DOCS, PAGES, blocks
from tests.docs.session import Session, matches
from tools.harness.redis_server import RedisServer

#: Pages whose sessions show an app that is not on the page.
_SHOWN = {"fair", "quickstart"}
FOLLOWED = ["at-least-once", "deploy", "frameworks", "recipes", "testing"]


def follow(name: str, session: Session) -> None:
    try:
        session.run(blocks(DOCS / f"{name}.rst"))
    finally:
        session.close()
    assert session.record


def test_the_tutorial(tmp_path: Path) -> None:
    """It starts a server itself."""
    follow("tutorial", Session(tmp_path))


@pytest.mark.parametrize("name", FOLLOWED)
def test_it_prints_what_the_page_shows(name: str, tmp_path: Path, server: RedisServer) -> None:
    follow(name, Session(tmp_path, server))


def test_each_page_with_a_session_is_followed() -> None:
    with_sessions = {
        page.stem for page in PAGES if any(block.language == "console" for block in blocks(page))
    }
    assert with_sessions == {*FOLLOWED, "tutorial"} | _SHOWN


def test_the_picture_shows_the_tutorial() -> None:
    picture = (DOCS / "_static" / "terminal.svg").read_text()
    tutorial = (DOCS / "tutorial.rst").read_text()
    shown = picture.replace("&#x27;", "'").replace("&quot;", '"').split('xml:space="preserve">$ ')[1:]
    commands = [each.partition("</text>")[0] for each in shown]
    assert len(commands) > 4
    assert [each for each in commands if f"$ {each}\n" not in tutorial] == []


class TestShape:
    def test_what_differs_from_run_to_run_does_not_count(self) -> None:
        assert matches(
            "in 58m  5c8a0e0e-8a3c-4b7e-9a53-0c5f0c6a3a0b  celery  shop.remind('Ada')",
            "in 9s     0f3a5d0e-0f0c-4c4a-9a0c-6a7b5d0c9b1e  celery  shop.remind('Ada')\n",
        )

    def test_what_does_not_counts(self) -> None:
        assert not matches("Removed 2 messages.", "Removed 1 messages.\n")
        assert not matches("one\ntwo", "one\n")
        assert not matches("one", "one\ntwo\n")

    def test_three_dots_stand_for_lines(self) -> None:
        assert matches("one\n...\nfour", "one\ntwo\nthree\nfour\n")
        assert not matches("one\n...\nfive", "one\ntwo\nthree\nfour\n")
