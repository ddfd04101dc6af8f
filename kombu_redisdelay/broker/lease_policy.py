"""The moments of a lease, as parts of its length. ``docs/leases.rst`` has them as a table, with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

# Shares of a lease. Most of them depend on others: tests/broker/test_lease_policy.py says how.

#: The heartbeat renews the lease each time that this share has passed, so that one lost renewal does not end
#: it.
RENEWED_AFTER = Fraction(1, 3)

#: The same while the heartbeat also has the mover look, since a look may hang.
RENEWED_AFTER_BESIDE_LOOKS = RENEWED_AFTER / 2

#: The heartbeat waits no longer than this for a reply.
REPLY_LIMIT = Fraction(1, 3)

#: A take renews a lease that has less than this left: the heartbeat is late, or has not begun in this queue.
FRESH = 1 - RENEWED_AFTER

#: A lease that has less than this left should have been renewed. Others watch it from then on.
UNRENEWED = Fraction(3, 5)

#: Others look at all leases each time that this share has passed, or more often.
LOOKED_AT_AFTER = Fraction(1, 3)

#: A lease that has ended counts once others have watched it for this share without a renewal.
WATCHED = Fraction(1, 2)

#: While a server refuses, it is asked again each time that this share has passed, or more often.
PAUSED = Fraction(1, 10)

#: What a consumer holds of a queue that expires outlives the queue by this number of leases.
OUTLIVES = Fraction(2)

#: A message that is still unacked this number of leases after its callback failed is given back.
FAILED_KEPT = Fraction(1)

#: The longest time between two looks at all leases, in seconds.
LONGEST_LOOK_INTERVAL = 10.0

#: The same while any lease is watched.
LONGEST_WATCHED_LOOK_INTERVAL = 2.0

#: The longest time until a renewal that failed is tried again, in seconds: little of the lease may be left.
LONGEST_RETRY_INTERVAL = 1.0

#: The least number of seconds between two renewals, however soon a queue expires.
SHORTEST_RENEWAL_INTERVAL = 0.05


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """All times that depend on how long a lease lasts.

    Attributes:
        lease_ms: how long a lease lasts after a renewal, in ms, at least 1.
    """

    lease_ms: int

    def renewal_interval(self, expires_ms: Iterable[int] = (), *, beside_looks: bool = False) -> float:
        """Seconds from one renewal by the heartbeat to the next.

        Arguments:
            expires_ms: ``x-expires`` of the queues that the heartbeat keeps alive, in ms. If one is shorter
                than the lease, its share counts.
            beside_looks: whether the heartbeat also has the mover look.
        """
        share = RENEWED_AFTER_BESIDE_LOOKS if beside_looks else RENEWED_AFTER
        return max(SHORTEST_RENEWAL_INTERVAL, _seconds(share * min((self.lease_ms, *expires_ms))))

    def retry_interval(self, expires_ms: Iterable[int] = ()) -> float:
        """Seconds until a renewal that failed is tried again. *expires_ms* as in :meth:`renewal_interval`."""
        return min(LONGEST_RETRY_INTERVAL, self.longest_pause, self.renewal_interval(expires_ms))

    @property
    def longest_pause(self) -> float:
        """Seconds that a consumer pauses at most before it asks a server again that has refused: when that is
        over, all consumers have to renew their leases before others count them as lost."""
        return _seconds(PAUSED * self.lease_ms)

    @property
    def reply_limit(self) -> float:
        """Seconds for which the heartbeat waits for a reply at most."""
        return _seconds(REPLY_LIMIT * self.lease_ms)

    @property
    def fresh_ms(self) -> int:
        """A take renews a lease that has less than this left, in ms."""
        return ceil(FRESH * self.lease_ms)

    @property
    def unrenewed_ms(self) -> int:
        """A lease that has this left or less, in ms, should have been renewed."""
        return int(UNRENEWED * self.lease_ms)

    @property
    def watch_time(self) -> float:
        """Seconds for which a lease is watched before its end counts."""
        return _seconds(WATCHED * self.lease_ms)

    @property
    def look_interval(self) -> float:
        """Seconds from one look at the leases of others to the next."""
        return min(LONGEST_LOOK_INTERVAL, _seconds(LOOKED_AT_AFTER * self.lease_ms))

    def unacked_ttl_ms(self, expires_ms: int) -> int:
        """Time to live, in ms, of what a consumer holds of a queue that expires.

        Arguments:
            expires_ms: ``x-expires`` of the queue, in ms. With 0 neither expires.
        """
        return expires_ms and expires_ms + int(OUTLIVES * self.lease_ms)

    @property
    def failed_kept(self) -> float:
        """For how many seconds a message may stay unacked after its callback failed."""
        return _seconds(FAILED_KEPT * self.lease_ms)


def _seconds(ms: Fraction) -> float:
    return float(ms) / 1000
