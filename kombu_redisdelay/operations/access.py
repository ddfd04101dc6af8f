"""Access to the queues of a broker for a program that neither publishes nor consumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from kombu.connection import Connection
from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.option_names import unknown_options
from kombu_redisdelay.transport.sentinel import SentinelChannel
from kombu_redisdelay.transport.transports import Transport

if TYPE_CHECKING:
    from celery import Celery

    # In `typing` from Python 3.11 on.
    from typing_extensions import Self


class Access:
    """A separate connection to a broker. It uses the options of the transport: prefix, priority steps, TLS,
    timeouts. Close it, or use it in a ``with`` block. Any number of threads may share it.

    Arguments:
        broker: a Celery app, a kombu ``Connection``, or a broker URL. A ``Connection`` is copied, and is not
            used itself.

    Attributes:
        app: the Celery app, ``None`` if something else was given.

    Raises:
        TypeError: *broker* is none of these, or uses another transport.
        redis.exceptions.RedisError: the server cannot be reached, or refuses the login.
    """

    def __init__(self, broker: Celery | Connection | str) -> None:
        self.app: Any = broker if hasattr(broker, "connection_for_write") else None
        self._connection = _connection(broker)
        if not issubclass(self._connection.get_transport_cls(), Transport):
            # No more of the URL: kombu shows a password that is not there, or one in a place of its own.
            scheme = self._connection.as_uri().partition("://")[0]
            raise TypeError(f"not a redisdelay:// broker: {scheme}://")
        try:
            # Fail soon: by default, kombu waits for two seconds before it tries again.
            self._connection.ensure_connection(
                max_retries=1, interval_start=0, reraise_as_library_errors=False
            )
            self._channel = cast(Channel, self._connection.channel())
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The broker's URL, without the password."""
        # kombu shows a password as `**`, also where there is none.
        return str(self._connection.as_uri(include_password=not self._connection.password))

    @property
    def fails_over(self) -> bool:
        """Whether it goes over to another server when sentinels say so."""
        return isinstance(self._channel, SentinelChannel)

    @property
    def options(self) -> Options:
        """The transport options of ours."""
        return self._channel.options

    @property
    def stock_keys(self) -> tuple[str, str]:
        """The keys in which workers of ``redis://`` keep what they have taken: the messages, and when."""
        channel = self._channel
        prefix = channel.prefix
        return prefix + channel.unacked_key, prefix + channel.unacked_index_key

    def topic(self, exchange: str, routing_key: str) -> str:
        """The PUB/SUB channel that messages of a fanout exchange go through."""
        return str(self._channel._get_publish_topic(exchange, routing_key))

    @property
    def store(self) -> Store:
        """The queues in Redis."""
        return self._channel.store

    def unknown_options(self) -> dict[str, str | None]:
        """The transport options that have no effect.

        Returns:
            Unknown option -> the known option that it resembles, ``None`` if there is no such option.
        """
        return unknown_options(self._connection.transport_options or {})

    def queues(self) -> list[str]:
        """The names of the queues that have a consumer, a scheduled message or a dead letter, sorted. A queue
        with partitions comes once. Queues that this user has no permission to read are left out."""
        return self._readable(self.store.queues())

    def _readable(self, names: Sequence[str]) -> list[str]:
        """The queues of these partitions, without those that this user has no permission to read."""
        replies: list[object] = []
        for some in portions(names, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            commands = [("EXISTS", self.store.keys(name).schedule) for name in some]
            replies += self.store.server.call_all(*commands)
        allowed = [
            self.store.partitions.queue_of(name)
            for name, reply in zip(names, replies, strict=True)
            if not isinstance(reply, NoPermissionError)
        ]
        return list(dict.fromkeys(allowed))

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._connection.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_mark_revoked(self, mark_revoked: bool) -> None:
        if mark_revoked and self.app is None:
            raise TypeError("mark_revoked needs the Celery app, for its result backend")

    def _mark_revoked(self, ids: Iterable[str], reason: str) -> None:
        """Write the state ``REVOKED`` to the app's result backend."""
        for id in ids:
            self.app.backend.mark_as_revoked(id, reason)

    def _queues(self, queue: str | None) -> list[str]:
        """The partitions of *queue*, or of all queues."""
        return self.store.partitions.all_names(self.queues() if queue is None else [queue])


def check_limit(limit: object) -> None:
    """Check the argument *limit*.

    Raises:
        ValueError: *limit* is neither a whole number from 0 nor ``None``.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ValueError(f"limit must be a whole number from 0, not {limit!r}")


def _connection(broker: Any) -> Connection:
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
