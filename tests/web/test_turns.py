"""Nobody keeps the page from the others: by a search that takes long, or by asking while Redis is silent."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from kombu_redisdelay.web import create, form, questions, works
from tests.cli.site import Site
from tests.web.states import dead, scheduled
from tests.web.viewer import Viewer
from tools.harness.browser import served
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


def get(url: str, name: str = "ann") -> tuple[int, str]:
    """The status of a page, and what it says."""
    login = b64encode(f"{name}:{name}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a page whose Redis does not answer any more."""
    with RedisServer() as server:
        site = Site(server)
        app = create(site.app, users={"ann": "ann", "bob": "bob"})
        with served(app) as address:
            assert get(address)[0] == 200
            os.kill(server.pid, signal.SIGSTOP)
            try:
                yield address
            finally:
                os.kill(server.pid, signal.SIGCONT)
        app.state.site.close()
        site.close()


def threads_of_pages() -> int:
    """How many threads of Starlette there are."""
    return sum(thread.name.startswith("AnyIO") for thread in threading.enumerate())


@pytest.mark.once
def test_files_do_not_wait_for_redis(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "PATIENCE", 5.0)
    with ThreadPoolExecutor(60) as pool:
        began = monotonic()
        # More than the threads that Starlette has.
        pages = [pool.submit(get, f"{silent}/") for _ in range(50)]
        wait_until(lambda: threads_of_pages() >= works.MOST_PAGES, 60, "that pages are being made")
        file = pool.submit(get, f"{silent}/static/live.js").result()
        assert not all(page.done() for page in pages)
        assert file[0] == 200
        answers = [page.result() for page in (*pages, pool.submit(get, f"{silent}/messages"))]
        # A reply may take five seconds, and those who have waited for it do not wait again.
        assert monotonic() - began < 30
    assert {status for status, _ in answers} == {503}


@pytest.mark.once
def test_a_viewer_searches_one_thing_at_a_time(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(works, "PATIENCE", 0.2)
    with ThreadPoolExecutor(4) as pool:
        of_ann = [pool.submit(get, f"{silent}/message?id={id}") for id in "ab"]
        of_bob = pool.submit(get, f"{silent}/message?id=a", "bob")
        said = ["Another search of yours" in each.result()[1] for each in of_ann]
        assert sorted(said) == [False, True]
        assert "Another search of yours" not in of_bob.result()[1]


@pytest.mark.parametrize("path", ["/message?id=nothing", "/messages?state=dead"])
def test_a_search_ends_in_time(
    viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    dead(site, "a")
    assert viewer.open(path).status in (200, 404)
    monkeypatch.setattr(works, "LONGEST_SEARCH", 0.0)
    page = viewer.open(path)
    assert page.status == 503
    assert "This was not done after 10 seconds" in page.text
    # It is not done again and again while nobody looks.
    assert "data-no-update" in page.source


def test_a_question_is_asked_although_counting_takes_too_long(
    viewer: Viewer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LONGEST_LOOK", 0.0)
    scheduled(site, "a", "b")
    viewer.open("/messages", task="shop.*")
    page = viewer.press("Cancel all")
    assert page.heading.startswith(
        "Cancel all scheduled messages that match (it takes too long to count them)"
    )
    viewer.open("/messages")
    page = viewer.press("Cancel", ["a"])
    assert page.heading == "Cancel 1 message?"
    assert "Cancelled 1 message." in viewer.press("Cancel").text


def test_a_form_that_does_not_come_whole(site: Site) -> None:
    """A tab that was closed is no error of ours, and nobody fills the log so."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(HTTPException) as caught:
        asyncio.run(form._read(request))
    assert caught.value.status_code == 400
