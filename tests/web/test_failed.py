"""Failed tasks on the page."""

from __future__ import annotations

import pytest

from kombu_redisdelay import Selection
from tests.cli.site import Site
from tests.failed import SECRET
from tests.web.states import DEAD, FAILED, dead, failed
from tests.web.viewer import Viewer


def test_the_list_and_its_filter(viewer: Viewer, site: Site) -> None:
    failed(site, "a")
    failed(site, "b", error="ValueError")
    page = viewer.open("/messages", state=FAILED)
    assert page.ids == ["a", "b"]
    assert "2 failed tasks." in page.text
    assert "ValueError" in page.text
    assert viewer.open("/messages", state=FAILED, error="Val*").ids == ["b"]
    assert viewer.open("/messages", state=FAILED, order="last").ids == ["b", "a"]
    assert "Remove 1 failed task of all queues, with the error Val*?" in _asked(viewer)


def _asked(viewer: Viewer) -> str:
    viewer.open("/messages", state=FAILED, error="Val*")
    return viewer.press("Remove all").heading


@pytest.mark.parametrize(("arguments", "is_seen"), [("all", True), ("shortened", True), ("none", False)])
def test_what_is_told_of_one(site: Site, arguments: str, is_seen: bool) -> None:
    failed(site, "a", text=f"<b>{SECRET}", traceback=f"Traceback:\n  <script>\n{SECRET}")
    viewer = Viewer(site.app, arguments=arguments)
    page = viewer.open("/message", id="a")
    assert "Failed" in page.text
    assert "KeyError" in page.text
    assert "try 2, by celery@w" in page.text
    assert "script" not in page.elements[page.elements.index("main") :]
    assert (SECRET in page.text, "Traceback" in page.text) == (is_seen, is_seen)
    viewer.close()


def test_a_dead_letter_with_its_id_is_left_alone(viewer: Viewer, site: Site) -> None:
    failed(site, "a")
    dead(site, "a")
    viewer.open("/messages", state=FAILED)
    assert viewer.press("Requeue", ["a"]).heading == "Requeue 1 message?"
    assert "Requeued 1 message." in viewer.press("Requeue").text
    messages = viewer.app.state.site.messages
    assert [messages.count(Selection(state=state)) for state in (FAILED, DEAD, "ready")] == [0, 1, 1]
