"""The transports behind the URL schemes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import redis

from kombu_redisdelay.channel import Channel
from kombu_redisdelay.poller import Poller
from kombu_redisdelay.signals import wake_on_signals


class Transport(redis.Transport):
    """``redisdelay://``, and ``redisdelay+socket://`` for a Unix socket.

    ``driver_type`` stays ``"redis"``: Celery looks at it to decide what a broker can do.
    """

    Channel = Channel
    cycle: Any
    brpop_timeout = 1

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.cycle = Poller()

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
    """``redisdelays://``: TLS that verifies the server, unless the URL or ``ssl`` says otherwise."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        given = client.ssl if isinstance(client.ssl, Mapping) else {}
        cert_reqs = given.get("ssl_cert_reqs", ssl.CERT_REQUIRED)
        # Python does not check the name in a certificate that it does not check.
        check_hostname = cert_reqs not in (ssl.CERT_NONE, "none", None)
        client.ssl = {"ssl_cert_reqs": cert_reqs, "ssl_check_hostname": check_hostname, **given}
        super().__init__(client, **kwargs)
