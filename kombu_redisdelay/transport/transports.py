"""The transports behind the URL schemes.

A :class:`ReconnectBackoff` delays the next connection when the last ones were lost at once. One server of a
cluster may be away, or a primary lack replicas. Then connecting succeeds, and Celery, which pauses for longer
and longer if it fails, would connect again and again. But a producer whose connection was closed, as restarts
and load balancers do it, must not wait: the first loss costs nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from queue import Empty
from time import monotonic, sleep
from typing import Any

from kombu.transport import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.broker.server.wire import WrongServer
from kombu_redisdelay.public import public
from kombu_redisdelay.transport import remote_control
from kombu_redisdelay.transport.admission import Bounds, lengths_of
from kombu_redisdelay.transport.bindings import declared_at
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.patience import Patience
from kombu_redisdelay.transport.poller import Poller
from kombu_redisdelay.transport.refused import is_worker, outlast
from kombu_redisdelay.transport.returned import tell_what_has_not_failed
from kombu_redisdelay.transport.settings import warn_of_misspelt_options, warn_when_ready
from kombu_redisdelay.transport.tasks import is_exit
from kombu_redisdelay.transport.urls import tell_once
from kombu_redisdelay.transport.waker import wake_on_signals
from kombu_redisdelay.transport.worker import extend_worker
from kombu_redisdelay.urls import answers_without, check_host, verifying

logger = logging.getLogger(__name__)

#: The modes of servers whose URLs begin with another scheme, as they call them.
OTHER_MODES = {
    "sentinel": "this is a sentinel, not a Redis server: its URL begins with redisdelay-sentinel://",
    "cluster": "this is a server of a cluster: its URL begins with redisdelay-cluster://",
}

#: By broker.
_backoffs: dict[Any, ReconnectBackoff] = {}
_patience: dict[Any, Patience] = {}

#: A connection that is lost within this number of seconds, and has published nothing, was of no use.
SHORT_LIVED = 2.0

#: Seconds that pass between the second such loss in a row and the next connection. They double with each.
FIRST_PAUSE = 0.1

#: The most seconds that pass.
LONGEST_PAUSE = 1.0


@public
class Transport(redis.Transport):
    """``redisdelay://``, and ``redisdelay+socket://`` for a Unix socket. With ``ssl``, it uses TLS and
    verifies the server, unless the options in ``ssl`` turn this off.

    ``driver_type`` stays ``"redis"``, because Celery uses it to decide what a broker can do.

    Attributes:
        other_modes: the modes in which the server cannot be, and what to say then.
        always_tls: whether to use TLS even if ``ssl`` is not set.
        waits_for_failover: whether publishing waits for another server when one is gone.
        has_published: whether something was published over this connection.
        is_workers: whether a Celery worker consumes over this connection. Then an exception of a callback
            does not leave ``drain_events``; see :mod:`kombu_redisdelay.transport.worker`.
    """

    Channel = Channel
    client: Any
    cycle: Any
    brpop_timeout = 1
    other_modes: Mapping[str, str] = OTHER_MODES
    always_tls = False
    is_workers = False
    waits_for_failover = False
    has_published = False

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """
        Raises:
            ValueError: the URL has an unknown scheme, or asks for TLS over a Unix socket, or there are
                several URLs that do not belong together.
        """
        if self.always_tls:
            client.ssl = client.ssl or True
        _check_url(client)
        _check_alike(client.alt or ())
        if client.ssl:
            # Unless `ssl` is a mapping, kombu uses no TLS.
            client.ssl = verifying(client.ssl)
        # A worker makes a transport before it starts its consumer.
        extend_worker()
        # A worker makes a transport before it forks its processes, which run the tasks.
        tell_what_has_not_failed()
        super().__init__(client, **kwargs)
        self.cycle = Poller()
        self.patience = None
        if self.waits_for_failover:
            # Sentinels may watch several primaries.
            named = (
                str(client.transport_options.get(name)) for name in ("master_name", "min_other_sentinels")
            )
            self.patience = _patience.setdefault((_broker(client), client.userid, *named), Patience())
        self._pid = os.getpid()
        self._connected_at = float("-inf")
        #: The queues, with all partitions, that were declared over this connection, without those that are
        #: deleted when their consumer goes, such as those of replies. kombu declares a queue once for each
        #: connection.
        self.declared_queues: set[str] = set()
        options = client.transport_options
        where = (_broker(client), *(str(options.get(name)) for name in ("master_name", "global_keyprefix")))
        self.bounds, self.lengths = Bounds(), lengths_of(where)
        self.declared = declared_at((*where, options.get("sep")))

    def create_channel(self, connection: Any) -> Any:
        # Warn here, not in `__init__`: a worker makes a transport for its banner before it sets up logging.
        warn_of_misspelt_options(self.client.transport_options)
        tell_once(self.client)
        remote_control.extend()
        warn_when_ready()
        try:
            if self._avail_channels:
                return super().create_channel(connection)
            # As kombu does it, which would show an error as that of an IndexError that it handles.
            channel = self.Channel(connection)
            self.channels.append(channel)
            return channel
        except (RedisConnectionError, RedisTimeoutError) as exc:
            address = self._tls_address
            if address is not None and answers_without(*address):
                host, port = address
                raise RedisConnectionError(
                    f"{host}:{port} looks like a server without TLS: it answers without TLS. Use redisdelay "
                    f"and no ssl (broker_use_ssl) there, or the port on which it speaks TLS. ({exc})"
                ) from exc
            raise

    @property
    def _tls_address(self) -> tuple[str, int] | None:
        """The host and port of the URL, if TLS is spoken there."""
        if not self.client.ssl:
            return None
        return self.client.hostname or "127.0.0.1", self.client.port or self.default_port

    def establish_connection(self) -> Any:
        """Open the first channel.

        Raises:
            ConnectionError: the server cannot be reached. kombu and Celery try again.
            ValueError: the URL or an option is wrong: the server is of another kind, or has no such database.
                Trying again would not help.
        """
        backoff = _backoffs.get(_broker(self.client))
        if backoff is not None:
            backoff.pause()
        try:
            # kombu tries the next URL, where there are several.
            connection = self._connect() if self._has_others else outlast(self.broker, self._connect)
        except WrongServer as exc:
            raise ValueError(str(exc)) from None
        except ResponseError as exc:
            if "DB index is out of range" not in str(exc):
                raise
            raise ValueError(f"the server has no such database as in the broker URL: {exc}") from None
        self._connected_at = monotonic()
        return connection

    @property
    def broker(self) -> Hashable:
        """What tells brokers apart: where they are."""
        where: Hashable = _broker(self.client)
        return where

    @property
    def _has_others(self) -> bool:
        return len(self.client.alt) > 1 and not self.waits_for_failover

    def _connect(self) -> Any:
        establish = super().establish_connection

        def connect() -> Any:
            connection = establish()
            channel = self._avail_channels[-1]
            try:
                self._check_mode(channel)
                if is_worker():
                    channel.ask_to_write()
            except Exception:
                self._avail_channels.remove(channel)
                channel.close()
                raise
            return connection

        return connect() if self.patience is None else self.patience.wait_for("a connection", connect)

    def _check_mode(self, channel: Any) -> None:
        if not self.other_modes:
            return
        mode = _mode_of(channel.client)
        if mode in self.other_modes:
            raise WrongServer(self.other_modes[mode])

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.cycle.hub = loop
        others = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        self.cycle.on_tick = loop.on_tick - others
        # ``polling_stops``: remove kombu's replacement for the poller's method. It stops polling for good
        # when any connection is closed. This need not be an error: redis-py replaces connections that the
        # server has closed.
        del self.cycle._on_connection_disconnect
        wake_on_signals(loop, self.cycle)

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Deliver one message. The method of the base class may wait for twice the timeout, and may sleep.

        Arguments:
            timeout: seconds to wait for a message, ``None`` to wait for ever.

        Raises:
            TimeoutError: no message came within *timeout* seconds.
        """
        deadline, left = None if timeout is None else monotonic() + timeout, timeout
        while True:
            try:
                return self.cycle.get(self._deliver, left)
            except Empty:
                if deadline is not None and (left := deadline - monotonic()) <= 0:
                    raise TimeoutError from None
            except ResponseError:
                # With results in rpc://, Celery 5.7 closes the connection, and opens another one at once.
                self._note_loss()
                raise

    def _deliver(self, message: dict[str, Any], queue: str) -> None:
        """Hand what came over PUB/SUB to its callback."""
        try:
            super()._deliver(message, queue)
        except BaseException as exc:
            if not self.is_workers or is_exit(exc):
                raise
            logger.exception(
                "The callback failed for a message that came over PUB/SUB, to %r. The worker goes on.", queue
            )

    def _collect(self, connection: Any) -> None:
        """Clean up after the connection was lost, in a forked child, or when a pool is emptied. The name is
        kombu's."""
        # kombu and Celery call this while they handle the error. When a pool is emptied, there is no error:
        # Celery does so when an application is closed, and the next one must not wait.
        was_lost = isinstance(sys.exc_info()[1], self.connection_errors)
        if was_lost and self._pid == os.getpid():
            self._note_loss()
        for channel in dict.fromkeys((*self._avail_channels, *self.channels)):
            channel.abandon()
        self.close_connection(connection)

    def _note_loss(self) -> None:
        backoff = _backoffs.setdefault(_broker(self.client), ReconnectBackoff())
        backoff.note_loss(self._connected_at, was_of_use=self.has_published)


class SecureTransport(Transport):
    """``redisdelays://``: the same transport, but always with TLS, even if ``ssl`` is not set."""

    always_tls = True


class ReconnectBackoff:
    """Tracks the connections to one broker that were lost."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._last_at = float("-inf")

    def note_loss(self, connected_at: float, *, was_of_use: bool) -> None:
        """Note that a connection was lost.

        Arguments:
            connected_at: when it was opened, seconds of the monotonic clock.
            was_of_use: whether something was published over it. Then the next one will be of use, too.
        """
        if was_of_use:
            self._in_a_row = 0
            return
        now = monotonic()
        # What was open already at the last loss was lost together with that.
        if now - connected_at >= SHORT_LIVED or connected_at < self._last_at:
            return
        is_next = connected_at - self._last_at < LONGEST_PAUSE + SHORT_LIVED
        self._in_a_row = self._in_a_row + 1 if is_next else 1
        self._last_at = now

    def pause(self) -> None:
        """Sleep until the next connection may be opened."""
        if self._in_a_row > 1:
            seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._in_a_row - 2, 10))
            sleep(max(0.0, self._last_at + seconds - monotonic()))


def _mode_of(client: Any) -> str:
    """What the server calls its mode; empty if it does not say."""
    with suppress(ResponseError):
        told = client.info("server")
        # Valkey has another name for it.
        return str(told.get("redis_mode") or told.get("server_mode"))
    # Not each user may ask that, but each may say hello.
    with suppress(ResponseError):
        said = client.execute_command("HELLO")
        told = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
        return str(told[b"mode"].decode())
    return ""


def _broker(client: Any) -> Any:
    return client.hostname, client.port, client.virtual_host, *client.alt


def _check_url(client: Any) -> None:
    # kombu cuts off `redisdelay+`, so the host name still begins with the rest of the scheme. kombu itself
    # ignores a host name with an unknown scheme.
    kind, separator, _ = (client.hostname or "").partition("://")
    if not separator:
        check_host(client.hostname)
        return
    if kind != "socket":
        raise ValueError(
            f"no such URL scheme: redisdelay+{kind}://. There are redisdelay://, redisdelays:// for TLS, and "
            "redisdelay+socket:// for a Unix socket; redisdelay-sentinel:// for sentinels, and "
            "redisdelay-cluster:// for a cluster."
        )
    if client.ssl:
        raise ValueError("a Unix socket has no TLS: use redisdelay+socket://, and no ssl (broker_use_ssl)")


def _check_alike(urls: Sequence[str]) -> None:
    # Of URLs without sentinels and clusters, kombu tries one after the other.
    schemes = {url.partition("://")[0] for url in urls}
    for kind, what in (("sentinel", "sentinel"), ("cluster", "server of a cluster")):
        if len(schemes) > 1 and any(scheme.endswith(kind) for scheme in schemes):
            raise ValueError(
                f"the URL of each {what} begins with the same redisdelay-{kind}:// (or "
                f"redisdelays-{kind}://), and no other URL may stand beside them"
            )
