"""Watches which consumers renew their leases."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from time import monotonic


class Watch:
    """Finds the leases that nobody renews any more.

    It is not enough that a lease has ended. When the server's clock jumps ahead, or Redis was away for longer
    than a lease lasts, the leases of living consumers have ended, too, until they can renew them.

    Arguments:
        seconds: how long a living consumer may need to renew its lease
            (:attr:`~kombu_redisdelay.broker.lease_policy.LeasePolicy.watch_time`).
        clock: a clock in seconds that nobody can set.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        #: queue -> consumer -> the end of its lease, and since when that end has not changed.
        self._seen: dict[str, dict[str, tuple[int, float]]] = {}

    def keep_only(self, queues: Container[str]) -> None:
        """Forget what was seen of other queues."""
        self._seen = {queue: seen for queue, seen in self._seen.items() if queue in queues}

    @property
    def sees_any(self) -> bool:
        """Whether any lease is watched."""
        return bool(self._seen)

    def unrenewed(self, queue: str, lease_ends: Mapping[str, int]) -> set[str]:
        """The consumers of *queue* that were watched for long enough and have not renewed their leases.

        Arguments:
            lease_ends: consumer -> when its lease ends, ms since the epoch. Only for consumers that should
                have renewed it.
        """
        now = self._clock()
        before = self._seen.get(queue, {})
        seen = {}
        for name, lease_end in lease_ends.items():
            lease_end_before, since = before.get(name, (None, now))
            seen[name] = (lease_end, since if lease_end == lease_end_before else now)
        if seen:
            self._seen[queue] = seen
        else:
            self._seen.pop(queue, None)
        return {name for name, (_, since) in seen.items() if now - since >= self._seconds}
