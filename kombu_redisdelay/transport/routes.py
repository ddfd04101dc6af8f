"""Where an exchange sent a message to, so that the next one goes there in one round trip.

kombu reads the bindings of an exchange from Redis for each message, because anybody may have changed them.
Here the message is sent with the bindings that it was routed by, and the server takes it if they are
still the same.
"""

from __future__ import annotations

from collections.abc import Collection
from threading import local
from typing import NamedTuple

from kombu_redisdelay.broker.store import Bound

#: Bindings that are compared for each message; with more of them, reading them first is as cheap.
MOST_BINDINGS = 16

#: Routes that are kept. A topic exchange may see any number of routing keys.
MOST_ROUTES = 1000


class Route(NamedTuple):
    """The one queue that an exchange has bound to a routing key, as long as that is *bound*."""

    queue: str
    bound: Bound


class Routes:
    """The routes that a channel has found."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        # Several threads may publish through a channel, each routes by what it has read itself.
        self._read = local()

    def get(self, exchange: str, routing_key: str) -> Route | None:
        return self._routes.get((exchange, routing_key))

    def has_read(self, table: str, bindings: Collection[bytes]) -> None:
        """Note the bindings that the next route is found by."""
        self._read.last = Bound(table, tuple(bindings))

    def found(self, exchange: str, routing_key: str, queues: Collection[str]) -> None:
        """Note that these bindings route to *queues*."""
        bound: Bound = self._read.last
        if len(queues) == 1 and 0 < len(bound.bindings) <= MOST_BINDINGS:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            [queue] = queues
            self._routes[exchange, routing_key] = Route(queue, bound)

    def forget(self, exchange: str, routing_key: str) -> None:
        self._routes.pop((exchange, routing_key), None)
