"""Remembers which queue a message was routed to, so that the next one takes only one round trip.

kombu reads the bindings of an exchange from Redis for each message, because any program may have changed
them. Here, the message is sent together with the bindings that it was routed by. The server accepts it if
the bindings are still the same.
"""

from __future__ import annotations

from collections.abc import Collection
from threading import local
from typing import NamedTuple

from kombu_redisdelay.broker.store import Bound

#: The largest number of bindings that are compared for each message. If there are more, it is just as cheap
#: to read them first.
MOST_BINDINGS = 16

#: The largest number of routes to keep. A topic exchange may get any number of routing keys.
MOST_ROUTES = 1000


class Route(NamedTuple):
    """The only queue that an exchange routes a routing key to.

    Attributes:
        queue: name of the queue.
        bound: the bindings under which the route is valid.
    """

    queue: str
    bound: Bound


class Routes:
    """The routes that a channel has found."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        # Several threads may publish through a channel. Each one routes by the bindings that it has read.
        self._read = local()

    def get(self, exchange: str, routing_key: str) -> Route | None:
        return self._routes.get((exchange, routing_key))

    def has_read(self, table: str, bindings: Collection[bytes]) -> None:
        """Note the bindings that this thread has read. The next route is found by them."""
        self._read.last = Bound(table, tuple(bindings))

    def found(self, exchange: str, routing_key: str, queues: Collection[str]) -> None:
        """Note that the bindings which were read last route to *queues*."""
        bound: Bound = self._read.last
        if len(queues) == 1 and 0 < len(bound.bindings) <= MOST_BINDINGS:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            [queue] = queues
            self._routes[exchange, routing_key] = Route(queue, bound)

    def forget(self, exchange: str, routing_key: str) -> None:
        self._routes.pop((exchange, routing_key), None)
