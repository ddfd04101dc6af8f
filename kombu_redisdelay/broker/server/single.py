"""One Redis or Valkey: redis-py's client, and a shorter way for the commands that every message needs.

The connections are those of a channel: one that is kept, and more when several threads need one at the same
time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.line import Ack, AckMissed, Line, re_authenticate
from kombu_redisdelay.broker.server.wire import (
    Argument,
    Command,
    NotThePrimary,
    checked,
    unpacked,
    without_frames,
)


class SingleServer:
    """The :class:`~kombu_redisdelay.broker.server.server.Server` behind a *pool*."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        provider = pool.connection_kwargs.get("credential_provider")
        # With this option, redis-py tells the pool of new credentials.
        options = {} if provider is None else {"credential_provider": provider}
        self._redis = Redis(connection_pool=pool, **options)

    has_slots = False

    def slot(self, key: str) -> int:
        return 0

    def call(self, *command: Argument) -> Any:
        [reply] = checked(self.call_all(command))
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        if not commands:
            return []
        replies = self._pool.line.try_call_all(commands)
        return self._call_over_pool(commands) if replies is None else replies

    def try_packed(self, data: bytes, count: int) -> list[Any] | None:
        return self._pool.line.try_packed(data, count)

    def call_apart(self, *command: Argument) -> Any:
        return self._redis.execute_command(*unpacked(command))

    @property
    def address(self) -> str:
        options = self._pool.connection_kwargs
        sentinels = options.get("connection_pool")
        if sentinels is not None:
            return "{}:{}".format(*sentinels.primary)
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    @property
    def line(self) -> Line:
        """The kept connection."""
        return self._pool.line

    def ack(self, ack: Ack) -> None:
        self._pool.line.ack(ack)

    def is_at_hand(self, key: str) -> bool:
        return self._pool.line.is_at_hand()

    def after_acks(self, key: str) -> Line:
        return self._pool.line

    def hurrying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def tell_missed_acks(self, to: AckMissed) -> None:
        self._pool.line.ack_missed = to

    def confirm_acks(self) -> None:
        self._pool.line.confirm_acks()

    def new_connection(self, key: str) -> Any:
        return self._pool.new_connection()

    def relocated(self, reply: ResponseError | NotThePrimary) -> None:
        raise reply

    def prepared(self, command: Command) -> Command:
        return command

    def with_own_connections(self, *, socket_timeout: float) -> SingleServer:
        sentinels = self._pool.connection_kwargs.get("connection_pool")
        options = {} if sentinels is None else {"connection_pool": sentinels.apart()}
        return SingleServer(Pool.like(self._pool, socket_timeout=socket_timeout, **options))

    def servers(self) -> Sequence[SingleServer]:
        return [self]

    def server_of(self, key: str) -> SingleServer:
        return self

    def info(self, section: str = "everything") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._redis.info(section)
        return found

    def setting(self, name: str) -> str | None:
        try:
            value = self._redis.config_get(name).get(name)
        except ResponseError:
            return None
        return None if value is None else str(value)

    def doubt(self) -> None:
        # A new connection finds the primary of now.
        self._pool.doubt()

    def disconnect(self) -> None:
        self._pool.disconnect()

    def _call_over_pool(self, commands: Sequence[Command]) -> list[Any]:
        with self._redis.pipeline(transaction=False) as pipe:
            # The replies as they come, as over the line: redis-py would make dictionaries and sets of some.
            pipe.response_callbacks = {}  # type: ignore[assignment]
            for command in commands:
                pipe.execute_command(*unpacked(command))
            replies = pipe.execute(raise_on_error=False)
        return [without_frames(reply) if isinstance(reply, ResponseError) else reply for reply in replies]


class Pool(BlockingConnectionPool):
    """redis-py's pool in which threads wait for a free connection, with a :class:`Line` in it.

    The connection of the line is lent first. So one connection is enough unless several are needed at the
    same time.
    """

    _line: Line
    _lent: WeakSet[Any]
    _doubted: WeakSet[Any]

    @classmethod
    def like(cls, pool: ConnectionPool, max_connections: int = 1, **options: Any) -> Pool:
        """A pool that connects as *pool* does, except for *options*.

        Arguments:
            max_connections: how many connections there may be besides that of the line.
        """
        return cls(
            max_connections=max_connections,
            connection_class=pool.connection_class,
            **{**pool.connection_kwargs, **options},
        )

    @property
    def line(self) -> Line:
        """The kept connection of this process."""
        if self.pid != os.getpid():
            self._checkpid()
        return self._line

    def new_connection(self) -> Any:
        """A connection like those of the pool, but outside of it. It connects when it is first used."""
        return self.connection_class(**self.connection_kwargs)

    def reset(self) -> None:
        """Begin with new connections. redis-py calls this for a new pool and in a forked child."""
        super().reset()
        self._line = Line(self.new_connection)
        #: Connections of the line that are in use elsewhere. One that is never given back is forgotten.
        self._lent = WeakSet()
        #: Those that have to connect again before they are used again.
        self._doubted = WeakSet()

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = self.line.lend()
        if connection is not None:
            self._lent.add(connection)
            return connection
        connection = super().get_connection(*args, **kwargs)
        if self._has_been_doubted(connection):
            connection.disconnect()
        re_authenticate(connection)
        return connection

    def release(self, connection: Any) -> None:
        if self._has_been_doubted(connection):
            connection.disconnect()
        if connection in self._lent:
            self._lent.discard(connection)
            self.line.take_back(connection)
        else:
            super().release(connection)

    def doubt(self) -> None:
        """Have each connection connect again before its next use. A connection that a thread uses now stays
        open: its message may be there already, and the thread needs the reply."""
        self.line.disconnect()
        self._doubted = WeakSet((*self._lent, *self._connections))

    def _has_been_doubted(self, connection: Any) -> bool:
        is_doubted = connection in self._doubted
        self._doubted.discard(connection)
        return is_doubted

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.line.disconnect()
        for connection in list(self._lent):
            connection.disconnect()
        super().disconnect(*args, **kwargs)

    def re_auth_callback(self, token: Any) -> None:
        """Make each connection send the new credentials to the server before it is used again.

        redis-py calls this from the thread of a streaming credential provider. Its own method does not work
        with this pool.
        """
        for connection in (self.line.connection, *self._lent, *self._connections):
            connection.set_re_auth_token(token)
