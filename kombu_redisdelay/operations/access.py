"""Access to the queues of a broker for a program that neither publishes nor consumes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from kombu.connection import Connection
from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.bindings import BINDING, bindings_of
from kombu_redisdelay.broker.keys import Partitions, equal_shares
from kombu_redisdelay.broker.message import to_ms
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.viewers import check_deadline
from kombu_redisdelay.transport.admission import LENGTH, OVERFLOW, REJECT, bound_of
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.sentinel import SentinelChannel
from kombu_redisdelay.transport.settings import unknown_options
from kombu_redisdelay.transport.transports import Transport
from kombu_redisdelay.urls import is_unverified

if TYPE_CHECKING:
    from celery import Celery

    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: The argument *queue* of a method: one, several, or ``None`` for all.
QueueNames = str | Iterable[str] | None


class Access:
    """A separate connection to a broker. It uses the options of the transport: prefix, priority steps, TLS,
    timeouts. Close it, or use it in a ``with`` block. Any number of threads may share it.

    Arguments:
        broker: a Celery app, a kombu ``Connection``, or a broker URL. A ``Connection`` is copied, and is not
            used itself. Or another object of this kind, whose connection is shared, and ends when that
            object is closed.

    Attributes:
        app: the Celery app, ``None`` if something else was given.

    Raises:
        TypeError: *broker* is none of these, or uses another transport.
        redis.exceptions.RedisError: the server cannot be reached, or refuses the login.

    After :meth:`close`, every use raises ``ValueError``, also of an iterator that was begun before.
    """

    app: Any
    _connection: Connection
    _channel: Channel
    _server: _UntilClosed
    _store: Store

    def __init__(self, broker: Celery | Connection | str | Access) -> None:
        self._is_shared = isinstance(broker, Access)
        if isinstance(broker, Access):
            self.app, self._connection = broker.app, broker._connection
            self._channel, self._server, self._store = broker._channel, broker._server, broker._store
            return
        self.app = broker if hasattr(broker, "connection_for_write") else None
        self._connection = _connection(broker)
        if not issubclass(self._connection.get_transport_cls(), Transport):
            # No more of the URL: kombu shows a password that is not there, or one in a place of its own.
            scheme = self._connection.as_uri().partition("://")[0]
            raise TypeError(
                f"not a redisdelay:// broker: {scheme}://. Have the app's broker_url begin with "
                "redisdelay://, give such a URL with -b (celery -A proj -b URL delayed ...), or set "
                "KOMBU_REDISDELAY=redis where this runs: see 'Broker URLs' in the documentation"
            )
        try:
            # Fail soon: by default, kombu waits for two seconds before it tries again.
            self._connection.ensure_connection(
                max_retries=1, interval_start=0, reraise_as_library_errors=False
            )
            self._channel = cast(Channel, self._connection.channel())
            self._server = _UntilClosed(self._channel.store.server, type(self).__name__)
            self._store = self._channel.store.through(cast(Server, self._server))
            self._store.bounds = cache(partial(_bounds, self.app, self._store.partitions))
        except BaseException:
            self._connection.release()
            raise

    @property
    def address(self) -> str:
        """The broker's URL, without the password."""
        # kombu shows a password as `**`, also where there is none.
        return str(self._connection.as_uri(include_password=not self._connection.password))

    @property
    def scheme(self) -> str:
        """The scheme of the broker's URL."""
        return str(self._connection.transport_cls)

    @property
    def fails_over(self) -> bool:
        """Whether it goes over to another server when sentinels say so."""
        return isinstance(self._channel, SentinelChannel)

    @property
    def is_unverified(self) -> bool:
        """Whether it uses TLS without verifying the server."""
        return is_unverified(self._channel.pool.connection_kwargs)

    @property
    def options(self) -> Options:
        """The transport options that are ours."""
        return self._channel.options

    @property
    def stock_keys(self) -> tuple[str, str]:
        """The keys in which workers of ``redis://`` keep the messages that they have taken, and the times."""
        channel = self._channel
        prefix = channel.prefix
        return prefix + channel.unacked_key, prefix + channel.unacked_index_key

    @property
    def database(self) -> int:
        """The number of the database on the server."""
        return int(self._channel.pool.connection_kwargs.get("db") or 0)

    def routed_to(self, exchange: str, routing_key: str) -> Sequence[str]:
        """The names of the queues that a message with this *exchange* and *routing_key* was published to, by
        the bindings of the exchange. These also tell whether it is a topic exchange."""
        if not exchange:
            return [routing_key] if routing_key else []
        # Also as programs with another `sep` have written them.
        table = [binding[:BINDING] for binding in bindings_of(self.store, [exchange])]
        kind = "topic" if any(pattern for _, pattern, _ in table) else "direct"
        types: Any = self._channel.exchange_types
        return sorted(set(types[kind].lookup(table, exchange, routing_key, None)))

    def step_of(self, message: Mapping[str, Any]) -> int:
        """The priority step of *message*."""
        channel = self._channel
        return int(channel.priority(channel._get_message_priority(message)))

    def topic(self, exchange: str, routing_key: str) -> str:
        """The PUB/SUB channel that messages of a fanout exchange go through."""
        return str(self._channel._get_publish_topic(exchange, routing_key))

    @property
    def store(self) -> Store:
        """The queues in Redis.

        Raises:
            ValueError: this is closed.
        """
        self._server.check()
        return self._store

    def unknown_options(self) -> dict[str, str | None]:
        """The transport options that have no effect.

        Returns:
            Unknown option -> the known option that it resembles, ``None`` if there is no such option.
        """
        return unknown_options(self.transport_options)

    @property
    def transport_options(self) -> Mapping[str, Any]:
        """All transport options, as they were given."""
        return self._connection.transport_options or {}

    def queues(self) -> list[str]:
        """The names of the queues that have a consumer, a scheduled message or a dead letter, or a message
        from a producer of ours that has declared them, sorted. A queue with partitions comes once. Queues
        that this user has no permission to read are left out."""
        return self._readable(self.store.queues())[0]

    def unreadable(self) -> list[str]:
        """The names of the queues that Redis knows or the app declares, and that this user has no permission
        to read."""
        names = [*self.store.queues(), *self.store.partitions.all_names(self.declared_queues)]
        return self._readable(list(dict.fromkeys(names)))[1]

    def names(self, queue: QueueNames) -> list[str]:
        """The names of *queue* in Redis, of several queues, or of all: those that Redis knows, and those that
        the app declares. A queue with partitions has a name for each."""
        if queue is None:
            # Redis may know nothing of a queue that only stock producers use, or of any after FLUSHDB.
            declared, _ = self._readable(self.store.partitions.all_names(self.declared_queues))
            names: Iterable[str] = [*self.queues(), *declared]
        else:
            names = [queue] if isinstance(queue, str) else queue
        return self.store.partitions.all_names(names)

    def _readable(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The queues of these partitions that this user may read, and those that it has no permission to
        read."""
        replies: list[object] = []
        for some in portions(names, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            commands = [("EXISTS", self.store.keys(name).schedule) for name in some]
            replies += self.store.server.call_all(*commands)
        allowed: dict[str, None] = {}
        refused: dict[str, None] = {}
        for name, reply in zip(names, replies, strict=True):
            which = refused if isinstance(reply, NoPermissionError) else allowed
            which[self.store.partitions.queue_of(name)] = None
        return list(allowed), list(refused)

    @property
    def declared_queues(self) -> list[str]:
        """The names of the queues that the Celery app declares, by ``task_queues``, ``task_default_queue``,
        or ``task_routes``. Empty without an app. Those of fanout exchanges are missing: they hold no
        messages, and each process gives one another name."""
        if self.app is None:
            return []
        queues = self.app.amqp.queues.items()
        declared = [name for name, queue in queues if queue.exchange.type != "fanout"]
        names = [*declared, *_routed_to(self.app.conf.task_routes)]
        return list(dict.fromkeys(names))

    def close(self) -> None:
        """Close the connection, unless it is shared. May be called more than once."""
        if not self._is_shared:
            self._server.close()
            self._connection.release()

    def __enter__(self) -> Self:
        self._server.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _UntilClosed:
    """A server that refuses every call after its object was closed, where redis-py would silently connect
    again, or when the time of an operation is over.

    Arguments:
        who: the name of the object, for errors.
    """

    def __init__(self, server: Server, who: str) -> None:
        self._server = server
        self._who = who
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def check(self) -> None:
        if self._is_closed:
            raise ValueError(f"this {self._who} is closed")

    def __getattr__(self, name: str) -> Any:
        self.check()
        found = getattr(self._server, name)
        return partial(self._call, found) if callable(found) else found

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        check_deadline()
        try:
            return method(*args, **kwargs)
        except Exception:
            # A connection that is closed while another thread reads from it fails in many ways.
            self.check()
            raise


def _routed_to(routes: Any) -> Iterator[str]:
    """The queues that *routes*, the setting ``task_routes``, names. A route that is a function names none."""
    for table in routes if isinstance(routes, (list, tuple)) else [routes]:
        pairs = table.items() if isinstance(table, Mapping) else table
        for pair in () if pairs is None or callable(pairs) or isinstance(pairs, str) else pairs:
            route = pair[1] if isinstance(pair, (list, tuple)) and len(pair) == 2 else None
            queue = route.get("queue") if isinstance(route, Mapping) else route
            name = getattr(queue, "name", queue)
            if isinstance(name, str):
                yield name


def has_length(queue: Any) -> bool:
    """Whether *queue*, one of kombu, is declared with a largest length."""
    return _arguments(queue).get(LENGTH) is not None


def overflow_of(queue: Any) -> object:
    """What *queue*, one of kombu, is declared to do when it is full; ``None`` if it does not say."""
    return _arguments(queue).get(OVERFLOW)


def is_to_refuse(queue: Any) -> bool:
    """Whether *queue*, one of kombu, is declared to refuse new work when it is full."""
    return overflow_of(queue) == REJECT


def declared_bound(queue: Any, partitions: Partitions) -> int | None:
    """How many messages *queue*, one of kombu, may have; ``None`` for any number.

    Raises:
        ValueError: it is declared with a length that cannot be.
    """
    return bound_of(queue.name, _arguments(queue), len(partitions.names(queue.name)))


def _arguments(queue: Any) -> Mapping[str, Any]:
    arguments = dict(queue.queue_arguments or {})
    return arguments if queue.max_length is None else {**arguments, LENGTH: queue.max_length}


def _bounds(app: Any, partitions: Partitions) -> dict[str, int]:
    """The queues that *app* declares with a bound, and their partitions -> how many messages they may
    have."""
    found: dict[str, int] = {}
    for queue in () if app is None else app.amqp.queues.values():
        # What cannot be declared is no bound. The doctor says so.
        with suppress(ValueError):
            bound = declared_bound(queue, partitions)
            if bound is not None:
                names = partitions.names(queue.name)
                found |= {**dict(zip(names, equal_shares(bound, len(names)), strict=True)), queue.name: bound}
    return found


def moment_ms(name: str, moment: object) -> float | None:
    """The argument *name*, a time, in ms since the epoch; ``None`` if it is ``None``.

    Raises:
        ValueError: it is not a ``datetime``.
    """
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise ValueError(f"{name} must be a datetime, not {moment!r}")
    return to_ms(moment)


def check_limit(limit: object) -> None:
    """Check the argument *limit*.

    Raises:
        ValueError: *limit* is neither a whole number from 0 nor ``None``.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit must be a whole number from 0, not {limit!r}")


def _connection(broker: Any) -> Connection:
    try:
        return _new_connection(broker)
    except KeyError as exc:
        # kombu's for a scheme that nobody has registered.
        raise ValueError(str(exc.args[0])) from None


def _new_connection(broker: Any) -> Connection:
    if isinstance(broker, str):
        return Connection(broker)
    if isinstance(broker, Connection):
        copy: Connection = broker.clone()
        return copy
    if hasattr(broker, "connection_for_write"):
        connection: Connection = broker.connection_for_write()
        return connection
    raise TypeError(f"not a Celery app, a kombu Connection or a broker URL: {broker!r}")


def natural(name: str) -> str:
    """The key to sort names by, so that ``q2`` comes before ``q10``."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name)
