"""The interface by which the broker uses the server, whatever kind of server that is.

There is one implementation, for one Redis or Valkey: :mod:`kombu_redisdelay.broker.server.single`. The
transport chooses it (``transport/publishing.py``). What uses it sends commands about several queues in one
packet, and scripts too: for a take, for a renewal, and to be woken. An implementation with several servers
has to divide these.
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
            RedisError: the connection failed, or the server refused. The command is not tried again, because
                that might publish a message twice, unless ``retry_on_timeout`` asks for it.
        """

    def call_all(self, *commands: Command) -> list[Any]:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies. If the server refused a command, its reply is a ``ResponseError``.

        Raises:
            RedisError: the connection failed. Tried again only as :meth:`call` says.
        """

    def call_apart(self, *command: Argument) -> Any:
        """Run a *command* that may block at the server, over a connection that nothing else waits for.
        Returns the reply."""

    def line(self, key: str) -> Line:
        """The kept connection to the server that has *key*."""

    def tell_acks_in_vain(self, to: AckInVain) -> None:
        """Call *to* for acks that find no message, from now on."""

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far.

        Raises:
            RedisError: the connection failed, or the server refused an ack. The acks that are not confirmed
                will be sent again.
        """

    def new_connection(self) -> Any:
        """A redis-py connection that only the caller uses. It connects when it is first used."""

    def with_own_connections(self, *, socket_timeout: float) -> Server:
        """The same server over connections of its own.

        Arguments:
            socket_timeout: seconds that a reply may take.
        """

    def info(self, section: str = "everything") -> Mapping[str, Any]:
        """What the server says of itself: a *section* of ``INFO``, or all of them."""

    def setting(self, name: str) -> str | None:
        """A setting of the server; ``None`` where ``CONFIG`` is not allowed, as with most hosted servers."""

    def disconnect(self) -> None:
        """Close the connections. The next call opens one again."""
