"""Remembers what this process has declared at a broker, to say it again when Redis has lost it.

kombu remembers it for each connection, and never looks whether Redis still has it: after FLUSHDB or an
eviction, what is published to a named exchange would vanish for as long as publisher and worker live.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from time import monotonic

from kombu_redisdelay.broker.bindings import NEW, UNBOUND, LastingBindings, QueueBinding
from kombu_redisdelay.broker.fair_keys import PLAIN
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.store import Store

logger = logging.getLogger(__name__)

#: How many bindings a process remembers for each broker.
MOST_BINDINGS = 10_000

#: Seconds for which a binding that was unbound is let be.
LET_BE_FOR = 60.0

#: How many bindings or queues a line of the log names.
NAMED = 5


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
