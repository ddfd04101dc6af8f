"""The network around one node of a cluster: what comes in passes proxies, what goes out has an address."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tools.harness.proxy import HOST, Proxy

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: The nodes talk to each other at a port that is this much higher. Redis 6.2 knows no other way.
TO_BUS = 10_000


class Gate:
    """Opened for as long as the ``with`` block lasts.

    Attributes:
        source: the address that the node's own connections come from. Clients have another one.
        clients: the proxy for clients, and for its replicas.
        bus: the proxy for what the nodes tell each other.

    Arguments:
        port: where the node listens for clients.
        number: from 2 to 254, different for each node.
    """

    def __init__(self, port: int, number: int) -> None:
        self.source = f"127.0.0.{number}"
        self.clients = Proxy(port)
        self.bus = Proxy(port + TO_BUS)
        self._exit = ExitStack()

    @property
    def arguments(self) -> Sequence[str]:
        """For the server: what it tells others, and from where. The latter is possible from Redis 7.0 on."""
        return (
            *("--cluster-announce-port", str(self.clients.port)),
            *("--cluster-announce-bus-port", str(self.bus.port)),
            *("--bind-source-addr", self.source),
        )

    def close(self, sources: Collection[str], *, clients: bool) -> None:
        """Let nothing in from other nodes, which have these *sources*; nor from clients, if asked to."""
        self.bus.go_silent(sources)
        self.clients.go_silent({*sources, HOST} if clients else sources)

    def open(self, sources: Collection[str]) -> None:
        """Let everything in again. The other nodes connect at once; clients have to find out."""
        for proxy in (self.bus, self.clients):
            proxy.pass_on()
            proxy.reset(sources)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.clients)
            stack.enter_context(self.bus)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()
