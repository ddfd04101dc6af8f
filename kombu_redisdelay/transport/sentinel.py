"""The transports and the channel for a primary that sentinels watch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from kombu.transport import redis
from kombu.utils.url import url_to_parts
from redis import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay.broker.server.sentinels import (
    Address,
    PrimaryConnection,
    SecurePrimaryConnection,
    Sentinels,
)
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.transports import Transport


class BrokerUrl(NamedTuple):
    """What the URLs of the sentinels say together.

    Attributes:
        sentinels: their addresses.
        username: of the Redis servers; ``None`` if no URL has one. The same for the password and the
            database.
    """

    sentinels: tuple[Address, ...]
    username: str | None
    password: str | None
    database: str | None


class SentinelChannel(Channel, redis.SentinelChannel):
    """A channel to the primary. kombu has the options: ``master_name``, ``min_other_sentinels`` and
    ``sentinel_kwargs``."""

    connection: SentinelTransport
    connection_class = PrimaryConnection
    connection_class_ssl = SecurePrimaryConnection  # type: ignore[assignment]
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
        if not self.master_name:
            raise ValueError(
                "the transport option 'master_name' is missing: the name by which the sentinels know the "
                "primary (in their configuration: sentinel monitor <name> ...)"
            )
        url = self.connection.broker_url
        tls = {"ssl": True, **self.connection.client.ssl} if self.connection.sentinels_have_tls else {}
        options = {**tls, **(self.sentinel_kwargs or {})}
        return Sentinels(url.sentinels, self.master_name, self.min_other_sentinels, options)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        url = self.connection.broker_url
        if url.database is not None:
            params["db"] = self._prepare_virtual_host(url.database)
        if "credential_provider" not in params:
            params.update(username=url.username, password=url.password)
        return params

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
        broker_url: what the URLs say.
        sentinels_have_tls: whether the sentinels are spoken to over TLS, too.
    """

    Channel = SentinelChannel
    default_port = 26379  # type: ignore[assignment]
    sentinels_have_tls = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """
        Raises:
            ValueError: the URLs contradict each other.
        """
        super().__init__(client, **kwargs)
        self.broker_url = _read(client, self.default_port)

    @property
    def _tls_address(self) -> Address | None:
        return self.broker_url.sentinels[0] if self.sentinels_have_tls else None


class SecureSentinelTransport(SentinelTransport):
    """``redisdelays-sentinel://``: the sentinels and the Redis servers are spoken to over TLS."""

    always_tls = True
    sentinels_have_tls = True


def _read(client: Any, default_port: int) -> BrokerUrl:
    """What the URLs of *client* say. kombu only reads the first one.

    Raises:
        ValueError: they contradict each other. No password is in the error.
    """
    if not client.alt:
        address = client.hostname or "127.0.0.1", client.port or default_port
        return BrokerUrl((address,), client.userid, client.password, client.virtual_host)
    urls = [url_to_parts(url) for url in client.alt]

    def said(what: str) -> str | None:
        values = {getattr(url, what) for url in urls} - {None}
        if len(values) > 1:
            raise ValueError(f"the URLs of the sentinels say more than one {_WORDS[what]}")
        return values.pop() if values else None

    addresses = tuple((url.hostname or "127.0.0.1", url.port or default_port) for url in urls)
    return BrokerUrl(addresses, said("username"), said("password"), said("path"))


_WORDS = {"username": "user", "password": "password", "path": "database"}
