"""What this process waits for, because a server refuses: told in the log, and counted for the metrics."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from time import monotonic

from kombu_redisdelay import metrics

logger = logging.getLogger(__name__)

#: Seconds between two lines of the log about the same reason.
TELL_EVERY = 60.0


@dataclass
class Wait:
    """
    Attributes:
        reason: name of the row of :mod:`kombu_redisdelay.refusals`, or "unknown error".
        said: what the server has said, in a line, and what to do.
        since: seconds of the monotonic clock.
        by: who waits.
        told_at: when the log told of it last, seconds of the monotonic clock.
    """

    reason: str
    said: str
    since: float
    by: set[Hashable]
    told_at: float


#: By reason.
_waits: dict[str, Wait] = {}


def begin(by: Hashable, reason: str, said: str) -> None:
    """Note that *by* waits, and tell of it: at once, and each minute while somebody waits for this reason.

    Arguments:
        said: what the server has said, in a line, and what to do.
    """
    now = monotonic()
    wait = _waits.get(reason)
    if wait is None:
        wait = _waits[reason] = Wait(reason, said, now, {by}, now)
        metrics.refused(reason, True)
        logger.error("Redis refuses %s This process keeps what it has, and asks again.", _ended(said))
        return
    wait.by.add(by)
    if now - wait.told_at >= TELL_EVERY:
        wait.told_at = now
        logger.error(
            "For %.0f s, Redis has refused %s This process still asks again.", now - wait.since, _ended(said)
        )


def _ended(said: str) -> str:
    """With a full stop, or the dots of what was cut."""
    return said if said.endswith(".") else f"{said}."


def end(by: Hashable, *, is_served: bool = True) -> None:
    """Note that *by* does not wait any more, and tell when nobody does.

    Arguments:
        is_served: whether a server has served it. Else it has given up.
    """
    for reason, wait in list(_waits.items()):
        wait.by.discard(by)
        if not wait.by:
            del _waits[reason]
            metrics.refused(reason, False)
            if not is_served:
                continue
            logger.warning(
                "Redis serves this process again, after %.1f s (%s).", monotonic() - wait.since, reason
            )


def current() -> Mapping[str, Wait]:
    """What this process waits for now: reason -> wait."""
    return dict(_waits)
