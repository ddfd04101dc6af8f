"""The transports behind the URL schemes."""

from __future__ import annotations

from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.option_names import warn_of_misspelt_options
from kombu_redisdelay.transport.poller import Poller
from kombu_redisdelay.transport.signals import wake_on_signals
from kombu_redisdelay.transport.tls import answers_without, verifying


class Transport(redis.Transport):
    """``redisdelay://``, and ``redisdelay+socket://`` for a Unix socket. With ``ssl``, TLS that verifies the
    server unless ``ssl`` says otherwise.

    ``driver_type`` stays ``"redis"``: Celery looks at it to decide what a broker can do.
    """

    Channel = Channel
    client: Any
    cycle: Any
    brpop_timeout = 1

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """
        Raises:
            ValueError: the URL has a scheme that there is not, or asks for TLS over a Unix socket.
        """
        _check_url(client)
        if client.ssl:
            # kombu takes anything but a mapping for no TLS.
            client.ssl = verifying(client.ssl)
        super().__init__(client, **kwargs)
        self.cycle = Poller()

    def create_channel(self, connection: Any) -> Any:
        # Not when the transport is made: a worker does that for its banner, before it has set up its log.
        warn_of_misspelt_options(self.client.transport_options)
        try:
            return super().create_channel(connection)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            host, port = self.client.hostname or "127.0.0.1", self.client.port or self.default_port
            if self.client.ssl and answers_without(host, port):
                raise RedisConnectionError(
                    f"{host}:{port} looks like a server without TLS: it answers without. Use redisdelay:// "
                    f"and no ssl (broker_use_ssl) there, or the port on which it speaks TLS. ({exc})"
                ) from exc
            raise

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.cycle.hub = loop
        others = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        self.cycle.on_tick = loop.on_tick - others
        # kombu's replacement for the poller's method. Up to kombu 5.6 it stops polling for good when a
        # connection is closed, also when that was no error: redis-py replaces what the server has closed.
        del self.cycle._on_connection_disconnect
        wake_on_signals(loop, self.cycle)

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Deliver one message. The base class waits for up to twice the time, and may sleep in between.

        Raises:
            TimeoutError: there was none within *timeout* seconds.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            try:
                return self.cycle.get(self._deliver, None if deadline is None else deadline - monotonic())
            except Empty:
                if deadline is not None and monotonic() >= deadline:
                    raise TimeoutError from None

    def _collect(self, connection: Any) -> None:
        """Clean up after the connection was lost, or in a forked child; kombu's name for it."""
        for channel in dict.fromkeys((*self._avail_channels, *self.channels)):
            channel.abandon()
        self.close_connection(connection)


class SecureTransport(Transport):
    """``redisdelays://``: the same with TLS, whether or not there is ``ssl``."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        client.ssl = client.ssl or True
        super().__init__(client, **kwargs)


def _check_url(client: Any) -> None:
    # kombu cuts `redisdelay+` off, and takes what it does not know in front of `://` for no host at all.
    kind, separator, _ = (client.hostname or "").partition("://")
    if not separator:
        return
    if kind != "socket":
        raise ValueError(
            f"no such URL scheme: redisdelay+{kind}://. There are redisdelay://, redisdelays:// for TLS, and "
            "redisdelay+socket:// for a Unix socket."
        )
    if client.ssl:
        raise ValueError("a Unix socket has no TLS: use redisdelay+socket://, and no ssl (broker_use_ssl)")
