"""Acks: each is written at once, its reply is read later."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, TimeoutError

from kombu_redisdelay.broker.wire import Argument, pack

logger = logging.getLogger(__name__)

#: Replies that may wait to be read, when nothing else makes us read them.
UNREAD_LIMIT = 256


class Ack(NamedTuple):
    """An ack that was not confirmed yet.

    Attributes:
        unacked_key: the hash that holds the message.
        again: it was sent before, over a connection that failed, and may have been done then.
    """

    queue: str
    unacked_key: str
    tag: str
    again: bool = False


class Acks:
    """The acks of a consumer, over a connection of their own.

    When an ack returns, it was written: the server will do it, whatever becomes of this process. What was
    not confirmed when the connection fails is sent again over the next one; to do it twice does no harm.

    Arguments:
        connection: for nobody else.
        lease_lost: called with a queue and the tags of acks that found nothing there.
    """

    def __init__(self, connection: Any, lease_lost: Callable[[str, Sequence[str]], None]) -> None:
        self._connection = connection
        self._lease_lost = lease_lost
        self._lock = Lock()
        #: Those that are not confirmed, in the order in which they are sent.
        self._unconfirmed: deque[Ack] = deque()
        #: How many of these were written on the connection as it is.
        self._written = 0

    def add(self, queue: str, unacked_key: str, tag: str) -> None:
        """Forget a message for good.

        If the connection fails, the ack is not lost with it: it is sent again before anything else is
        done with what is held.
        """
        vain: list[Ack] = []
        with self._lock:
            self._unconfirmed.append(Ack(queue, unacked_key, tag))
            try:
                self._write()
                if self._written >= UNREAD_LIMIT:
                    vain = self._read()
            except BaseException as exc:
                self._begin_again()
                if not isinstance(exc, (ConnectionError, TimeoutError)):
                    raise
                logger.warning("An ack was not confirmed and will be sent again: %s", exc)
        self._tell(vain)

    def confirm(self) -> None:
        """Wait until every ack so far was done.

        Raises:
            RedisError: the connection failed, or the server refused. They remain to be sent again.
        """
        with self._lock:
            try:
                self._write()
                vain = self._read()
            except BaseException:
                self._begin_again()
                raise
        self._tell(vain)

    def call(self, *command: Argument) -> Any:
        """Confirm every ack and run *command*, in one round trip.

        Returns:
            The reply as it came.

        Raises:
            RedisError: as redis-py does.
        """
        with self._lock:
            try:
                self._write()
                self._send(pack(*command))
                vain = self._read()
            except BaseException:
                self._begin_again()
                raise
            reply = self._connection.read_response()
        self._tell(vain)
        return reply

    def disconnect(self) -> None:
        """Close the connection. What was not confirmed is sent over the next one."""
        with self._lock:
            self._begin_again()

    def _write(self) -> None:
        while self._written < len(self._unconfirmed):
            ack = self._unconfirmed[self._written]
            self._send(pack("HDEL", ack.unacked_key, ack.tag))
            self._written += 1

    def _send(self, packed: bytes) -> None:
        # redis-py's health check would take the reply to an ack for the one to its PING.
        self._connection.send_packed_command((packed,), check_health=not self._written)

    def _read(self) -> list[Ack]:
        """Read the replies that are to come. Returns the acks whose message was not held."""
        vain = []
        while self._written:
            held = self._connection.read_response()
            self._written -= 1
            ack = self._unconfirmed.popleft()
            if not held and not ack.again:
                vain.append(ack)
        return vain

    def _begin_again(self) -> None:
        """Something went wrong: leave the connection, and what was not confirmed to the next one."""
        self._connection.disconnect()
        # Who knows how much of the one that was being written got through.
        for index in range(min(self._written + 1, len(self._unconfirmed))):
            self._unconfirmed[index] = self._unconfirmed[index]._replace(again=True)
        self._written = 0

    def _tell(self, vain: list[Ack]) -> None:
        for queue in {ack.queue for ack in vain}:
            self._lease_lost(queue, [ack.tag for ack in vain if ack.queue == queue])
