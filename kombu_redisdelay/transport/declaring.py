"""The part of a channel that declares queues and notes their bindings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.bindings import BINDING
from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.fair_queues import FairQueues
from kombu_redisdelay.broker.keys import is_ours
from kombu_redisdelay.broker.partitions import taken
from kombu_redisdelay.broker.server.errors import Refuses
from kombu_redisdelay.broker.server.replies import explained
from kombu_redisdelay.broker.store import name_of
from kombu_redisdelay.refusals import Then, refusal_of
from kombu_redisdelay.transport.block import block_for
from kombu_redisdelay.transport.bounds import LENGTH, bound_of
from kombu_redisdelay.transport.connecting import ConnectingChannel
from kombu_redisdelay.transport.refused import may_wait
from kombu_redisdelay.transport.routes import Routes

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Seconds between two attempts to note bindings that Redis has refused.
BIND_PAUSE = 1.0


class DeclaringChannel(ConnectingChannel):
    """Declares the queues of one Redis database, and reads and notes their bindings."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._routes = Routes()
        #: Bindings that Redis has refused to note, arguments of `_queue_bind` -> whether the log tells of it.
        self._unbound: dict[tuple[str, str, str, str], bool] = {}
        self._bind_at = 0.0
        super().__init__(*args, **kwargs)

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
            fair = FairQueues(self.store)
            if set(fair.states(names)) != {ON}:
                fair.switch_on(names)

    def prepare_queue_arguments(
        self, arguments: Mapping[str, Any], max_length: object = None, **kwargs: Any
    ) -> dict[str, Any]:
        prepared: dict[str, Any] = super().prepare_queue_arguments(arguments, **kwargs)
        # Older releases of kombu leave it out.
        return prepared if max_length is None else {**prepared, LENGTH: max_length}

    def queue_declare(self, queue: str | None = None, *args: Any, **kwargs: Any) -> Any:
        declare = super().queue_declare
        return self._wait_for(self.store.slot(queue or ""), lambda: declare(queue, *args, **kwargs))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        block = block_for(self.connection.client)
        if block is not None:
            block.tables.clear()
        bind = super()._queue_bind
        try:
            self._wait_to_bind(lambda: bind(exchange, routing_key, pattern, queue))
        except ResponseError as exc:
            if not self.is_refused_for_a_while(exc):
                raise
            # A worker must be able to start: the tasks that it runs give memory back.
            self._unbound[exchange, routing_key, pattern, queue] = False

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
            super()._queue_bind(*binding)
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

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        # A message must not miss its queue.
        self._bind_again()
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
        return self._wait_for("bindings", do)
