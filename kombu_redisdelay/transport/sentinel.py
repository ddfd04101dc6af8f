"""The transports and the channel for a primary that sentinels watch."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from kombu.transport import redis
from redis import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.broker.server.connections import (
    PrimaryConnection,
    SecurePrimaryConnection,
    Sentinels,
)
from kombu_redisdelay.broker.server.nodes import Address
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.settings import check_sentinel_options
from kombu_redisdelay.transport.transports import Transport
from kombu_redisdelay.transport.urls import read_together


class SentinelChannel(Channel, redis.SentinelChannel):
    """A channel to the primary. kombu has the options: ``master_name``, ``min_other_sentinels`` and
    ``sentinel_kwargs``."""

    connection: SentinelTransport
    connection_class = PrimaryConnection
    connection_class_ssl = SecurePrimaryConnection  # type: ignore[assignment]
    connect_limit = 1.0
    master_name: str | None = None
    min_other_sentinels = 0
    sentinel_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """As for one server. Also check that the connections that wait lead to the primary of now.

        Raises:
            ConnectionError: one of them does not, or failed.
        """
        super().check()
        for name in ("client", "subclient"):
            client = self.__dict__.get(name)
            connection = None if client is None else client.connection
            if connection is not None and connection.has_moved():
                raise RedisConnectionError(
                    f"{connection.host}:{connection.port} is not the primary any more, the sentinels say"
                )

    @cached_property
    def _sentinels(self) -> Sentinels:
        check_sentinel_options(self.connection.client.transport_options)
        assert self.master_name is not None
        tls = {"ssl": True, **self.connection.client.ssl} if self.connection.sentinels_have_tls else {}
        options = {**tls, **(self.sentinel_kwargs or {})}
        return Sentinels(self.connection.addresses, self.master_name, self.min_other_sentinels, options)

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> ConnectionPool:
        params = self._connparams(asynchronous)
        del params["host"], params["port"]
        return ConnectionPool(connection_pool=self._sentinels, **params)

    def _disconnect_pools(self) -> None:
        super()._disconnect_pools()
        if "_sentinels" in self.__dict__:
            self._sentinels.disconnect()


class SentinelTransport(Transport):
    """``redisdelay-sentinel://h1:26379;redisdelay-sentinel://h2:26379/0``, the addresses of sentinels. With
    ``ssl``, the Redis servers are spoken to over TLS, as with kombu's ``sentinel://``.

    Attributes:
        addresses: of the sentinels.
        sentinels_have_tls: whether the sentinels are spoken to over TLS, too.
    """

    Channel = SentinelChannel
    default_port = 26379  # type: ignore[assignment]
    waits_for_failover = True
    sentinels_have_tls = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """
        Raises:
            ValueError: the URLs contradict each other.
        """
        super().__init__(client, **kwargs)
        self.addresses = read_together(client, self.default_port)

    @property
    def _tls_address(self) -> Address | None:
        return self.addresses[0] if self.sentinels_have_tls else None


class SecureSentinelTransport(SentinelTransport):
    """``redisdelays-sentinel://``: the sentinels and the Redis servers are spoken to over TLS."""

    always_tls = True
    sentinels_have_tls = True
