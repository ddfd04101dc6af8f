"""The connections of a channel: one that is kept, and more when several threads need one at a time."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from redis import BlockingConnectionPool, ConnectionPool

from kombu_redisdelay.broker.server.line import Line, re_authenticate


class Pool(BlockingConnectionPool):
    """redis-py's pool that lets threads wait for a connection, with a :class:`Line` in it. The connection of
    the line is lent first, so that one connection is enough for all that is not done at the same time."""

    _line: Line
    _lent: WeakSet[Any]

    @classmethod
    def like(cls, pool: ConnectionPool, max_connections: int = 1, **options: Any) -> Pool:
        """A pool that connects as *pool* does, but for the *options*.

        Arguments:
            max_connections: how many there may be beside the line.
        """
        return cls(
            max_connections=max_connections,
            connection_class=pool.connection_class,
            **{**pool.connection_kwargs, **options},
        )

    @property
    def line(self) -> Line:
        """The kept connection, of this process."""
        if self.pid != os.getpid():
            self._checkpid()
        return self._line

    def new_connection(self) -> Any:
        """A connection as those of the pool, which is none of them. It connects when it is first used."""
        return self.connection_class(**self.connection_kwargs)

    def reset(self) -> None:
        """Begin with new connections: at first, and in a forked child. redis-py's name."""
        super().reset()
        self._line = Line(self.new_connection)
        #: Connections of the line that are in use elsewhere. One that is never given back is forgotten.
        self._lent = WeakSet()

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = self.line.lend()
        if connection is not None:
            self._lent.add(connection)
            return connection
        connection = super().get_connection(*args, **kwargs)
        re_authenticate(connection)
        return connection

    def release(self, connection: Any) -> None:
        if connection in self._lent:
            self._lent.discard(connection)
            self.line.take_back(connection)
        else:
            super().release(connection)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.line.disconnect()
        for connection in list(self._lent):
            connection.disconnect()
        super().disconnect(*args, **kwargs)

    def re_auth_callback(self, token: Any) -> None:
        """Have each connection tell the server its new credentials before it is used again. redis-py's name,
        called from the thread of a streaming credential provider; redis-py's own cannot do it here."""
        for connection in (self.line.connection, *self._lent, *self._connections):
            connection.set_re_auth_token(token)
