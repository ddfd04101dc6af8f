"""Remembers which queue a message was routed to, so that the next one takes only one round trip.

kombu reads the bindings of an exchange from Redis for each message, because any program may have changed
them. Here, the message is sent together with the bindings that it was routed by. The server accepts it if
the bindings are still the same. On a cluster, another server may have the bindings. There, a route is used
again for :data:`VALID_FOR` seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from threading import local
from time import monotonic
from typing import NamedTuple

from kombu_redisdelay.broker.publish_calls import Bound

#: The largest number of bindings that are compared for each message. If there are more, it is just as cheap
#: to read them first.
MOST_BINDINGS = 16

#: The largest number of routes to keep. A topic exchange may get any number of routing keys.
MOST_ROUTES = 1000

#: Seconds that a route is used which the server does not check.
VALID_FOR = 1.0


class Route(NamedTuple):
    """The only queue that an exchange routes a routing key to.

    Attributes:
        queue: name of the queue.
        bound: the bindings under which the route is valid, ``None`` if the server does not check that.
        until: when to look for another one, seconds of the monotonic clock.
        changes: how often this process had changed bindings when the route was found.
    """

    queue: str
    bound: Bound | None
    until: float
    changes: int


class Routes:
    """The routes that a channel has found.

    Attributes:
        are_checked: whether the server checks them.
    """

    are_checked = True
    #: How often this process has changed bindings, through any channel. What a program has declared itself
    #: counts at once.
    _changes = 0

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        # Several threads may publish through a channel. Each one routes by the bindings that it has read.
        self._read = local()

    def get(self, exchange: str, routing_key: str) -> Route | None:
        route = self._routes.get((exchange, routing_key))
        if route is None or self.are_checked:
            return route
        return route if route.changes == Routes._changes and monotonic() < route.until else None

    @staticmethod
    def bindings_have_changed() -> None:
        """Note that this process has changed bindings."""
        Routes._changes += 1

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
            checked = bound if self.are_checked else None
            self._routes[exchange, routing_key] = Route(
                queue, checked, monotonic() + VALID_FOR, Routes._changes
            )

    def forget(self, exchange: str, routing_key: str) -> None:
        self._routes.pop((exchange, routing_key), None)
