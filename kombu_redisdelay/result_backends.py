"""Our URL schemes as result backends of Celery: its own backends for Redis and sentinels, with our URLs.

Celery finds them by the entry points ``celery.result_backends``. So one URL can be both ``broker_url`` and
``result_backend``. Results are kept exactly as with ``redis://`` and ``sentinel://``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import urlencode

from celery.backends import redis
from celery.exceptions import ImproperlyConfigured
from kombu.utils.url import as_url, parse_url, url_to_parts

from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.urls import SEPARATOR, check_host, read, verifying

#: What a URL begins with that began with ``redisdelay+socket``: Celery cuts that off.
_SOCKET = "socket"

#: The options that lead from sentinels to their primary.
_OF_SENTINELS = ("master_name", "min_other_sentinels", "sentinel_kwargs")


class Backend(redis.RedisBackend):  # type: ignore[misc]
    """``redisdelay://``, and ``redisdelay+socket://`` for a Unix socket.

    With TLS, it verifies the server, unless an option turns this off. If results are kept where the broker
    is, TLS is used as for the broker, unless ``redis_backend_use_ssl`` is set.

    Attributes:
        scheme: of its URLs.
        of_celery: the scheme of Celery's backend that does the work.
        always_tls: whether to use TLS even if no setting says so.
    """

    scheme = "redisdelay"
    of_celery = "redis"
    always_tls = False
    default_port = 6379

    def __init__(self, *args: Any, url: str | None = None, **kwargs: Any) -> None:
        """
        Raises:
            ImproperlyConfigured: the URL is wrong. No password is in the error.
        """
        super().__init__(*args, url=url or f"{self.scheme}://", **kwargs)

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """As Celery's, and also when a server refuses for a reason that passes by itself. While Redis is
        full, each place of the pool would wait, and nothing would give memory back: that is no such reason.

        Celery asks only if ``result_backend_always_retry`` is set.
        """
        refusal = refusal_of(exc)
        if refusal is not None and refusal.passes:
            return True
        return bool(super().exception_safe_to_retry(exc))

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        try:
            self._check(url)
            # Without TLS: up to Celery 5.5, it is an error beside redis://.
            plain = {
                name: v for name, v in defaults.items() if not name.startswith(("ssl_", "connection_class"))
            }
            params: dict[str, Any] = super()._params_from_url(self._translated(url), plain)
            tls = self._tls_of(url)
        except ValueError as exc:
            raise ImproperlyConfigured(f"result_backend: {exc}") from None
        if tls is not None:
            params |= {"connection_class": self.connection_class_ssl, **tls}
        return params

    def _check(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme != self.scheme and (scheme != _SOCKET or self.always_tls):
            raise ValueError(f"no such URL scheme: {self.scheme}+{scheme}://")
        check_host(rest.rpartition("@")[2])
        if SEPARATOR in rest:
            raise ValueError("results are kept in one place, and this names several: set it to one of them")

    def _translated(self, url: str) -> str:
        """*url* for Celery's backend, without options of TLS."""
        if url.startswith(_SOCKET):
            return url
        return self._url_of(url, *read([url], self.default_port))

    def _url_of(self, url: str, once: Mapping[str, str], addresses: Any) -> str:
        database = once.get("path", "")
        if database and not database.isdecimal():
            raise ValueError(f"the database is a number, not {database!r}")
        first = url_to_parts(url.partition(SEPARATOR)[0])
        query = {name: value for name, value in first.query.items() if not name.startswith("ssl_")}
        login: dict[str, Any] = {
            "user": once.get("username"),
            "password": once.get("password"),
            "path": once.get("path"),
        }
        urls = (as_url(self.of_celery, host, port, **login) for host, port in addresses)
        return SEPARATOR.join(f"{each}?{urlencode(query)}" if query else each for each in urls)

    def _tls_of(self, url: str) -> dict[str, Any] | None:
        """The options of TLS, ``None`` if it is not used."""
        if url.startswith(_SOCKET):
            return None
        given = self.app.conf.redis_backend_use_ssl
        if not given and self._is_at_the_broker(url):
            given = self.app.conf.broker_use_ssl
        try:
            of_url = parse_url(url.partition(SEPARATOR)[0]).get("ssl", {})
        except KeyError as exc:
            raise ValueError(f"ssl_cert_reqs cannot be {exc}") from None
        if not (given or of_url or self.always_tls):
            return None
        return verifying({**(given if isinstance(given, Mapping) else {}), **of_url})

    def _is_at_the_broker(self, url: str) -> bool:
        """Whether *url* leads to where the broker is, maybe to another database."""
        brokers = self.app.conf.broker_write_url or ()
        brokers = [brokers] if isinstance(brokers, str) else list(brokers)
        if not all(isinstance(each, str) and each.startswith("redisdelay") for each in brokers):
            return False
        try:
            ports = self.default_port
            return set(read(brokers, ports).addresses) == set(read([url], ports).addresses)
        except ValueError:
            return False


class SecureBackend(Backend):
    """``redisdelays://``: always with TLS."""

    scheme = "redisdelays"
    always_tls = True


class SentinelBackend(Backend, redis.SentinelBackend):  # type: ignore[misc]
    """``redisdelay-sentinel://h1:26379;redisdelay-sentinel://h2:26379/0``: any of the URLs may have the login
    and the database. With options of TLS, the Redis servers are spoken to over TLS.

    The options of sentinels are in ``result_backend_transport_options``. If results are kept where the broker
    is, those that are missing there are taken from ``broker_transport_options``.

    Attributes:
        sentinels_have_tls: whether the sentinels are spoken to over TLS, too.
    """

    scheme = "redisdelay-sentinel"
    of_celery = "sentinel"
    default_port = 26379
    sentinels_have_tls = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """
        Raises:
            ImproperlyConfigured: the URLs are wrong, or there is no ``master_name``.
        """
        super().__init__(*args, **kwargs)
        if not self._transport_options.get("master_name"):
            raise ImproperlyConfigured(
                "result_backend: the option 'master_name' is missing. Set result_backend_transport_options = "
                "{'master_name': ...} to the name by which the sentinels know the primary"
            )

    def _params_from_url(self, url: str, defaults: dict[str, Any]) -> dict[str, Any]:
        params = super()._params_from_url(url, defaults)
        # ``sentinel_user``.
        user = {name: value for name, value in params["hosts"][0].items() if name == "username"}
        return params | user

    def _check(self, url: str) -> None:
        schemes = {each.partition("://")[0] for each in url.split(SEPARATOR)}
        if schemes != {self.scheme}:
            raise ValueError(f"the URL of each sentinel begins with {self.scheme}://")

    @cached_property
    def _transport_options(self) -> dict[str, Any]:
        conf = self.app.conf
        options = dict(conf.result_backend_transport_options or {})
        if self._is_at_the_broker(self.url):
            of_broker = conf.broker_transport_options or {}
            options = {name: of_broker[name] for name in _OF_SENTINELS if name in of_broker} | options
        if self.sentinels_have_tls:
            tls = {"ssl": True, **(self._tls_of(self.url) or {})}
            options["sentinel_kwargs"] = {**tls, **(options.get("sentinel_kwargs") or {})}
        return options


class SecureSentinelBackend(SentinelBackend):
    """``redisdelays-sentinel://``: the sentinels and the Redis servers are spoken to over TLS."""

    scheme = "redisdelays-sentinel"
    always_tls = True
    sentinels_have_tls = True


class ClusterBackend:
    """``redisdelay-cluster://``, where Celery cannot keep results."""

    def __init__(self, **kwargs: Any) -> NoReturn:
        """
        Raises:
            ImproperlyConfigured: always. It says what to set instead.
        """
        raise ImproperlyConfigured(
            "Celery keeps no results in a Redis Cluster: set result_backend to a Redis without cluster "
            "(redis://host:6379/0), to another store, or to 'rpc://'"
        )
