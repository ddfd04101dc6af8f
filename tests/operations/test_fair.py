"""`Queues`: fair queues, their keys and the limits of these."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Queue

from kombu_redisdelay import KeyLimits, KeyStats, Messages, Queues, Selection
from kombu_redisdelay.operations import key_stats
from kombu_redisdelay.operations.fair import fair_states
from tests.operations.kit import ids, ready, send
from tests.transport.kit import Inbox, Site, drain
from tools.harness.process import wait_until


@pytest.fixture
def queues(app: Celery) -> Iterator[Queues]:
    with Queues(app) as queues:
        yield queues


def state(queues: Queues, queue: str = "celery") -> str:
    [found] = fair_states(queues.store, [queue])
    return found


def take(site: Site, count: int) -> Any:
    """Have a worker take so many messages, and keep them. A consumer also sorts what is left by key."""
    channel = site.channel()
    inbox = Inbox(channel, "celery", prefetch=count)
    drain(channel.connection.client, lambda: len(inbox) == count)
    return inbox


def by_key(queues: Queues) -> dict[str, KeyStats]:
    return {each.key: each for each in queues.keys("celery").keys}


def test_a_queue_is_made_fair_and_plain(queues: Queues) -> None:
    assert state(queues) == ""
    queues.make_fair(["celery", "b"])
    assert (state(queues), state(queues, "b")) == ("on", "on")
    # Nothing is to be moved back.
    queues.make_plain("celery")
    assert state(queues) == ""
    queues.make_plain("never")
    assert state(queues, "never") == ""


def test_each_partition_is_fair(site: Site, app: Celery) -> None:
    app.conf.broker_transport_options = {"partitions": {"celery": 3}}
    with Queues(app) as queues:
        queues.make_fair("celery")
        assert state(queues) == "on"
        queues.limit_keys("celery", concurrency=1)
        assert queues.key_limits("celery").concurrency == 1
        send(app, "a", "b", "c", headers={"x-key": "t"})
        assert by_key(queues)["t"].ready == 3


@pytest.mark.parametrize("how", ["app", "redis"])
def test_a_queue_that_expires_is_refused(site: Site, app: Celery, how: str) -> None:
    queue = Queue("celery", queue_arguments={"x-expires": 60_000})
    if how == "app":
        app.conf.task_queues = [queue]
    else:
        channel = site.channel()
        queue(channel).declare()
        channel.basic_publish(channel.prepare_message("{}"), "", "celery")
    with Queues(app) as queues, pytest.raises(ValueError, match=r"'celery' cannot be fair.*'x-expires'"):
        queues.make_fair("celery")


def test_limits_of_every_key(queues: Queues) -> None:
    assert queues.key_limits("celery") == KeyLimits()
    queues.limit_keys("celery", rate="600/m", concurrency=2)
    assert queues.key_limits("celery") == KeyLimits(rate="10/s", burst=10, concurrency=2)
    queues.limit_keys("celery", burst=3)
    assert queues.key_limits("celery", "t") == KeyLimits(rate="10/s", burst=3, concurrency=2)
    queues.limit_keys("celery", rate=None)
    assert queues.key_limits("celery") == KeyLimits(concurrency=2)
    # The queue itself has none.
    assert not queues.limits("celery").is_limited
    queues.limit_keys("celery", concurrency=None)
    assert queues.key_limits("celery") == KeyLimits()


def test_limits_of_one_key(queues: Queues) -> None:
    queues.limit_keys("celery", rate="1/s", concurrency=2)
    queues.limit_key("celery", "t", concurrency=8)
    assert queues.key_limits("celery", "t") == KeyLimits("1/s", 1, 8, is_own=True)
    assert queues.key_limits("celery", "u") == KeyLimits("1/s", 1, 2)
    queues.limit_key("celery", "t", rate="5/s")
    assert queues.key_limits("celery", "t") == KeyLimits("5/s", 5, 8, is_own=True)
    queues.limit_key("celery", "t", rate=None, concurrency=None)
    assert queues.key_limits("celery", "t") == KeyLimits("1/s", 1, 2)


def test_a_pause_of_a_key(queues: Queues) -> None:
    queues.pause_key("celery", "t")
    since = queues.key_limits("celery", "t").paused_since
    assert since is not None
    # Nobody but the key has a pause.
    assert queues.key_limits("celery", "t") == KeyLimits(paused_since=since, is_own=True)
    queues.limit_key("celery", "t", concurrency=1)
    assert queues.key_limits("celery", "t").paused_since == since
    queues.resume_key("celery", "t")
    assert queues.key_limits("celery", "t") == KeyLimits(concurrency=1, is_own=True)


def test_what_is_refused(queues: Queues) -> None:
    with pytest.raises(TypeError, match="say which limit"):
        queues.limit_keys("celery")
    for limit in (queues.limit, queues.limit_keys, partial(queues.limit_key, key="t")):
        with pytest.raises(TypeError, match="say which limit"):
            limit("celery", rate="1/s", speed=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="burst needs a rate"):
        queues.limit_key("celery", "t", burst=3)
    with pytest.raises(ValueError, match="concurrency must be a whole number"):
        queues.limit_keys("celery", concurrency=0)
    for do in (queues.pause_key, queues.resume_key, queues.key_limits):
        with pytest.raises(ValueError, match="a key must have 64 bytes at most"):
            do("celery", "t" * 65)
    with pytest.raises(ValueError, match="a key must have no control characters"):
        queues.limit_key("celery", "t\n", concurrency=1)


def test_keys(site: Site, app: Celery, queues: Queues) -> None:
    queues.make_fair("celery")
    queues.limit_keys("celery", concurrency=1)
    queues.pause_key("celery", "paused")
    for number in range(3):
        send(app, f"a{number}", headers={"x-key": "a"}, priority=number * 3)
    send(app, "b0", headers={"x-key": "b"})
    send(app, "none")
    send(app, "a3", "a4", headers={"x-key": "a"}, countdown=60)
    _taken = take(site, 3)
    # It comes after the worker, which is full, has sorted the others by key: so the heartbeat sorts it. A
    # message that moves while keys are counted may count twice.
    send(app, "c0", headers={"x-key": "c"})
    in_list = partial(site.client_of("celery").llen, site.keys("celery").ready)
    wait_until(lambda: in_list() == 0, 30, "all are sorted by key")
    found = queues.keys("celery")
    assert (found.queue, found.fair, found.limits, found.unread) == (
        "celery",
        "on",
        KeyLimits(concurrency=1),
        0,
    )
    counts = {each.key: (each.ready, each.scheduled, each.unacked) for each in found.keys}
    assert counts == {"a": (2, 2, 1), "b": (0, 0, 1), "": (0, 0, 1), "c": (1, 0, 0), "paused": (0, 0, 0)}
    keys = by_key(queues)
    assert keys["a"].is_at_limit
    assert not keys["c"].is_at_limit
    assert keys["a"].waiting is not None
    assert 0 < keys["a"].waiting < 60
    assert keys["b"].waiting == 0
    assert keys["paused"].limits.paused_since is not None


def test_the_greatest_keys(site: Site, app: Celery, queues: Queues) -> None:
    queues.make_fair("celery")
    for key in "abbbccc":
        send(app, key, headers={"x-key": key})
    _taken = take(site, 1)
    queues.pause_key("celery", "z")
    # In a list, and not sorted by key: it is one of the few, and all of its messages count.
    send(app, "a1", "a2", headers={"x-key": "a"}, countdown=60)
    for limit, expected in ((None, 4), (9, 4), (2, 2)):
        found = queues.keys("celery", limit=limit)
        counts = [key.ready for key in found.keys]
        assert (len(found.keys), found.count, counts) == (expected, 4, sorted(counts, reverse=True))
    assert sum(key.ready for key in queues.keys("celery").keys) == 6
    assert queues.keys("celery", limit=0).keys == []
    with pytest.raises(ValueError, match="limit"):
        queues.keys("celery", limit=-1)


def test_keys_of_a_queue_that_is_not_fair(app: Celery, queues: Queues) -> None:
    send(app, "a0", "a1", headers={"x-key": "a"})
    found = queues.keys("celery")
    assert (found.fair, [(each.key, each.ready) for each in found.keys]) == ("", [("a", 2)])
    assert queues.keys("unknown").keys == []


def test_what_is_too_much_to_read(
    app: Celery, queues: Queues, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_stats, "MOST_READ", 3)
    send(app, *"abcde", headers={"x-key": "t"})
    send(app, *"fghi", headers={"x-key": "t"}, countdown=60)
    found = queues.keys("celery")
    [key] = found.keys
    assert (key.ready, key.scheduled, key.unacked, found.unread) == (3, None, 0, 2)


def test_ready_messages_of_a_fair_queue(site: Site, app: Celery, queues: Queues, messages: Messages) -> None:
    """What a worker has sorted by key, and what it has not."""
    queues.make_fair("celery")
    send(app, "a1", "a2", "a3", headers={"x-key": "a"})
    send(app, "b1", "b2", headers={"x-key": "b"})
    queues.pause("celery")
    channel = site.channel()
    _inbox = Inbox(channel, "celery")
    in_list = partial(site.client_of("celery").llen, site.keys("celery").ready)
    drain(channel.connection.client, lambda: in_list() == 0)
    assert messages.count(ready()) == 5
    send(app, "c1", headers={"x-key": "c"})
    by_page, start = [], ""
    while True:
        page = messages.page(ready(), start=start, size=2)
        by_page += ids(page.messages)
        if not page.next:
            break
        start = page.next
    assert sorted(by_page) == ["a1", "a2", "a3", "b1", "b2", "c1"]
    assert by_page.index("a1") < by_page.index("a2") < by_page.index("a3")
    assert ids(messages.select(Selection(key="b"))) == ["b1", "b2"]
    assert messages.tally(by="key") == {"a": 3, "b": 2, "c": 1}
    assert messages.cancel(ready(key="a")).count == 3
    assert messages.cancel(ids=["b2", "c1"]).count == 2
    assert ids(messages.select(ready())) == ["b1"]
    assert queues.stats("celery").ready == 1
    assert messages.cancel(ready(queue="celery")).count == 1
    assert queues.keys("celery").keys == []
