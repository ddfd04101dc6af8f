"""No reference cycle is left behind: Python would keep all that it leads to, the caller's locals too, until
the garbage collector comes. A Celery result that goes that late makes another result wait for ever."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from redis import Redis, RedisCluster
from redis.exceptions import RedisError

from kombu_redisdelay import Selection
from kombu_redisdelay.operations.messages import Messages
from tests.transport.kit import Inbox, Site, drain, look_after_queues, publish

ROOT = Path(__file__).parents[2]
KEEPING_CALLERS = (FrameType, TracebackType, BaseException)
LATER: dict[str, Any] = {"headers": {"x-delay": 60_000}}


class Caller:
    """Stands for what a caller holds in its locals."""


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """What the block leaves behind goes by itself: kombu's own objects apart, which lead to no frame."""
    gc.collect()
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        yield
        gc.collect()
        assert [thing for thing in gc.garbage if isinstance(thing, KEEPING_CALLERS)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def publish_later(channel: Any) -> weakref.ref[Caller]:
    caller = Caller()
    publish(channel, "a", **LATER)
    return weakref.ref(caller)


def test_the_caller_of_a_publish_is_let_go(site: Site) -> None:
    channel = site.channel()
    publish(channel, "a")
    gc.disable()
    try:
        site.redis.script_flush()
        assert publish_later(channel)() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("prefix", ["", "app:"])
def test_a_client_of_kombus_goes_with_who_has_it(site: Site, prefix: str) -> None:
    channel = site.channel(global_keyprefix=prefix)
    gc.disable()
    try:
        client = channel._create_client()
        left = weakref.ref(client)
        del client
        assert left() is None
    finally:
        gc.enable()


def publish_all_kinds(site: Site, channel: Any) -> None:
    publish(channel, "a")
    publish(channel, "a", **LATER)
    publish(channel, "a", exchange=Exchange("x", "direct"), routing_key="q")


def take_and_ack(site: Site, channel: Any) -> None:
    publish(channel, "a", "b")
    for _ in range(2):
        channel.basic_get("q").ack()
    assert channel.basic_get("q") is None
    channel.consumer.confirm_acks()


def reject(site: Site, channel: Any) -> None:
    publish(channel, "a", "b")
    channel.basic_get("q").requeue()
    channel.basic_get("q").reject()
    channel.consumer.confirm_acks()


def ack_missed(site: Site, channel: Any) -> None:
    publish(channel, "a")
    message = channel.basic_get("q")
    site.redis.delete(site.keys().unacked(channel.consumer.name))
    message.ack()
    channel.consumer.confirm_acks()


def consume(site: Site, channel: Any) -> None:
    publish(channel, "a")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 1)
    look_after_queues(channel)
    inbox.messages[0].ack()
    inbox.consumer.cancel()
    channel.consumer.confirm_acks()


def unknown_scripts(site: Site, channel: Any) -> None:
    site.redis.script_flush()
    publish(channel, "a", **LATER)
    site.redis.script_flush()
    assert channel.basic_get("q") is None
    site.redis.script_flush()
    Inbox(channel).consumer.cancel()
    look_after_queues(channel)


def wrong_types(site: Site, channel: Any) -> None:
    site.redis.set(site.keys("wrong").ready, "of somebody else")
    site.redis.set(site.keys("wrong").schedule, "of somebody else")
    with suppress(RedisError):
        publish(channel, "a", queue="wrong")
    with suppress(RedisError):
        publish(channel, "a", queue="wrong", **LATER)
    with suppress(RedisError):
        channel.basic_get("wrong")
    takes = channel.consumer.takes_in(channel.store.slot("wrong"))
    takes.queues = ["wrong"]
    with suppress(RedisError):
        takes.look()
    with suppress(RedisError):
        takes.peek()


def lost_connections(site: Site, channel: Any) -> None:
    publish(channel, "a")
    message = channel.basic_get("q")
    site.kill_connections()
    message.ack()
    with suppress(RedisError):
        publish(channel, "a", **LATER)
    channel.consumer.confirm_acks()


def refused_batch(site: Site, channel: Any) -> None:
    site.redis.set(site.keys("wrong").ready, "of somebody else")
    # Not through kombu's Producer, which leaves a cycle of its own.
    batch = channel.create_publish_batch(10)
    batch.publish(
        channel.prepare_message("a", properties={"delivery_info": {}}), exchange="", routing_key="wrong"
    )
    with suppress(Exception):
        batch.flush()


def steer(site: Site, channel: Any) -> None:
    publish(channel, "a", message_id="id", **LATER)
    with Messages(site.url) as delayed:
        delayed.cancel(ids=["id"])
        delayed.cancel(Selection(state="scheduled", queue="q"))


USES: dict[str, Callable[[Site, Any], None]] = {
    use.__name__: use
    for use in (
        *(publish_all_kinds, take_and_ack, reject, ack_missed, consume, unknown_scripts),
        *(wrong_types, refused_batch, steer),
    )
}
#: At a cluster, redis-py leaves a cycle of its own when it finds out about the servers.
ON_ONE_SERVER = {lost_connections.__name__: lost_connections}


def test_nothing_is_left(site: Site) -> None:
    check_in_a_process_of_its_own(site, USES)


@pytest.mark.one_server
def test_lost_connections_leave_nothing(site: Site) -> None:
    check_in_a_process_of_its_own(site, ON_ONE_SERVER)


def check_in_a_process_of_its_own(site: Site, uses: Iterable[str]) -> None:
    """There, nothing comes from threads of other tests: some still look for a server that is gone."""
    result = subprocess.run(
        [sys.executable, "-m", __name__, site.url, *uses],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout.split()) == (0, list(uses)), result.stderr


def check(url: str, use: Callable[[Site, Any], None]) -> None:
    """Check that *use* leaves nothing behind, at the servers of this URL."""
    [(host, port), *_] = re.findall(r"([\d.]+):(\d+)", url)
    kind: Any = RedisCluster if "-cluster://" in url else Redis
    with kind(host=host, port=int(port)) as client:
        client.flushall()
        site = Site(url, client)
        channel = site.channel()
        Queue("q", Exchange("x", "direct"), "q")(channel).declare()
        # What is made once, and stays.
        use(site, channel)
        with nothing_is_left():
            use(site, channel)
        site.close()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        check(sys.argv[1], {**USES, **ON_ONE_SERVER}[name])
        print(name)
