"""Says in a word why messages wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

PAUSED = "paused"
NO_CONSUMER = "no consumer"
LOST = "workers lost"
CONCURRENCY = "concurrency limit"
RATE = "rate limit"
KEY_LIMITS = "key limits"
ISOLATED = "isolated"
PREFETCH = "prefetch full"
UNKNOWN = "unknown task"

#: Of a message: it waits for another one with its unique key.
BLOCKED = "blocked"

#: All reasons of a queue. If several apply, the first one counts.
REASONS = (PAUSED, NO_CONSUMER, LOST, CONCURRENCY, RATE, KEY_LIMITS, ISOLATED, PREFETCH, UNKNOWN)

#: Seconds after which a consumer with room has certainly taken a message, from any producer.
NOTICED_AFTER = 5.0


class Facts(NamedTuple):
    """What is known of a queue that has ready or overdue messages.

    Attributes:
        consumers: how many consumers it has.
        is_paused: whether it is paused.
        has_no_permit: whether consumers hold as many messages as its concurrency allows.
        has_no_token: whether its rate allows no message now.
        waits_for_keys: whether all ready messages are of keys at their limits.
        has_waker: whether a wake-up token is there. A consumer with room would have taken it at once.
        unacked: how many messages are unacked.
        waiting: seconds that the next ready message has waited, ``None`` if unknown.
        lateness: seconds since the first scheduled message became due.
    """

    consumers: int
    is_paused: bool
    has_no_permit: bool
    has_no_token: bool
    waits_for_keys: bool
    has_waker: bool
    unacked: int
    waiting: float | None
    lateness: float


def reason_of(facts: Facts) -> str | None:
    """The reason why its messages wait; ``None`` if they will be taken next."""
    if not facts.consumers:
        # A message of unknown age is from redis://, and there may be workers of redis://, too.
        if max(facts.waiting or 0.0, facts.lateness) <= NOTICED_AFTER:
            return None
        return PAUSED if facts.is_paused else NO_CONSUMER
    # Without a token, too: tokens expire, and a stock producer adds none.
    is_left_there = facts.has_waker or facts.unacked or (facts.waiting or 0.0) > NOTICED_AFTER
    applying = {
        PAUSED: facts.is_paused,
        CONCURRENCY: facts.has_no_permit,
        RATE: facts.has_no_token,
        KEY_LIMITS: facts.waits_for_keys,
        PREFETCH: is_left_there,
    }
    return first([reason for reason, applies in applying.items() if applies])


def first(reasons: Collection[str | None]) -> str | None:
    """The one of *reasons* that counts; ``None`` if there is none."""
    return next((reason for reason in REASONS if reason in reasons), None)
