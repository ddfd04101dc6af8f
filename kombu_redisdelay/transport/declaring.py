"""The part of a channel that declares queues and notes their bindings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.bindings import BINDING, LastingBindings, QueueBinding
from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.keys import is_ours, taken
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.server.wire import Refuses, explained
from kombu_redisdelay.broker.store import name_of
from kombu_redisdelay.refusals import Then, refusal_of
from kombu_redisdelay.transport.admission import LENGTH, bound_of
from kombu_redisdelay.transport.bindings import Routes
from kombu_redisdelay.transport.connecting import ConnectingChannel
from kombu_redisdelay.transport.outbox import block_for
from kombu_redisdelay.transport.refused import may_wait

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Seconds between two attempts to note bindings that Redis has refused.
BIND_PAUSE = 1.0

#: Seconds after which a consumer looks whether Redis still has what was declared of its queues.
LOOK_EVERY = 60.0

#: The option `expires` of a queue, in ms, where kombu leaves it out: before 5.7. There, it counts for queues
#: that go with their consumer, such as that of a client of `rpc://`, which keeps it alive. Others stay: with
#: that kombu, nobody expects them to go.
EXPIRES = "redisdelay-expires"

#: kombu's, where no exchange is named.
UNNAMED = "amq.direct"


class DeclaringChannel(ConnectingChannel):
    """Declares the queues of one Redis database, and reads and notes their bindings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._routes = Routes()
        #: Bindings that Redis has refused to note, arguments of `_queue_bind` -> whether the log tells of it.
        self._unbound: dict[tuple[str, str, str, str], bool] = {}
        #: Exchanges that this process has not declared -> their types, as far as their bindings tell.
        self._types: dict[str, str] = {}
        self._bind_at = 0.0
        self._look_at = monotonic() + LOOK_EVERY
        super().__init__(*args, **kwargs)
        # A channel that is closed has no connection any more.
        self._declared = self.connection.declared

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        whose = self.store.partitions.queue_of(queue)
        if whose != queue:
            raise ValueError(taken(queue, whose))
        if is_ours(queue):
            raise ValueError(
                f"a queue cannot be named {queue!r}, because the transport has a key of this name"
            )
        arguments, names = kwargs.get("arguments") or {}, self.store.partitions.names(queue)
        expires_ms, is_fair = arguments.get("x-expires"), bool(arguments.get("x-fair"))
        if expires_ms is None and auto_delete:
            expires_ms = arguments.get(EXPIRES)
        if expires_ms is not None and is_fair:
            raise ValueError(
                f"queue {queue!r} cannot be both fair ('x-fair') and declared with 'x-expires': Redis would "
                "expire the list of each key by itself"
            )
        bound = bound_of(queue, arguments, len(names))
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        self.connection.bounds.declare(names, bound)
        if not auto_delete:
            self.connection.declared_queues.update(names)
        for name in names:
            if expires_ms is None:
                self.store.expires_ms.pop(name, None)
            else:
                self.store.expires_ms[name] = int(expires_ms)
        if is_fair:
            self._declared.note_fair(queue)
            fair = FairQueues(self.store)
            if set(fair.states(names)) != {ON}:
                fair.switch_on(names)

    def prepare_queue_arguments(
        self,
        arguments: Mapping[str, Any],
        max_length: object = None,
        expires: float | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        prepared: dict[str, Any] = super().prepare_queue_arguments(arguments, expires=expires, **kwargs)
        # Older releases of kombu leave both out.
        if expires and "x-expires" not in prepared:
            prepared = {**prepared, EXPIRES: int(expires * 1000)}
        return prepared if max_length is None else {**prepared, LENGTH: max_length}

    def queue_declare(self, queue: str | None = None, *args: Any, **kwargs: Any) -> Any:
        declare = super().queue_declare
        return self._wait_for(lambda: declare(queue, *args, **kwargs), queue or "")

    def lasts(self, queue: str) -> bool:
        """Whether *queue* neither expires nor goes with its consumer, as far as this channel knows."""
        return queue not in self.store.expires_ms and queue not in self.auto_delete_queues

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        name = exchange or UNNAMED
        if not self._declared.has(queue, name, routing_key) and self._says_again(name, queue):
            # Another connection of this process may have taken it back. kombu would bind it once only.
            self.state.binding_delete(queue, name, routing_key)
        super().queue_bind(queue, exchange, routing_key, *args, **kwargs)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        """Unbind *queue*, for all processes. kombu would leave the binding in Redis."""
        name = exchange or UNNAMED
        self._declared.forget(queue, name, routing_key)
        self.state.binding_delete(queue, name, routing_key)
        self._wait_to_bind(lambda: LastingBindings(self.store).unbind(queue, name, routing_key))
        self._bindings_have_changed()

    def unbind_all(self, queue: str) -> list[QueueBinding]:
        """Take all bindings of *queue* out, for all processes. Returns them."""
        exchanges = [*self.state.exchanges, *self._declared.exchanges]
        found = self._wait_to_bind(lambda: LastingBindings(self.store).unbind_all(queue, exchanges))
        self._bindings_have_changed()
        return found

    def _says_again(self, exchange: str, queue: str) -> bool:
        """Whether the binding of *queue* is said again when Redis has lost it. What fanout exchanges have in
        Redis routes nothing."""
        return self.typeof(exchange).type != "fanout" and self.lasts(queue)

    def _bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        if self._says_again(exchange, queue):
            binding = QueueBinding(exchange, routing_key or "", pattern or "", queue)
            self._declared.bind(self.store, binding)
        else:
            super()._queue_bind(exchange, routing_key, pattern, queue)

    def _bindings_have_changed(self) -> None:
        block = block_for(self.connection.client)
        if block is not None:
            block.tables.clear()
        self._routes.bindings_have_changed()

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        try:
            self._wait_to_bind(lambda: self._bind(exchange, routing_key, pattern, queue))
        except ResponseError as exc:
            if not self.is_refused_for_a_while(exc):
                raise
            # A worker must be able to start: the tasks that it runs give memory back.
            self._unbound[exchange, routing_key, pattern, queue] = False
        self._bindings_have_changed()

    def is_refused_for_a_while(self, error: ResponseError) -> bool:
        """Whether to try again what Redis has refused: it is full, or a worker waits for it."""
        refusal = refusal_of(error)
        if refusal is None or not may_wait(refusal, self.connection.broker):
            return False
        return refusal.then is Then.GOES_ON or bool(self.connection.is_workers)

    def ask_to_write(self) -> None:
        """Ask the server that has the bindings for something that needs the right to write, and changes
        nothing. What a worker begins with would be refused.

        Raises:
            Refuses: it refuses for a while.
        """
        key = self.global_keyprefix + self.keyprefix_queue % ("celery",)
        try:
            self.store.server.call("SREM", key, "")
        except ResponseError as exc:
            refusal = refusal_of(exc)
            if refusal is None or refusal.then is not Then.ASKS_AGAIN or refusal.is_for_one:
                return
            raise Refuses(f"Redis refuses ({refusal.hint}): {exc}", refusal) from None

    def bind_later(self, queues: Iterable[str]) -> None:
        """Have the bindings of *queues* noted again when Redis takes it."""
        for queue in queues:
            for exchange, routing_key, args in self.state.queue_bindings(queue):
                _, pattern, _ = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, args)
                self._unbound.setdefault((exchange, routing_key, pattern, queue), False)

    def _bind_again(self) -> None:
        """Note the bindings that Redis has refused.

        Raises:
            ResponseError: it still refuses.
        """
        for binding in list(self._unbound):
            exchange, routing_key, _, queue = binding
            # It may have been unbound meanwhile.
            if self.state.has_binding(queue, exchange, routing_key) or self._declared.has(
                queue, exchange, routing_key
            ):
                self._bind(*binding)
            del self._unbound[binding]

    def try_to_bind(self) -> None:
        """Note the bindings that Redis has refused, if it is time to try that again."""
        if self._unbound and monotonic() > self._bind_at:
            self._bind_at = monotonic() + BIND_PAUSE
            try:
                self._bind_again()
            except ResponseError as exc:
                self._tell_of_unbound(exc)

    def _tell_of_unbound(self, error: ResponseError) -> None:
        """Log each binding once. A channel that only publishes gets an error instead, and does not come
        here."""
        for binding, is_told in self._unbound.items():
            if not is_told:
                exchange, _, _, queue = binding
                logger.warning(
                    "Redis has not noted that queue %r is bound to exchange %r. Trying again each second: %s",
                    queue,
                    exchange,
                    explained(error, self.store.server, ()),
                )
                self._unbound[binding] = True

    def say_again(self) -> None:
        """Once a minute, look whether Redis still has what this process has declared of the queues that the
        channel consumes from, and declare again what was lost. Those who publish need not know it."""
        if monotonic() < self._look_at:
            return
        self._look_at = monotonic() + LOOK_EVERY
        queues = [queue for queue in dict.fromkeys(self._active_queues) if self.lasts(queue)]
        try:
            with self.store.server.hurrying():
                lost = LastingBindings(self.store).lost(self._declared.of(queues))
                if lost:
                    self._say_lost(lost)
                self._declared.make_fair_again(self.store, queues)
        except ResponseError as exc:
            logger.warning("Could not see whether what was declared is still in Redis: %s", exc)
        except (RedisError, OSError) as exc:
            # On a cluster, it may be a server that has none of these queues.
            logger.debug("Could not see whether what was declared is still in Redis: %s", exc)

    def _say_lost(self, lost: Sequence[QueueBinding]) -> None:
        try:
            self._declared.bring_back(self.store, lost)
        except ResponseError as exc:
            if not self.is_refused_for_a_while(exc):
                raise
            for binding in lost:
                self._unbound.setdefault(binding, False)
        self._bindings_have_changed()

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        # A message must not miss its queue.
        self._bind_again()
        table = self._read_table(exchange)
        lost = self._declared.lost(exchange, table)
        if lost and self._wait_to_bind(lambda: self._declared.bring_back(self.store, lost)):
            self._bindings_have_changed()
            table = self._read_table(exchange)
        return table

    def learn_type(self, exchange: str) -> None:
        """Find out whether an exchange that this process has not declared is one of topics: its bindings have
        patterns then. kombu would take it for a direct one, and the message would reach no queue."""
        if exchange not in self._types and (table := self._read_table(exchange)):
            self._types[exchange] = "topic" if any(pattern for _, pattern, _ in table) else "direct"

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        return super().typeof(exchange, self._types.get(exchange, default))

    def _read_table(self, exchange: str) -> list[tuple[str, ...]]:
        key = self.global_keyprefix + self.keyprefix_queue % (exchange,)
        block = block_for(self.connection.client)
        bindings = None if block is None else block.tables.get(key)
        if bindings is None:
            bindings = self._wait_to_bind(lambda: self.store.server.call("SMEMBERS", key))
            if block is not None:
                block.tables[key] = bindings
        self._routes.has_read(key, bindings)
        texts = filter(None, map(name_of, bindings))
        table = (tuple(text.split(self.sep)) for text in texts)
        # Programs with another `sep` have bindings in there which cannot be read.
        return [binding for binding in table if len(binding) == BINDING]

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Collection[str]:
        queues: Collection[str] = super()._lookup(exchange, routing_key, default)
        if exchange:
            self._routes.found(exchange, routing_key, queues)
        return queues

    def _wait_to_bind(self, do: Callable[[], _Result]) -> _Result:
        """Call what reads or notes bindings. On a cluster, all of them are in one slot."""
        return self._wait_for(do, None)
