"""What workers of ``redis://`` have left goes to where it belongs, and back, whenever the process ends."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from kombu_redisdelay.broker.server.single import SingleServer
from kombu_redisdelay.operations.adoption import Adopted, Adoption
from kombu_redisdelay.operations.reverse_adoption import GivenBack, ReverseAdoption
from kombu_redisdelay.operations.transfer import InUse
from tests.environments import HAS_CLUSTERS, examples
from tests.operations.stock import (
    OPTIONS,
    STEPS,
    Place,
    adopt,
    entry,
    give_back,
    message,
    name_of,
    now,
)
from tests.permissions import allow, documented_rules, refused
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


def test_a_countdown_goes_into_the_schedule_as_it_was_written(place: Place) -> None:
    published = message("later", eta_in=3600, priority=7)
    # Not as Python writes JSON.
    text = json.dumps(published, separators=(" ,", " : "))
    place.take("later", f'  [ {text} , "", "celery"]')

    assert adopt(place) == Adopted(scheduled=1)

    [(due_ms, stored)] = place.scheduled("celery")
    assert stored == f"6:{text}"
    assert due_ms == pytest.approx(
        datetime.fromisoformat(published["headers"]["eta"]).timestamp() * 1000, abs=0.01
    )
    assert (place.redis.hlen(place.unacked), place.redis.zcard(place.index)) == (0, 0)


@pytest.mark.parametrize("eta_in", [None, -5.0])
def test_what_is_to_run_is_taken_next_and_counts_as_delivered(place: Place, eta_in: float | None) -> None:
    place.publish("celery", message("waits"))
    place.take("held", entry(message("held", eta_in)))

    assert adopt(place) == Adopted(ready=1)

    (_, first), (_, second) = place.ready("celery")
    assert first.startswith('{"redisdelay-deliveries": 1, ')
    assert (name_of(json.loads(first)), name_of(json.loads(second))) == ("held", "waits")
    assert json.loads(first)["headers"]["nothing"] == []
    assert json.loads(first)["headers"]["large"] == 2**63 + 1


def test_our_worker_gets_it_as_redelivered(place: Place, server: RedisServer) -> None:
    place.take("held", entry(message("held")))
    adopt(place)
    with Connection(server.url()) as connection:
        got = connection.default_channel.basic_get("celery")
        assert got.delivery_info["redelivered"]
        assert got.headers["x-delivery-count"] == 1
        got.ack()


def test_a_countdown_on_a_ready_list_goes_into_the_schedule(place: Place) -> None:
    place.publish("a", message("ready"))
    place.publish("a", message("late", eta_in=-60))
    place.publish("a", message("early", eta_in=60, priority=3), step=3)

    assert adopt(place) == Adopted(parked=1)

    assert [name_of(json.loads(text)) for _, text in place.ready("a")] == ["ready", "late"]
    [(_, stored)] = place.scheduled("a")
    assert stored.startswith("3:{")


@pytest.mark.parametrize(
    ("exchange", "bindings", "routing_key", "queues"),
    [
        ("direct", [("k", "", "a"), ("other", "", "b")], "k", ["a"]),
        ("topic", [("x.*", "^x\\.[^\\.]+$", "a"), ("#", "^.*?$", "b")], "x.y", ["a", "b"]),
        ("topic", [("x.*", "^x\\.[^\\.]+$", "a"), ("#", "^.*?$", "b")], "z", ["b"]),
    ],
)
def test_it_goes_through_the_bindings(
    place: Place, exchange: str, bindings: list[tuple[str, str, str]], routing_key: str, queues: list[str]
) -> None:
    place.bind(exchange, *bindings)
    place.take("t", entry(message("t"), exchange, routing_key))
    assert adopt(place) == Adopted(ready=1, copies=len(queues) - 1)
    assert [queue for queue in ("a", "b", "celery") if place.ready(queue)] == queues


def test_the_bindings_are_read_as_kombu_writes_them(place: Place, server: RedisServer) -> None:
    exchange = Exchange("events", type="topic")
    with Connection(server.url("redis")) as connection:
        Queue("a", exchange, routing_key="order.#")(connection.default_channel).declare()
        Queue("b", exchange, routing_key="user.*")(connection.default_channel).declare()
    place.take("t", entry(message("t"), "events", "order.closed.late"))
    adopt(place)
    assert [queue for queue in ("a", "b") if place.ready(queue)] == ["a"]


MALFORMED: dict[str, str | bytes] = {
    "not JSON": "{",
    "not UTF-8": b"[\xff]",
    "too deep": "[" * 100_000,
    "no list": "{}",
    "short": "[1]",
    "no message": entry([1]),
    "no properties": entry({"headers": {}}),
    "no routing key": entry(message("x"), "", None),
    "not bound": entry(message("x"), "unknown", "k"),
    "no queue": entry(message("x"), "", ""),
    "no time": entry({**message("x"), "headers": {"task": "t", "eta": "tomorrow"}}),
    "no pattern": entry(message("x"), "broken", "k"),
    "wrong type": entry(message("x"), "", "string"),
}


def test_what_cannot_be_moved_stays_and_is_named(place: Place) -> None:
    place.bind("broken", ("k", "(", "a"))
    place.redis.set("string", "")
    for tag, data in MALFORMED.items():
        place.take(tag, data)
    place.take("good", entry(message("good")))
    place.publish("b", message("early", 60))
    lengths = {tag: place.redis.hstrlen(place.unacked, tag) for tag in MALFORMED}

    done = adopt(place)

    # The queue with a key of a wrong type is one more.
    assert (done.ready, done.parked, done.stay) == (1, 1, len(MALFORMED) + 1)
    assert len(done.why) == 10
    assert set(done.why) < {*MALFORMED, "queue 'string'"}
    assert all("\n" not in why and len(why) <= 200 for why in done.why.values())
    assert {tag: place.redis.hstrlen(place.unacked, tag) for tag in MALFORMED} == lengths
    assert place.redis.zcard(place.index) == len(MALFORMED)
    # It can be run again.
    assert adopt(place).stay == len(MALFORMED) + 1


def test_an_unacked_key_of_another_type_is_an_error_that_names_it(place: Place) -> None:
    place.redis.set(place.unacked, "")
    with pytest.raises(Exception, match="WRONGTYPE"):
        adopt(place)


def test_large_messages_and_many(place: Place) -> None:
    for number in range(1000):
        place.take(f"{number}", entry(message(f"{number}", eta_in=3600)))
    for number in range(5):
        place.take(f"large {number}", entry({**message(f"large {number}"), "body": "x" * 2_000_000}))
    with place.adoption() as adoption:
        assert adoption.look() == Adopted(scheduled=1000, ready=5)
        # It ends in the middle.
        for done in adoption.adopt():
            if done.messages == 300:
                break
    assert 0 < place.redis.hlen(place.unacked) < 1005
    rest = adopt(place)
    assert place.redis.hlen(place.unacked) == 0
    assert rest.messages < 1005
    assert (len(place.scheduled("celery")), len(place.ready("celery"))) == (1000, 5)


# -- whatever is there, and wherever it ends ------------------------------------------------------------


class Died(BaseException):
    """The process, by SIGKILL."""


@dataclass
class Dying:
    """A connection over which only so many commands go. With the last one, only the reply is lost."""

    left: int
    is_done: bool

    def calling(self) -> Any:
        real = SingleServer.call_all

        def call_all(server: SingleServer, *commands: Any) -> Any:
            self.left -= 1
            if self.left < 0 or (self.left == 0 and not self.is_done):
                raise Died
            reply = real(server, *commands)
            if self.left == 0:
                raise Died
            return reply

        return mock.patch.object(SingleServer, "call_all", call_all)


@dataclass(frozen=True)
class Case:
    """A message, and where it is."""

    at: str
    eta_in: float | None
    queue: str
    priority: int
    is_indexed: bool = True


cases = st.lists(
    st.builds(
        Case,
        at=st.sampled_from(["unacked", "bound", "to both", "malformed", "ready", "scheduled"]),
        eta_in=st.sampled_from([None, -60.0, 3600.0]),
        queue=st.sampled_from(["a", "b"]),
        priority=st.sampled_from([0, 4, 9]),
        is_indexed=st.booleans(),
    ),
    max_size=30,
)
deaths = st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=3)


def fill(place: Place, some: Sequence[Case]) -> Counter[tuple[str, str]]:
    """Put all of them where they are. Returns where they belong."""
    place.bind("direct", ("a", "", "a"), ("b", "", "b"))
    place.bind("topic", ("#", "^.*?$", "a"), ("k", "^k$", "b"))
    belong: Counter[tuple[str, str]] = Counter()
    for number, case in enumerate(some):
        # Every third has the id of another one.
        name, step = f"{number}", max(each for each in STEPS if each <= case.priority)
        published = message(name, case.eta_in, case.priority)
        published["headers"]["id"] = f"id {number // 3}"
        state = "scheduled" if case.eta_in is not None and case.eta_in > 0 else "ready"
        if case.at == "ready":
            place.publish(case.queue, published, step)
        elif case.at == "scheduled":
            state = "scheduled"
            keys = place.keys(case.queue)
            place.redis.zadd(keys.schedule, {f"ours {name}": (now().timestamp() + 3600) * 1000})
            place.redis.hset(keys.messages, f"ours {name}", f"{step}:{json.dumps(published)}")
            place.redis.zadd(f"{place.prefix}redisdelay:known-queues", {case.queue: 1})
        elif case.at == "malformed":
            place.take(name, "[]", case.is_indexed)
            belong[name, "unacked"] += 1
            continue
        else:
            exchange, routing_key = {
                "unacked": ("", case.queue),
                "bound": ("direct", case.queue),
                "to both": ("topic", "k"),
            }[case.at]
            place.take(name, entry(published, exchange, routing_key), case.is_indexed)
        for queue in ("a", "b") if case.at == "to both" else (case.queue,):
            belong[name, f"{queue} {state} {step}"] += 1
    return belong


MANY = [Case("unacked", 3600.0, "a", 0), Case("to both", None, "a", 9), Case("ready", 3600.0, "b", 4)]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=cases, dying=deaths, prefixed=st.booleans())
@example(some=MANY, dying=[(9, True), (9, False), (10, True)], prefixed=True)
def test_the_same_messages_are_there_in_their_places(
    server: RedisServer, some: list[Case], dying: list[tuple[int, bool]], prefixed: bool
) -> None:
    place = Place(server, **(OPTIONS if prefixed else {}))
    belong = fill(place, some)
    for left, is_done in dying:
        with place.adoption() as adoption, Dying(left, is_done).calling(), suppress(Died):
            list(adoption.adopt())
        # At no moment is one lost, or there twice: in all its queues, or in the hash.
        found = Counter(name for name, _ in place.everything().elements())
        expected = Counter(name for name, _ in belong.elements())
        assert found.keys() == expected.keys()
        assert all(count in (1, expected[name]) for name, count in found.items())
    adopt(place)
    assert place.everything() == belong
    place.redis.close()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=cases, dying=deaths)
def test_all_that_is_scheduled_comes_back(
    server: RedisServer, some: list[Case], dying: list[tuple[int, bool]]
) -> None:
    place = Place(server)
    fill(place, some)
    adopt(place)
    before = place.everything()
    for left, is_done in dying:
        with place.reverse_adoption() as adoption, Dying(left, is_done).calling(), suppress(Died):
            list(adoption.give_back())
    give_back(place)
    expected = Counter({(name, at.replace("scheduled", "ready")): 0 for name, at in before})
    for (name, at), count in before.items():
        expected[name, at.replace("scheduled", "ready")] += count
    assert place.everything() == expected
    place.redis.close()


# -- back to redis:// -----------------------------------------------------------------------------------


# -- who works ------------------------------------------------------------------------------------------


def test_a_stock_worker_is_seen(place: Place, server: RedisServer) -> None:
    with place.adoption() as adoption:
        adoption.check_not_in_use()
        with stock_consumer(server.url("redis", db=1)):
            adoption.check_not_in_use()
        with stock_consumer(server.url("redis")) as connection:
            with pytest.raises(InUse, match=r"127\.0\.0\.1:"):
                adoption.check_not_in_use()
            # It takes one, does not ack it, and has room for no other.
            place.publish("celery", message("held"))
            connection.drain_events(timeout=10)
            with pytest.raises(InUse):
                adoption.check_not_in_use()
        wait_until(lambda: not is_in_use(adoption), 30, "that the server sees it go")


def is_in_use(adoption: Adoption) -> bool:
    try:
        adoption.check_not_in_use()
    except InUse:
        return True
    return False


@contextmanager
def stock_consumer(url: str, callback: Callable[[Any], object] = lambda message: None) -> Iterator[Any]:
    with Connection(url) as connection:
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        channel.basic_consume("celery", False, callback, "tag")
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        yield connection


def test_who_is_idle_may_be_a_worker_without_room(place: Place, server: RedisServer) -> None:
    got: list[Any] = []
    with place.adoption() as adoption, stock_consumer(server.url("redis"), got.append) as connection:
        place.publish("celery", message("acked at once"))
        connection.drain_events(timeout=10)
        got.pop().ack()
        # As a solo worker that runs its task: it does not ask meanwhile.
        wait_until(lambda: not is_in_use(adoption), 30, "it to be idle")
        place.publish("celery", message("next"))
        place.publish("celery", message("early", eta_in=3600))
        connection.drain_events(timeout=10)
        assert place.redis.hlen(place.unacked) == 1
        assert adoption.look() == Adopted(parked=1)
        *_, done = adoption.adopt()
        assert done == Adopted(parked=1)
        assert place.redis.hlen(place.unacked) == 1
        assert is_in_use(adoption)


def test_workers_of_ours_are_not_taken_for_others(place: Place, server: RedisServer) -> None:
    with Connection(server.url()) as connection, place.adoption() as adoption:
        channel = connection.channel()
        channel.basic_consume("celery", False, lambda message: None, "tag")
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1.5)
        adoption.check_not_in_use()
        with place.reverse_adoption() as back, pytest.raises(InUse, match="workers of redisdelay://"):
            back.check_not_in_use()


def test_who_may_not_look_is_told(place: Place, server: RedisServer) -> None:
    place.redis.acl_setuser(
        "shop", enabled=True, passwords=["+x"], keys="*", categories=["+@all"], commands=["-client"]
    )
    url = server.url().replace("://", "://shop:x@")
    with Adoption(url) as adoption, pytest.raises(InUse, match="cannot see") as caught:
        adoption.check_not_in_use()
    assert "+client|list" in caught.value.advice
    place.redis.acl_deluser("shop")


@pytest.mark.skipif(not HAS_CLUSTERS, reason="clusters are tested with the oldest redis-py and the newest")
def test_a_cluster_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="Redis Cluster"):
        Adoption(cluster.url())


def test_with_the_permissions_that_are_documented(server: RedisServer) -> None:
    place = Place(server)
    place.bind("direct", ("k", "", "a"))
    place.take("later", entry(message("later", 3600)))
    place.take("bound", entry(message("bound"), "direct", "k"))
    place.publish("b", message("early", 3600))
    others = ("~unacked*", "~celery:*", "~a:*", "~b:*")
    url = allow(server, *documented_rules("celery", "a", "b"), *others, "+client|list", "+scan")
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.task_queues = [Queue(name) for name in ("a", "b", "celery")]
    with Adoption(app) as adoption:
        adoption.check_not_in_use()
        *_, done = adoption.adopt()
        assert done == Adopted(scheduled=1, ready=1, parked=1)
    with ReverseAdoption(app) as reverse:
        reverse.check_not_in_use()
        *_, back = reverse.give_back()
        assert back == GivenBack(scheduled=2)
    assert refused(server) == []
    place.redis.close()
