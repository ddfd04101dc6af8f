"""The part of a channel that connects: its pools and clients, its store, and how to wait for a failover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

from kombu.transport import redis
from redis import Redis
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.keys import Partitions
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.server import Confirming, Server
from kombu_redisdelay.broker.server.single import Pool, SingleServer
from kombu_redisdelay.broker.server.wire import Refuses
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.refusals import refusal_of

_Result = TypeVar("_Result")

#: Seconds that replicas have to confirm what was published, at most.
CONFIRM_TIMEOUT = 1.0


def as_publisher_sees(error: ResponseError) -> ResponseError | Refuses:
    """The *error* of publishing. What the table of :mod:`kombu_redisdelay.refusals` calls lost is a lost
    connection, so that kombu tries again."""
    refusal = refusal_of(error)
    if refusal is None or not refusal.is_lost:
        return error
    return Refuses(f"Redis refuses ({refusal.hint}): {error}", refusal)


class WithoutTransactions:
    """A server that is out of memory refuses every transaction, also one that only reads or deletes. kombu
    needs none: the server runs what comes in one packet before it turns to other clients."""

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> Any:
        return super().pipeline(transaction, shard_hint)  # type: ignore[misc]

    def ping(self, **kwargs: Any) -> Any:
        """As redis-py's. A server that refuses it is there: kombu asks for nothing else.

        Raises:
            Refuses: the server does nothing at all. Else kombu would be connected, publish without a pause,
                and give up when that is refused, too.
        """
        try:
            return super().ping(**kwargs)  # type: ignore[misc]
        except ResponseError as exc:
            refusal = refusal_of(exc)
            if refusal is None or not refusal.is_for_a_while:
                raise
            if refusal.is_lost:
                raise as_publisher_sees(exc) from None
            return True


class _Client(WithoutTransactions, Redis):
    pass


class PrefixedClient(WithoutTransactions, redis.PrefixedStrictRedis):
    pass


class ConnectingChannel(redis.Channel):
    """Connects to one Redis database.

    Attributes:
        silence_limit: seconds that the server may take for a reply before the connection counts as lost.
        connect_limit: seconds that connecting may take. Where another server may take over, a second: while
            a thread waits for one that is gone, it does not hear of the other.
    """

    options: Options
    silence_limit = 3.0
    connect_limit = 3.0

    #: Created when it is first used.
    _store: Store | None = None

    @property
    def store(self) -> Store:
        """The store that this channel publishes with. Created when it is first used."""
        if self._store is None:
            server, replicas = self._new_server(), self.options.confirm_replicas
            publisher = Confirming(server, replicas, self._confirm_ms) if replicas else server
            partitions, isolated_after = Partitions(self.options.partitions), self.options.isolated_after
            self._store = Store(
                server, self.prefix, self.priority_steps, self.sep, publisher, partitions, isolated_after
            )
        return self._store

    @property
    def prefix(self) -> str:
        """In front of every key: ``global_keyprefix``."""
        return str(self.global_keyprefix)

    def _new_server(self) -> Server:
        return SingleServer(self.pool)

    @property
    def _confirm_ms(self) -> int:
        """Milliseconds that replicas have to confirm. The reply must come before the socket's timeout."""
        socket_timeout: float = self.pool.connection_kwargs["socket_timeout"]
        return max(1, round(1000 * min(CONFIRM_TIMEOUT, socket_timeout / 2)))

    def _get_pool(self, asynchronous: bool = False) -> Any:
        pool = super()._get_pool(asynchronous)
        limits = {"socket_timeout": self.silence_limit, "socket_connect_timeout": self.connect_limit}
        for option, seconds in limits.items():
            if pool.connection_kwargs.get(option) is None:
                # By default, kombu waits for ever, and this would block the event loop.
                pool.connection_kwargs[option] = seconds
        if asynchronous:
            return pool
        # kombu's pool raises an error when all connections are in use. With this pool, the thread waits.
        return Pool.like(pool, self.max_connections)

    @cached_property
    def _stock_client(self) -> Any:
        return self._create_client()

    def _get_client(self) -> Any:
        if self.global_keyprefix:
            return partial(PrefixedClient, global_keyprefix=self.global_keyprefix)
        return _Client

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        # Not ``client_for_each_call``, as kombu.
        yield client or self._stock_client

    @staticmethod
    def _pubsub_reauth_handled_by_redis(connection: Any) -> bool:
        # redis-py gives new credentials only to connections that its PubSub has opened. kombu opens this
        # one itself. With this answer, kombu opens it again when the credentials change.
        return False

    def _after_fork(self) -> None:
        super()._after_fork()
        self._store = None
        self.__dict__.pop("_stock_client", None)

    def _wait_for(self, do: Callable[[], _Result], queue: str | None) -> _Result:
        """Call *do*, which may be repeated if nothing was done. Where there may be a failover, wait for it,
        except in a thread that consumes.

        Arguments:
            queue: one of the slot that it needs; ``None`` for the slot of bindings.
        """
        patience = self.connection.patience
        if patience is None or self.connection.is_workers:
            try:
                return do()
            except ResponseError as exc:
                raise as_publisher_sees(exc) from None

        def hurry() -> _Result:
            with self.store.server.hurrying():
                try:
                    return do()
                except ResponseError as exc:
                    raise as_publisher_sees(exc) from None

        what = "bindings" if queue is None else self.store.slot(queue)
        result: _Result = patience.wait_for(what, hurry)
        return result
