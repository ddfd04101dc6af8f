"""The connections of a channel: one that is kept, and more when several threads need one at the same time."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from redis import BlockingConnectionPool, ConnectionPool

from kombu_redisdelay.broker.server.line import Line, re_authenticate


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
