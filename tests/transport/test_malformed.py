"""Entries that are not messages, wherever they are found: each ends in the dead letters as it was, and
nothing else happens. Also what is a message, but a strange one."""

from __future__ import annotations

import json
import logging
import signal
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer
from kombu.transport import virtual

from kombu_redisdelay.broker import message as broker_message
from kombu_redisdelay.broker.keys import redis_keys
from kombu_redisdelay.broker.members import NAMES
from kombu_redisdelay.transport import receive as receiving
from tests.broker.test_recover import dead_process
from tests.dead import dead_letters
from tests.environments import examples
from tests.transport import malformed
from tests.transport.kit import Inbox, Site, drain, drain_for, look_after_queues, publish

pytestmark = pytest.mark.one_server

READY, SCHEDULED, UNACKED = PLACES = ("ready", "messages", "unacked")
KEYS = redis_keys("", "q", "")
DEAD_KEYS = [f"dead:{name}" for name in ("index", "heads", "messages", "groups", "duplicates")]

BURIED = "Moved an entry of queue 'q' that is not a message to the dead letters: "
BATCH = 20
FUZZED = examples(5_000)
MIB = 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """Something found in *place*. In the hashes a message stands behind its priority step, but what was put
    there by hand does not."""

    place: str
    content: bytes
    step: bytes = b""


def valid(name: str) -> bytes:
    return json.dumps({**malformed.MESSAGE, "body": json.dumps(name), "properties": {}}).encode()


class Bench:
    """One consumer that lives through everything that is put in its way."""

    def __init__(self, site: Site, gone: str) -> None:
        self.redis = site.redis
        self.channel = site.channel()
        self.connection = self.channel.connection.client
        self.inbox = Inbox(self.channel)
        self._gone = gone

    def put(self, entries: Sequence[Entry]) -> int:
        """Put each of *entries* into its place, between valid messages. Returns how many of these."""
        unacked = f"redisdelay:{{q}}:unacked:{self._gone}"
        neighbours = 0
        with self.redis.pipeline() as pipe:
            for number, entry in enumerate(entries):
                for tag, content, step in (
                    (3 * number, valid(f"before {number}"), b"0:"),
                    (3 * number + 1, entry.content, entry.step),
                    (3 * number + 2, valid(f"after {number}"), b"0:"),
                ):
                    if entry.place == READY:
                        pipe.lpush("q", content)
                    elif entry.place == SCHEDULED:
                        pipe.hset("redisdelay:{q}:messages", str(tag), step + content)
                        pipe.zadd("redisdelay:{q}:schedule", {str(tag): 1 + tag})
                    else:
                        pipe.hset(unacked, str(1 + tag), step + content)
                        pipe.zadd("redisdelay:{q}:consumers", {self._gone: 1})
                neighbours += 2
            pipe.zadd("redisdelay:{q}:wake", {"1": 0})
            pipe.execute()
        return neighbours

    def run(self, entries: Sequence[Entry]) -> None:
        """Have the consumer meet *entries*, and check what became of them."""
        self.start_afresh()
        neighbours = self.put(entries)
        log = _Log()
        with log:
            look_after_queues(self.channel)
            drain(self.connection, lambda: len(self.inbox) >= neighbours and not self.redis.llen("q"))
        assert len(self.inbox) == neighbours
        assert sorted(self.inbox.bodies) == sorted(
            f"{side} {number}" for number in range(len(entries)) for side in ("before", "after")
        )
        letters = dead_letters(self.redis, KEYS)
        assert sorted(letter.split(b"\n", 1)[1] for letter in letters) == sorted(e.content for e in entries)
        reasons = [letter.split(b"\n", 1)[0].decode().split(" ", 3)[3] for letter in letters]
        # One line for each, which says what the dead letter says.
        assert sorted(" ".join(said.split()) for said in log.buried) == sorted(reasons)
        assert all(reason and len(reason) < 300 for reason in reasons)
        for message in self.inbox.messages:
            message.ack()
        self.channel.consumer.confirm_acks()
        # Nothing is anywhere else.
        left = {key.decode().removeprefix("redisdelay:{q}:") for key in self.redis.keys("*q*")}
        ours = {*DEAD_KEYS, "consumers", "wake", "history", "redisdelay:known-queues"}
        assert left <= {*ours, "_kombu.binding.q"}

    def start_afresh(self) -> None:
        """Also after a batch that went wrong, while hypothesis looks for the smallest that does."""
        for message in self.inbox.messages:
            if not message.acknowledged:
                message.ack()
        self.inbox.messages.clear()
        self.redis.flushall()


class _Log(logging.Handler):
    """What is said of entries that are not messages, while in the ``with`` block."""

    def __init__(self) -> None:
        super().__init__()
        self.buried: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(BURIED):
            self.buried.append(text.removeprefix(BURIED))

    def __enter__(self) -> None:
        logging.getLogger("kombu_redisdelay").addHandler(self)

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("kombu_redisdelay").removeHandler(self)


@pytest.fixture(scope="module")
def gone() -> str:
    return dead_process()


@pytest.fixture
def bench(site: Site, gone: str) -> Bench:
    return Bench(site, gone)


@pytest.mark.once
def test_thousands_of_entries_that_are_not_messages(bench: Bench) -> None:
    met = 0

    @settings(max_examples=FUZZED // BATCH, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.builds(
                Entry, st.sampled_from(PLACES), malformed.entries, st.sampled_from([b"", b"0:", b"6:"])
            ),
            min_size=BATCH,
            max_size=BATCH,
        )
    )
    def meet(entries: list[Entry]) -> None:
        nonlocal met
        bench.run(entries)
        met += len(entries)

    meet()
    assert met >= FUZZED // BATCH * BATCH


LARGE = {
    "not UTF-8": b"\xff" * (10 * MIB),
    "text": b"garbage " * (10 * MIB // 8),
    "nested deeply": b"[" * (10 * MIB),
    "a list": b"[" + b"1234567," * (10 * MIB // 8) + b"1]",
    "encoding": json.dumps(malformed.with_properties(body_encoding="x" * 10 * MIB)).encode(),
    "cut off": json.dumps({**malformed.MESSAGE, "body": "x" * 10 * MIB}).encode()[:-2],
    "body": json.dumps({**malformed.MESSAGE, "body": "\ud800" + "x" * 10 * MIB}).encode(),
}


@pytest.mark.once
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LARGE)
def test_ten_megabytes_of_garbage(bench: Bench, place: str, kind: str) -> None:
    bench.run([Entry(place, LARGE[kind])])


def test_strange_messages_are_messages(bench: Bench) -> None:
    @settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
    @given(st.lists(malformed.strange, min_size=BATCH, max_size=BATCH))
    def meet(messages: list[bytes]) -> None:
        bench.start_afresh()
        bench.put([Entry(READY, message) for message in messages])
        drain(
            bench.connection,
            lambda: len(bench.inbox) + bench.redis.hlen("redisdelay:{q}:messages") >= 3 * BATCH,
        )
        scheduled = bench.redis.zcard("redisdelay:{q}:schedule")
        assert len(bench.inbox) + scheduled == 3 * BATCH
        assert not bench.redis.exists("q", "redisdelay:{q}:dead:index")

    meet()


@pytest.mark.parametrize(
    "headers", [{}, {"id": None}, {"id": ""}, {"id": "\ud800"}, {"id": {"a": 1}}], ids=json.dumps
)
@pytest.mark.parametrize(
    "properties", [{}, {"delivery_tag": None}, {"delivery_tag": "\udfff"}], ids=json.dumps
)
def test_a_message_that_waits_needs_no_name(
    bench: Bench, headers: dict[str, Any], properties: dict[str, Any]
) -> None:
    later = {**malformed.MESSAGE, "headers": {**headers, "eta": "2099-01-01"}, "properties": properties}
    message = json.dumps(later).encode()
    bench.put([Entry(READY, message), Entry(READY, message)])
    drain(bench.connection, lambda: len(bench.inbox) == 4)
    assert bench.redis.hvals("redisdelay:{q}:messages") == [b"0:" + message] * 2
    assert bench.redis.zcard("redisdelay:{q}:schedule") == 2


def test_an_entry_that_cannot_become_a_dead_letter_stays_held(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither lost, nor taken again and again."""
    channel = site.channel()
    inbox = Inbox(channel)
    site.redis.set("redisdelay:{q}:dead:index", "of somebody else")
    site.redis.lpush("q", valid("before"), b"garbage", valid("after"))
    drain(channel.connection.client, lambda: len(inbox) == 2)
    drain_for(channel.connection.client, 1)
    assert len(inbox) == 2
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "redisdelay:{q}:dead:index" in said
    [key] = site.redis.keys("*unacked*")
    assert b"0:garbage" in site.redis.hvals(key)

    for message in inbox:
        message.ack()
    channel.close()
    assert site.redis.lrange("q", 0, -1) == [b"garbage"]
    site.redis.delete("redisdelay:{q}:dead:index")
    channel = site.channel()
    Inbox(channel)
    drain(channel.connection.client, lambda: len(site.dead()) == 1)
    assert site.unacked() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_member_of_ours_that_is_too_long_for_a_number(bench: Bench, name: str) -> None:
    assert bench.put([Entry(READY, json.dumps({name: 10**400, **malformed.MESSAGE}).encode())]) == 2
    drain(bench.connection, lambda: len(bench.inbox) == 2)
    [letter] = dead_letters(bench.redis, KEYS)
    assert f"'{name}' is not a whole number of at most 15 digits" in letter.decode()


def test_an_error_that_nobody_has_foreseen_keeps_no_other_message(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = broker_message.opened

    def fails(payload: Any) -> Any:
        if payload["body"] == b64encode(b"b").decode():
            raise OverflowError("too large")
        return opened(payload)

    monkeypatch.setattr(receiving, "opened", fails)
    channel = site.channel()
    publish(channel, "a", "b", "c")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2)
    assert inbox.bodies == ["a", "c"]
    [letter] = site.dead()
    assert b"it cannot be read: OverflowError: too large" in letter
    assert site.unacked() == 2
    assert "An entry of queue 'q' cannot be read" in caplog.text


class SoftTimeLimit(Exception):
    pass


class _Interrupted:
    """Decodes a body. The first time, a signal comes meanwhile."""

    def __init__(self) -> None:
        self._is_first = True

    def decode(self, body: str) -> bytes:
        if self._is_first:
            self._is_first = False
            signal.raise_signal(signal.SIGALRM)
        return b64decode(body)


def test_an_exception_of_a_signal_handler_is_not_about_the_message(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery's soft time limit, while a task takes a message."""

    def interrupt(*_: object) -> None:
        raise SoftTimeLimit

    channel = site.channel()
    publish(channel, "a")
    monkeypatch.setitem(virtual.Channel.codecs, "base64", _Interrupted())
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(SoftTimeLimit):
            channel.basic_get("q")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert site.dead() == []
    assert (site.unacked(), site.ready()) == (0, 1)


def test_a_consumer_that_is_none(site: Site) -> None:
    """Somebody's hand in the set of consumers, and in the hash of one that is alive."""
    channel = site.channel()
    inbox = Inbox(channel)
    publish(channel, "a")
    drain(channel.connection.client, lambda: len(inbox) == 1)
    site.redis.zadd("redisdelay:{q}:consumers", {b"\xff\xfe": 1, "": 2, "a:b:c": 3})
    look_after_queues(channel)
    assert site.unacked() == 1
    [key] = site.redis.keys("*unacked*")
    site.redis.hset(key, b"\xff", "garbage")
    tag = inbox.messages[0].delivery_tag
    assert channel.consumer.lost_tags("q", [tag, "2"]) == {"2"}
    channel.close()
    assert site.unacked() == 0
    assert site.ready() == 2


@pytest.mark.parametrize("data", [b"5", b"[]", b"[" * 100_000, b'{"properties": 5}', b"\xff", b'"text"'])
def test_what_comes_over_pubsub_and_is_no_message_is_dropped(
    site: Site, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """It ends every ``redis://`` worker at once."""
    channel = site.channel()
    news = Exchange("news", type="fanout", durable=False)
    got: list[object] = []
    queue = Queue("subscriber", news, channel=channel)
    consumer = Consumer(channel, [queue], callbacks=[lambda body, message: got.append(body)], no_ack=True)
    consumer.consume()
    connection = channel.connection.client
    drain(connection, lambda: site.redis.publish("/0.news", data))
    publish(channel, "a message", exchange=news, routing_key="")
    drain(connection, lambda: got == ["a message"])
    assert "Dropped what came over the PUB/SUB channel '/0.news'" in caplog.text


@pytest.mark.parametrize(
    "member",
    [
        b'["l", "i", "h\xffk"]',
        b'["d", "h\xffi", "k"]',
        b'["d", "i", "\xed\xa0\x80"]',
        b'["d", "i", "a\x1eb"]',
    ],
)
def test_a_key_that_is_not_ascii(site: Site, member: bytes) -> None:
    """Somebody's hand. It is no key, and the message is what it is without one."""
    message = json.dumps(malformed.MESSAGE).encode()
    site.redis.lpush("q", b'{"redisdelay-due": 1, "redisdelay-unique": ' + member + b", " + message[1:])
    channel = site.channel()
    publish(channel, "a")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: "a" in inbox.bodies)
    for received in inbox.messages:
        received.ack()
    drain(channel.connection.client, lambda: site.unacked() == 0)
    assert site.client_of("q").exists(site.keys("q").running) == 0
