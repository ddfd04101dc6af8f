"""The heartbeat: keeps a consumer's lease for as long as its process lives."""

from __future__ import annotations

import logging

from kombu_redisdelay.broker.client import Client
from kombu_redisdelay.broker.native import Event, Lock, Thread
from kombu_redisdelay.broker.scripts import RENEW

logger = logging.getLogger(__name__)

#: The lease is renewed this many times while it lasts, so that losing one renewal does not lose it.
RENEWALS_PER_LEASE = 3

#: Seconds that closing a consumer waits for its heartbeat.
JOIN_TIMEOUT = 1.0


class Lease:
    """Renews a consumer's lease from a thread and over a connection of its own: the thread that consumes
    is blocked for the length of a task in a solo worker or a plain kombu callback, and all greenlets are by
    a task that computes.

    Arguments:
        client: for the thread alone, which closes its connections at the end.
        consumer: whose lease it is.
        lease_ms: how long it lasts after a renewal.
    """

    def __init__(self, client: Client, consumer: str, lease_ms: int) -> None:
        self._client = client
        self._consumer = consumer
        self._lease_ms = lease_ms
        self._interval = lease_ms / 1000 / RENEWALS_PER_LEASE
        self._keys: tuple[str, ...] = ()
        self._renewing = Lock()
        self._stopped = Event()
        self._thread: Thread | None = None
        self._untold: Exception | None = None

    def cover(self, consumers_key: str) -> None:
        """Renew the lease in this queue too, from now on."""
        if consumers_key not in self._keys:
            self._keys = (*self._keys, consumers_key)
        if self._thread is None:
            self._thread = Thread(self._run)

    def uncover(self, consumers_key: str) -> None:
        """Renew the lease in this queue no more. Returns once no renewal can follow."""
        with self._renewing:
            self._keys = tuple(key for key in self._keys if key != consumers_key)

    def tell(self) -> None:
        """Log why the lease could not be renewed, unless that was told before. Not for the heartbeat itself:
        handlers have locks, and those of eventlet do not work across threads."""
        failure, self._untold = self._untold, None
        if failure is not None:
            logger.warning("Could not renew the lease of this consumer, trying on: %s", failure)

    def stop(self) -> None:
        """Let the lease run out."""
        self._stopped.set()
        if self._thread is not None:
            # A renewal that hangs may still get through later. It only leaves a consumer that holds
            # nothing, which is not worth waiting for.
            self._thread.join(timeout=JOIN_TIMEOUT)
        self.tell()

    def _run(self) -> None:
        failing = False
        while not self._stopped.is_set():
            try:
                with self._renewing:
                    RENEW(self._client, self._keys, (self._consumer, self._lease_ms))
            except Exception as exc:
                # Whatever it is, it may be over the next time.
                if not failing:
                    self._untold = exc
                failing = True
            else:
                failing = False
            # After a failure not much of the lease may be left.
            self._stopped.wait(min(1.0, self._interval) if failing else self._interval)
        self._client.disconnect()
