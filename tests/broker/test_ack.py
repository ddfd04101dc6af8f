"""Acks are written at once and confirmed later, over a connection that may fail in between."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.server.line import UNREAD_LIMIT
from tests.broker.rig import Rig, line_of, payload, taken


class Breaking:
    """A consumer's connection for the acks of the queue ``q``, which breaks when it is told to.

    Attributes:
        breaks: "before" a command gets through, or "after", when its reply is read; "" for not.
    """

    def __init__(self, consumer: Consumer, error: type[Exception] = ConnectionError) -> None:
        line = line_of(consumer, "q")
        self._connection = line.connection
        line.connection = self
        self._error = error
        self.breaks = ""

    @property
    def _sock(self) -> Any:
        return self._connection._sock

    def pack_command(self, *command: Any) -> Any:
        return self._connection.pack_command(*command)

    def send_packed_command(self, packed: Any, **options: Any) -> None:
        if self.breaks == "before":
            raise self._error("lost")
        self._connection.send_packed_command(packed, **options)

    def read_response(self) -> Any:
        reply = self._connection.read_response()
        if self.breaks == "after":
            raise self._error("lost")
        return reply

    def can_read(self) -> bool:
        return bool(self._connection.can_read())

    def connect(self) -> None:
        self._connection.connect()

    def disconnect(self) -> None:
        self._connection.disconnect()


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
@pytest.mark.parametrize("breaks", ["before", "after"])
def test_is_sent_again(rig: Rig, error: type[Exception], breaks: str) -> None:
    rig.put("q", *(payload(str(n)) for n in range(3)))
    me = rig.consumer()
    first, second, third = taken(me, "q")
    line = Breaking(me, error)
    line.breaks = breaks
    me.ack("q", first.tag)
    me.ack("q", second.tag)
    with pytest.raises(error):
        me.confirm_acks()
    line.breaks = ""
    assert taken(me, "q") == []
    assert list(rig.unacked("q")) == [third.tag]
    # That a repeated ack finds nothing says nothing about the lease.
    assert rig.missed_acks == []


def test_an_error_lets_its_caller_go(rig: Rig) -> None:
    rig.put("q", payload("1"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    Breaking(me).breaks = "after"
    me.ack("q", delivery.tag)

    def confirm() -> weakref.ref[set[str]]:
        of_the_caller: set[str] = set()
        with suppress(ConnectionError):
            me.confirm_acks()
        return weakref.ref(of_the_caller)

    gc.disable()
    try:
        assert confirm()() is None
    finally:
        gc.enable()


def test_one_that_cannot_be_written_is_said_so(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", payload("1"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    Breaking(me).breaks = "before"
    me.ack("q", delivery.tag)
    assert "will be sent again" in caplog.text


def test_is_with_the_server_before_anything_is_confirmed(rig: Rig) -> None:
    rig.put("q", payload("1"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    line = Breaking(me)
    me.ack("q", delivery.tag)
    line.breaks = "before"
    # The server has only one thread: when it answers somebody else, it has done what came before.
    while rig.unacked("q"):
        pass


def test_comes_before_giving_back(rig: Rig) -> None:
    rig.put("q", payload("acked"), payload("held"))
    me = rig.consumer()
    acked, _ = taken(me, "q")
    line = Breaking(me)
    line.breaks = "before"
    me.ack("q", acked.tag)
    line.breaks = ""
    assert me.give_back_all()
    [again] = taken(rig.consumer("other"), "q")
    assert b'"held"' in again.payload


def test_what_was_not_held_is_told(rig: Rig) -> None:
    rig.put("q", payload("1"), payload("2"))
    me = rig.consumer()
    first, second = taken(me, "q")
    rig.client.hdel(rig.store.keys("q").unacked("me"), first.tag)
    me.ack("q", first.tag)
    me.ack("q", second.tag)
    # The replies are read now at the latest.
    taken(me, "q")
    assert rig.missed_acks == [("q", first.tag)]


def test_replies_do_not_pile_up(rig: Rig) -> None:
    me = rig.consumer()
    for number in range(3 * UNREAD_LIMIT):
        me.ack("q", str(number))
    assert len(rig.missed_acks) > 2 * UNREAD_LIMIT


def test_the_server_refuses(rig: Rig) -> None:
    rig.put("q", payload("1"), payload("2"))
    me = rig.consumer()
    first, second = taken(me, "q")
    unacked, elsewhere = rig.key("q", "unacked:me"), rig.key("q", "elsewhere")
    rig.client.rename(unacked, elsewhere)
    rig.client.set(unacked, "of another type")
    me.ack("q", first.tag)
    me.ack("q", second.tag)
    with pytest.raises(ResponseError):
        me.confirm_acks()
    assert rig.store.server.call("PING") == b"PONG", "others are not concerned"
    rig.client.rename(elsewhere, unacked)
    me.confirm_acks()
    assert rig.unacked("q") == {}


class TestForgottenByTheServer:
    """As after a failover: the messages are held again that were acked lately."""

    def forget(self, rig: Rig, held: dict[bytes, bytes], consumer: Consumer) -> None:
        rig.client.hset(rig.store.keys("q").unacked(consumer.name), mapping=held)

    def acked(self, rig: Rig) -> tuple[Consumer, dict[bytes, bytes]]:
        rig.put("q", *(payload(str(n)) for n in range(300)))
        me = rig.consumer()
        deliveries = taken(me, "q", limit=300)
        held = rig.client.hgetall(rig.store.keys("q").unacked(me.name))
        for delivery in deliveries:
            me.ack("q", delivery.tag)
        me.confirm_acks()
        return me, held

    @pytest.mark.parametrize("at_rest", [False, True])
    def test_are_acked_again_over_the_next_connection(self, rig: Rig, at_rest: bool) -> None:
        me, held = self.acked(rig)
        self.forget(rig, held, me)
        if at_rest:
            # As when the server closes it: nobody notices before it is used.
            line_of(me, "q").connection.disconnect()
        else:
            line = Breaking(me)
            line.breaks = "after"
            with pytest.raises(ConnectionError):
                taken(me, "q")
            line.breaks = ""
        assert me.give_back_all()
        assert rig.ready("q") == []
        assert rig.missed_acks == []

    def test_before_anything_else(self, rig: Rig) -> None:
        me, held = self.acked(rig)
        self.forget(rig, held, me)
        me.disconnect()
        assert taken(me, "q") == []
        assert rig.unacked("q") == {}

    def test_not_those_of_long_ago(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        me, held = self.acked(rig)
        self.forget(rig, held, me)
        monkeypatch.setattr("kombu_redisdelay.broker.server.line.KEPT_FOR", 0.0)
        me.disconnect()
        me.confirm_acks()
        assert len(rig.unacked("q")) == 300
