"""Says in a word why ready messages wait although a consumer is there."""

from __future__ import annotations

from collections.abc import Iterable

PAUSED = "paused"
CONCURRENCY = "concurrency limit"
RATE = "rate limit"
PREFETCH = "prefetch full"

#: All of them. If there are several, the first one counts: without it, the others would still hold messages
#: back, but not the other way round.
REASONS = (PAUSED, CONCURRENCY, RATE, PREFETCH)

#: Seconds after which a consumer with room has taken a message for certain, however it came.
NOTICED_AFTER = 5.0


def reason_of(
    *, is_paused: bool, has_no_place: bool, has_no_token: bool, has_waker: bool, held: int, waiting: float | None
) -> str:
    """Why the ready messages of a queue that has consumers wait; empty if they are about to be taken.

    Arguments:
        is_paused: whether the queue is paused.
        has_no_place: whether consumers hold as many as its concurrency allows.
        has_no_token: whether its rate allows no message now.
        has_waker: whether a wake-up token is there: a consumer with room would have taken it at once.
        held: how many messages consumers hold.
        waiting: seconds that the next message has waited, ``None`` if unknown.
    """
    if is_paused:
        return PAUSED
    if has_no_place:
        return CONCURRENCY
    if has_no_token:
        return RATE
    if has_waker or held or (waiting or 0.0) > NOTICED_AFTER:
        return PREFETCH
    return ""


def first(reasons: Iterable[str]) -> str:
    """The one that counts among *reasons*; empty if there is none."""
    given = set(reasons)
    return next((reason for reason in REASONS if reason in given), "")
