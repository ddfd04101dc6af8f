"""Connections that are lost when the server refuses to write, because too few replicas follow it."""

from __future__ import annotations

from typing import Any

from redis.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError, ResponseError


class PlainConnection(Connection):
    """A server with ``min-replicas-to-write`` refuses for a while. Celery would end a worker for any other
    error; after a lost connection, it tries again."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """As redis-py's.

        Raises:
            ConnectionError: as redis-py says, or too few replicas follow the server.
        """
        try:
            return super().read_response(*args, **kwargs)
        except ResponseError as exc:
            # Redis 6.2 puts this into the error of a script.
            if "NOREPLICAS " not in str(exc):
                raise
            self.disconnect()
            raise ConnectionError(f"too few replicas follow {self.host}:{self.port}: {exc}") from None


class SecureConnection(PlainConnection, SSLConnection):
    """The same over TLS."""
