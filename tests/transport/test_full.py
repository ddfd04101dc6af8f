"""A full Redis, as applications and operators meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.transport import redis
from redis.exceptions import OutOfMemoryError

from kombu_redisdelay import BatchPublishError, Messages, Queues, Selection, batch
from tests.transport.batching import celery_app, ready, scheduled, send
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.full import fill
from tools.harness.redis_server import RedisServer

pytestmark = pytest.mark.one_server


@pytest.fixture
def site(own_server: RedisServer) -> Iterator[Site]:
    with own_server.client() as client:
        client.flushall()
        site = Site(own_server.url(), client)
        yield site
        client.config_set("maxmemory", 0)
        site.close()


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    with celery_app(site.url, task_publish_retry=True) as app:
        yield app


@pytest.mark.parametrize("options", [{}, {"countdown": 60}], ids=str)
@pytest.mark.parametrize("queue", ["celery", "new"])
def test_a_task_is_refused_at_once(site: Site, app: Celery, options: dict[str, Any], queue: str) -> None:
    send(app, 0)
    fill(site.redis)
    # To wait before another try would take a minute.
    pause = {"max_retries": 3, "interval_start": 60, "interval_step": 0, "interval_max": 60}
    with pytest.raises(OperationalError, match=r"^the server is out of memory \(maxmemory\)") as caught:
        send(app, 1, queue=queue, retry_policy=pause, **options)
    assert isinstance(caught.value.__cause__, OutOfMemoryError)
    assert (ready(site), ready(site, queue) - (queue == "celery"), scheduled(site, queue)) == (1, 0, 0)


@pytest.mark.parametrize("options", [{}, {"countdown": 60}], ids=str)
def test_a_batch_names_what_was_not_sent(site: Site, app: Celery, options: dict[str, Any]) -> None:
    send(app, 0)
    fill(site.redis)
    with pytest.raises(BatchPublishError, match="maxmemory") as caught, batch(app):
        results = send(app, *range(3), **options)
    assert caught.value.unpublished == [result.id for result in results]
    assert (caught.value.published, caught.value.uncertain) == (0, [])
    assert (ready(site), scheduled(site)) == (1, 0)


def test_a_batch_names_what_is_routed_anew(site: Site, app: Celery) -> None:
    """Another process has bound a queue meanwhile."""
    first, second = (Queue(name, Exchange("shop"), "key") for name in ("first", "second"))
    with app.connection_for_write() as connection:
        first(connection.default_channel).declare()
        block = batch(app)
        block.__enter__()
        results = send(app, *range(2), exchange=first.exchange, routing_key="key")
        second(connection.default_channel).declare()
        fill(site.redis)
        with pytest.raises(BatchPublishError) as caught:
            block.__exit__(None, None, None)
    assert caught.value.unpublished == [result.id for result in results]
    assert caught.value.uncertain == []


@pytest.mark.parametrize("batched", [False, True])
def test_a_message_whose_bindings_were_lost_does_not_vanish(site: Site, app: Celery, batched: bool) -> None:
    """They cannot be noted again."""
    topic = Queue("topic", Exchange("shop", "topic"), "#")
    send(app, 0, queue=topic)
    site.redis.delete("_kombu.binding.shop")
    fill(site.redis)
    with pytest.raises(OperationalError, match="maxmemory"), batch(app) if batched else nullcontext():
        send(app, 1, queue=topic)
    site.redis.config_set("maxmemory", 0)
    send(app, 2, queue=topic)
    assert ready(site, "topic") == 2


def test_a_consumer_says_its_bindings_again_when_there_is_room(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    channel = site.channel()
    Inbox(channel, Queue("q", Exchange("shop"), "key"))
    site.redis.delete("_kombu.binding.shop")
    fill(site.redis)
    for _ in range(2):
        channel._look_at = channel._bind_at = 0.0
        channel.say_again()
        channel.try_to_bind()
    assert [line.partition(" is bound")[0] for line in caplog.messages] == [
        "Redis has not noted that queue 'q'"
    ]
    site.redis.config_set("maxmemory", 0)
    channel._bind_at = 0.0
    channel.try_to_bind()
    assert site.redis.exists("_kombu.binding.shop")


@pytest.mark.parametrize("delete", [False, True])
def test_a_queue_is_unbound_and_deleted(site: Site, delete: bool) -> None:
    queue = Queue("q", Exchange("shop"), "key")
    channel = site.channel()
    queue(channel).declare()
    publish(channel, "m")
    fill(site.redis)
    if delete:
        site.channel().queue_delete("q")
    else:
        queue(site.channel()).unbind_from(queue.exchange, "key")
    assert (site.redis.exists("_kombu.binding.shop"), site.ready()) == (0, 0 if delete else 1)
    assert site.redis.pttl("_kombu.binding:redisdelay:unbound:q") > 0


@pytest.mark.skipif(not hasattr(redis.Channel, "_refresh_bindings"), reason="new in kombu 5.7")
def test_bindings_are_refreshed_when_there_is_room(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """kombu's timer would log a traceback each second, in every worker: all have such a queue."""
    channel = site.channel()
    bound = Queue("expiring", Exchange("shop"), "key", expires=60)
    inbox = Inbox(channel, bound)
    site.redis.delete("_kombu.binding.shop")
    fill(site.redis)
    for _ in range(2):
        channel._refresh_bindings(["expiring"])
        channel._bind_at = 0.0
        channel.try_to_bind()
    assert [record.exc_info for record in caplog.records] == [None]
    assert "'expiring' is bound to exchange 'shop'" in caplog.text
    site.redis.config_set("maxmemory", 0)
    channel._bind_at = 0.0
    channel.try_to_bind()
    publish(channel, "m", exchange=bound.exchange, routing_key="key")
    drain(channel.connection.client, lambda: inbox.bodies == ["m"])


def everything(messages: Messages, queues: Queues) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """What an operator does, and what is left then of what was ready, scheduled and dead."""
    yield "pause", lambda: queues.pause("q"), (2, 4, 2)
    yield "limit", lambda: queues.limit("q", rate="10/s", concurrency=5), (2, 4, 2)
    yield "resume", lambda: queues.resume("q"), (2, 4, 2)
    yield "reschedule", lambda: messages.reschedule(ids=["s0"], countdown=7200), (2, 4, 2)
    yield "deliver now", lambda: messages.deliver_now(ids=["s1"]), (3, 3, 2)
    yield "cancel", lambda: messages.cancel(ids=["s2"]), (3, 2, 2)
    yield "cancel ready", lambda: messages.cancel(Selection(state="ready", queue="q")), (0, 2, 2)
    yield "requeue", lambda: messages.requeue(ids=["d0"]), (1, 2, 1)
    yield "remove", lambda: messages.remove(ids=["d1"]), (1, 2, 0)


def test_an_operator_can_do_everything(site: Site) -> None:
    channel = site.channel(dead_letter=True)
    publish(channel, "a", "b", headers={"id": "r"})
    for number in range(4):
        publish(channel, "later", headers={"id": f"s{number}", "x-delay": 3_600_000})
    for number in range(2):
        publish(channel, "dead", queue="q", headers={"id": f"d{number}"})
    inbox = Inbox(channel, prefetch=10)
    drain(channel.connection.client, lambda: len(inbox) == 4)
    fill(site.redis)
    for message in inbox:
        message.reject(requeue=message.headers["id"] == "r")
    channel.close()

    def left() -> tuple[int, int, int]:
        return site.ready(), site.scheduled(), len(site.dead())

    assert left() == (2, 4, 2)
    with Messages(site.connect()) as messages, Queues(site.connect()) as queues:
        for what, do, expected in everything(messages, queues):
            do()
            assert left() == expected, what
