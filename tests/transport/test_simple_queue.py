"""kombu's SimpleQueue takes ahead of what it is asked for: all that it has taken is served and counted."""

from __future__ import annotations

from queue import Empty
from typing import Any

import pytest

from tests.transport.kit import Site, publish

pytestmark = pytest.mark.one_server

BODIES = [str(number) for number in range(5)]


@pytest.fixture(params=[False, True], ids=["acked", "without acks"])
def queue(site: Site, request: pytest.FixtureRequest) -> Any:
    publish(site.channel(), *BODIES)
    return site.connect().SimpleQueue("q", no_ack=request.param)


def test_get_nowait_brings_what_was_taken(site: Site, queue: Any) -> None:
    bodies = [queue.get(timeout=5).payload]
    assert site.ready() == 0, "all were taken"
    bodies += [queue.get_nowait().payload for _ in BODIES[1:]]
    assert bodies == BODIES
    with pytest.raises(Empty):
        queue.get_nowait()


def test_they_are_acked(site: Site) -> None:
    publish(site.channel(), *BODIES)
    queue = site.connect().SimpleQueue("q")
    queue.get(timeout=5).ack()
    for _ in BODIES[1:]:
        queue.get_nowait().ack()
    assert site.unacked() == 0


def test_qsize_counts_them(queue: Any) -> None:
    assert queue.qsize() == 5
    queue.get(timeout=5)
    assert queue.qsize() == 4
    queue.get_nowait()
    assert queue.qsize() == 3


def test_clear_removes_them(site: Site, queue: Any) -> None:
    queue.get(timeout=5)
    assert queue.clear() == 4
    with pytest.raises(Empty):
        queue.get_nowait()
    assert site.unacked() <= 1, "what was got may be held"


def test_what_is_got_without_acks_is_not_held(site: Site) -> None:
    publish(site.channel(), *BODIES)
    channel = site.channel()
    queue = channel.connection.client.SimpleQueue("q")
    first = queue.get(timeout=5)
    assert queue.channel.basic_get("q", no_ack=True).payload == "1"
    assert site.unacked() == 4
    first.ack()
    queue.close()
    queue.channel.close()
    assert (site.unacked(), site.ready()) == (0, 3)
