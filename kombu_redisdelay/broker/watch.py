"""Which consumers renew their leases, as seen by one who looks on."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from time import monotonic


class Watch:
    """Tells the leases that nobody renews any more from those that only look as if they had ended: when the
    server's clock jumps ahead, or Redis was away for longer than they last, the leases of the living have
    ended, too, until they get to renew them.

    Arguments:
        seconds: how long the living need to renew a lease.
        clock: seconds, not to be set by anybody.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        #: queue -> consumer -> when its lease ends, and since when that has not changed.
        self._seen: dict[str, dict[str, tuple[int, float]]] = {}

    def keep_only(self, queues: Container[str]) -> None:
        """Forget what was seen of other queues."""
        self._seen = {queue: seen for queue, seen in self._seen.items() if queue in queues}

    def unrenewed(self, queue: str, lease_ends: Mapping[str, int]) -> set[str]:
        """Those consumers of *queue* that have not renewed their leases for long enough by now.

        Arguments:
            lease_ends: consumer -> when its lease ends, ms since the epoch; of those that should have renewed
                it.
        """
        now = self._clock()
        before = self._seen.get(queue, {})
        seen = {}
        for name, lease_end in lease_ends.items():
            lease_end_before, since = before.get(name, (None, now))
            seen[name] = (lease_end, since if lease_end == lease_end_before else now)
        self._seen[queue] = seen
        return {name for name, (_, since) in seen.items() if now - since >= self._seconds}
