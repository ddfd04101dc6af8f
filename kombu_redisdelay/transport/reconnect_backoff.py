"""Delays the next connection when the last ones were lost at once.

One server of a cluster may be away, or a primary lack replicas. Then connecting succeeds, and Celery, which
pauses for longer and longer if it fails, would connect again and again. But a producer whose connection was
closed, as restarts and load balancers do it, must not wait: the first loss costs nothing.
"""

from __future__ import annotations

from time import monotonic, sleep

#: A connection that is lost within this number of seconds, and has published nothing, was of no use.
SHORT_LIVED = 2.0

#: Seconds that pass between the second such loss in a row and the next connection. They double with each.
FIRST_PAUSE = 0.1

#: The most seconds that pass.
LONGEST_PAUSE = 1.0


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
