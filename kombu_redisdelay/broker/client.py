"""The way to the server: redis-py's client, with a shorter way for what is sent for every message."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Any

from redis import ConnectionPool, Redis
from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.wire import Argument, Command, pack

#: Seconds of rest after which a connection is looked at before it is used again: the server, or what is
#: between, may have closed it.
REST = 0.01

#: Bytes that are sent at a time. Each piece may take as long as the socket's timeout, on a slow line.
PIECE_BYTES = 64 * 1024


def open_connection(pool: ConnectionPool) -> Any:
    """A connection as *pool* makes them, which is none of the pool's. Connects when it is first used."""
    return pool.connection_class(**pool.connection_kwargs)


class Client(Redis):
    """redis-py's client, which adds no prefix to keys, with :meth:`call` and :meth:`call_all`."""

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self._open_own()

    def _open_own(self) -> None:
        self._pid = os.getpid()
        self._own = open_connection(self.connection_pool)
        self._own_in_use = Lock()
        self._used_at = float("-inf")

    def call(self, *command: Argument) -> Any:
        """Run *command* straight on a connection that is kept for it. What redis-py does around a command
        (the pool, retries, metrics) takes about as long as the command.

        Returns:
            The reply as it came.

        Raises:
            RedisError: as redis-py does. Unless ``retry_on_timeout`` asks for it, nothing is tried again: a
                message might be published twice.
        """
        [reply] = self.call_all(command)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies as they came; that of a command which the server refused is a ``ResponseError``.

        Raises:
            RedisError: the connection failed; tried again as :meth:`call`.
        """
        if self._pid != os.getpid():
            # The one that we have is the parent's.
            self._open_own()
        if not self._own_in_use.acquire(blocking=False):
            # By another thread, which need not be waited for.
            return self._call_over_pool(commands)
        try:
            if monotonic() - self._used_at > REST:
                _see_that_it_is_open(self._own)
            self._own.send_packed_command(_pieces(commands))
            replies = [_reply(self._own) for _ in commands]
            self._used_at = monotonic()
            return replies
        except BaseException:
            # Whatever it was, Celery's soft time limit for one: the next call must not read our replies.
            self._own.disconnect()
            raise
        finally:
            self._own_in_use.release()

    def _call_over_pool(self, commands: Sequence[Command]) -> list[Any]:
        with self.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def disconnect(self) -> None:
        """Close the connections. The next command opens one again."""
        self._own.disconnect()
        self.connection_pool.disconnect()


def _pieces(commands: Sequence[Command]) -> list[bytes]:
    packed = [pack(*command) for command in commands]
    return [b"".join(piece) for piece in portions(packed, len, len(packed), PIECE_BYTES)]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def _see_that_it_is_open(connection: Any) -> None:
    try:
        # Nobody owes us anything: what can be read is the end.
        is_open = not connection.can_read()
    except (OSError, RedisError):
        is_open = False
    if not is_open:
        connection.disconnect()
