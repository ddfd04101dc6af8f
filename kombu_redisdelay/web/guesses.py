"""Bounds how many passwords somebody can try."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

#: Wrong passwords that somebody may give in a row.
MOST = 10

#: Seconds after which one more may be given.
EVERY_SECONDS = 6.0

#: People who are remembered, so that memory is bounded. Who is forgotten begins anew.
MOST_PEOPLE = 10_000


class Guesses:
    """Remembers who gave wrong passwords: a token bucket for each person.

    A person is an address and a name. So somebody who guesses the password of one user does not keep the
    others out who come through the same proxy.

    Arguments:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the bucket of each person is full again. Who is in nobody's way is not in it.
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
