"""What the broker needs of a way to the server, whatever kind of server that is.

There is one implementation, for one Redis or Valkey: :mod:`kombu_redisdelay.broker.server.single`. The
transport chooses it. Nothing else in the package knows which one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kombu_redisdelay.broker.server.line import AckInVain, Line
from kombu_redisdelay.broker.server.wire import Argument, Command


class Server(Protocol):
    """A way to the server. Any number of threads may share it.

    Methods raise what redis-py raises. They add no prefix to keys, and return replies as they come: bytes
    stay bytes.
    """

    def call(self, *command: Argument) -> Any:
        """Run *command*. Returns the reply.

        Raises:
            RedisError: the connection failed, or the server refused. Unless ``retry_on_timeout`` asks for it,
                nothing is tried again: a message might be published twice.
        """

    def call_all(self, *commands: Command) -> list[Any]:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies; that of a command which the server refused is a ``ResponseError``.

        Raises:
            RedisError: the connection failed; tried again as :meth:`call`.
        """

    def call_apart(self, *command: Argument) -> Any:
        """Run a *command* that may wait at the server, over a connection that nobody else waits for. Returns
        the reply."""

    def line(self, key: str) -> Line:
        """The kept connection to where *key* is."""

    def tell_acks_in_vain(self, to: AckInVain) -> None:
        """Tell *to* of acks that find no message, from now on."""

    def confirm_acks(self) -> None:
        """Wait until every ack so far was done.

        Raises:
            RedisError: the connection failed, or the server refused. They remain to be sent again.
        """

    def new_connection(self) -> Any:
        """A connection of redis-py's that is the caller's alone. It connects when it is first used."""

    def with_own_connections(self, *, socket_timeout: float) -> Server:
        """The same server by other connections.

        Arguments:
            socket_timeout: seconds that a reply may take.
        """

    def info(self, section: str = "everything") -> Mapping[str, Any]:
        """What the server tells of itself: a *section* of ``INFO``, or all of them."""

    def setting(self, name: str) -> str | None:
        """A setting of the server; ``None`` where ``CONFIG`` is not allowed, as with most hosted servers."""

    def disconnect(self) -> None:
        """Close the connections. The next call opens one again."""
