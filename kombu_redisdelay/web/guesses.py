"""Bounds how many passwords can be tried."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

#: Wrong passwords that a person may give in a row.
MOST = 10

#: Seconds after which one more may be given.
EVERY_SECONDS = 6.0

#: People that are remembered, so that memory is bounded. A person that is forgotten begins anew.
MOST_PEOPLE = 10_000


class Guesses:
    """Remembers wrong passwords: a token bucket for each person.

    A person is an address and a name. So guesses for one user do not keep out the others that come through
    the same proxy.

    Arguments:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the bucket of each person is full again. Entries whose bucket is full again are dropped.
        self._full_at: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    def wait_seconds(self, person: tuple[str, bytes]) -> float:
        """Seconds until a person may try again; 0 if that is now."""
        missing_seconds = self._full_at.get(person, 0.0) - self._clock()
        return max(0.0, missing_seconds - (MOST - 1) * EVERY_SECONDS)

    def was_wrong(self, person: tuple[str, bytes]) -> None:
        """Remember that a person gave a wrong password."""
        now = self._clock()
        self._full_at[person] = max(self._full_at.pop(person, now), now) + EVERY_SECONDS
        if len(self._full_at) > MOST_PEOPLE:
            self._full_at.popitem(last=False)
