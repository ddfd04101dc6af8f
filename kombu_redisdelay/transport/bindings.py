"""What this process knows of bindings: the routes that it has found, and what it has declared.

kombu reads the bindings of an exchange from Redis for each message, because any program may have changed
them. Here, the message is sent together with the bindings that it was routed by. The server accepts it if
the bindings are still the same. On a cluster, another server may have the bindings. There, a route is used
again for :data:`VALID_FOR` seconds.

kombu remembers for each connection what it has declared, and never looks whether Redis still has it: after
FLUSHDB or an eviction, what is published to a named exchange would vanish for as long as publisher and worker
live. Here, it is said again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from threading import local
from time import monotonic
from typing import Any, NamedTuple

from kombu_redisdelay.broker.bindings import NEW, UNBOUND, LastingBindings, QueueBinding
from kombu_redisdelay.broker.fair_keys import PLAIN
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.publish_calls import Bindings
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: The largest number of bindings that are compared for each message. If there are more, it is just as cheap
#: to read them first.
MOST_COMPARED = 16

#: The largest number of routes to keep. A topic exchange may get any number of routing keys.
MOST_ROUTES = 1000

#: Seconds that a route is used which the server does not check.
VALID_FOR = 1.0

#: How many bindings a process remembers for each broker.
MOST_BINDINGS = 10_000

#: Seconds for which a binding that was unbound is let be.
LET_BE_FOR = 60.0

#: How many bindings or queues a line of the log names.
NAMED = 5


class Route(NamedTuple):
    """The only queue that an exchange routes a routing key to.

    Attributes:
        queue: name of the queue.
        bindings: those under which the route is valid, ``None`` if the server does not check that.
        until: when to look for another one, seconds of the monotonic clock.
        changes: how often this process had changed bindings when the route was found.
    """

    queue: str
    bindings: Bindings | None
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
        self._read.last = Bindings(table, tuple(bindings))

    def found(self, exchange: str, routing_key: str, queues: Collection[str]) -> None:
        """Note that the bindings which were read last route to *queues*."""
        read: Bindings = self._read.last
        if len(queues) == 1 and 0 < len(read.members) <= MOST_COMPARED:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            [queue] = queues
            checked = read if self.are_checked else None
            self._routes[exchange, routing_key] = Route(
                queue, checked, monotonic() + VALID_FOR, Routes._changes
            )

    def forget(self, exchange: str, routing_key: str) -> None:
        self._routes.pop((exchange, routing_key), None)


class Declared:
    """What this process has declared at one broker and what lasts: not queues that expire, or that go with
    their consumer. All connections and threads of the process share it, and a child that was forked goes on
    with what its parent has declared."""

    def __init__(self) -> None:
        #: Exchange -> routing key, pattern and queue -> until when it is let be, seconds of the monotonic
        #: clock.
        self._bindings: dict[str, dict[tuple[str, str, str], float]] = {}
        #: How many bindings there are, about.
        self._count = 0
        #: Queues with `x-fair`.
        self._fair: set[str] = set()

    @property
    def exchanges(self) -> list[str]:
        """Those to which this process has bound queues."""
        return list(self._bindings)

    def has(self, queue: str, exchange: str, routing_key: str) -> bool:
        """Whether a binding was declared, and this process has not taken it back."""
        known = list(self._bindings.get(exchange, ()))
        return any(each[0] == routing_key and each[2] == queue for each in known)

    def bind(self, store: Store, binding: QueueBinding) -> None:
        """Bind a queue, because the application declares that.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        exchange, each = binding.exchange, binding[1:]
        known = self._bindings.get(exchange, {})
        if each in known:
            self._say_again(store, [binding])
            return
        LastingBindings(store).bind([binding], again=False)
        if self._count >= MOST_BINDINGS:
            self._count, self._bindings, known = 0, {}, {}
        self._count += 1
        known[each] = 0.0
        self._bindings[exchange] = known

    def note_fair(self, queue: str) -> None:
        """Note that *queue* was declared with ``x-fair``."""
        self._fair.add(queue)

    def forget(self, queue: str, exchange: str, routing_key: str) -> None:
        """Forget a binding: this process takes it back."""
        self._drop(exchange, lambda each: each[0] == routing_key and each[2] == queue)

    def forget_queue(self, queue: str) -> None:
        """Forget a queue: this process deletes it."""
        self._fair.discard(queue)
        for exchange in self.exchanges:
            self._drop(exchange, lambda each: each[2] == queue)

    def lost(self, exchange: str, table: Iterable[tuple[str, ...]]) -> list[QueueBinding]:
        """What this process has bound to *exchange*, and what is not in its *table* of bindings in Redis."""
        known = self._bindings.get(exchange)
        return [] if known is None else self._sayable(exchange, set(known).difference(table))

    def bring_back(self, store: Store, lost: Sequence[QueueBinding]) -> bool:
        """Declare *lost* bindings again, but for those that were unbound, or whose queue was deleted. Returns
        whether there are more bindings now.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        new = self._say_again(store, lost)
        _tell_of_lost([f"queue {each.queue!r} is bound to exchange {each.exchange!r}" for each in new])
        return bool(new)

    def of(self, queues: Collection[str]) -> list[QueueBinding]:
        """The bindings of *queues*."""
        return [
            binding
            for exchange, known in list(self._bindings.items())
            for binding in self._sayable(exchange, [each for each in list(known) if each[2] in queues])
        ]

    def make_fair_again(self, store: Store, queues: Iterable[str]) -> None:
        """Make those of *queues* fair again that were declared so, if Redis does not know of it.

        Raises:
            RedisError: the connection failed, or the server refused.
        """
        names = store.partitions.all_names(queue for queue in queues if queue in self._fair)
        fair = FairQueues(store)
        plain = [name for name, state in zip(names, fair.states(names), strict=True) if state == PLAIN]
        if plain:
            fair.switch_on(plain)
            _tell_of_lost([f"queue {name!r} is fair" for name in plain])

    def _drop(self, exchange: str, is_it: Callable[[tuple[str, str, str]], bool]) -> None:
        known = self._bindings.get(exchange, {})
        for each in filter(is_it, list(known)):
            known.pop(each, None)
            self._count -= 1
        if not known:
            self._bindings.pop(exchange, None)

    def _sayable(self, exchange: str, some: Iterable[tuple[str, str, str]]) -> list[QueueBinding]:
        """Those of *some* bindings of *exchange* that are not let be."""
        known, now = self._bindings.get(exchange, {}), monotonic()
        return [QueueBinding(exchange, *each) for each in some if known.get(each, 0.0) <= now]

    def _say_again(self, store: Store, some: Sequence[QueueBinding]) -> list[QueueBinding]:
        """Bind queues that this process has bound before. Returns the bindings that were not there."""
        outcomes = LastingBindings(store).bind(some, again=True)
        for binding, outcome in zip(some, outcomes, strict=True):
            if outcome == UNBOUND:
                self._let_be(binding)
        return [binding for binding, outcome in zip(some, outcomes, strict=True) if outcome == NEW]

    def _let_be(self, binding: QueueBinding) -> None:
        known, each = self._bindings.get(binding.exchange, {}), binding[1:]
        if known.get(each) == 0.0:
            logger.warning(
                "Queue %r stays unbound from exchange %r, where it had routing key %r: another process has "
                "unbound it, or deleted the queue. This process has declared it before; one that is started "
                "now can bind it again.",
                binding.queue,
                binding.exchange,
                binding.routing_key,
            )
        if each in known:
            known[each] = monotonic() + LET_BE_FOR


def _tell_of_lost(lost: Sequence[str]) -> None:
    if not lost:
        return
    more = f", and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    logger.warning(
        "Redis had lost that %s. Its keys have vanished: FLUSHDB, an eviction, an older dump, or no dump at "
        "all. Declared again. What was published meanwhile may be missing there.",
        ", ".join(lost[:NAMED]) + more,
    )


#: By broker.
_declared: dict[Hashable, Declared] = {}


def declared_at(broker: Hashable) -> Declared:
    """What this process has declared at *broker*."""
    return _declared.setdefault(broker, Declared())


def is_fanout_of_an_app(exchange: str) -> bool:
    """Whether a queue in ``task_queues`` of a Celery app in this process has a fanout exchange of this
    name."""
    apps: Any = getattr(sys.modules.get("celery._state"), "_get_active_apps", tuple)
    for app in list(apps()):
        # An app that publishes has made both already.
        amqp = vars(app).get("amqp")
        queues = {} if amqp is None else vars(amqp).get("queues", {})
        for queue in list(queues.values()):
            known = queue.exchange
            if known is not None and known.name == exchange and known.type == "fanout":
                return True
    return False
