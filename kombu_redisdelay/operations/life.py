"""The life of a message, by what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.message import REQUEUED_HEADER, eta_ms, from_ms, to_ms
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.states import ARCHIVED, FAILED, FINISHED, STATES, UNACKED
from kombu_redisdelay.words import LOST, number_of, span

#: Two times that are so near are one.
_SAME = timedelta(seconds=1)


class Event(NamedTuple):
    """Something that has happened to a message, or will.

    Attributes:
        event: what, such as "published".
        at: when, in UTC; ``None`` if that is not kept.
        said: what else there is to say of it, such as "by celery@web-1"; empty for nothing.
    """

    event: str
    at: datetime | None
    said: str = ""


def life(message: MessageInfo) -> list[Event]:
    """What has happened to *message*, in this order, for the command line and the page.

    A message has one moment of our own: since when it could be delivered, the last time. So it does not say
    when it was published.
    """
    return [*_so_far(message), *_OF_STATE.get(message.state, _nothing)(message)]


def _so_far(message: MessageInfo) -> Iterator[Event]:
    if STATES[message.state].is_past:
        # What is told of a task has no headers.
        return
    origin = message.headers.get("origin")
    yield Event("published", None, f"by {origin}" if isinstance(origin, str) and origin else "")
    requeued = _requeued_at(message)
    if requeued:
        yield Event("requeued", requeued, "after it had failed")
    retries = message.headers.get("retries")
    # Of one that has failed, it is said with the failure.
    if isinstance(retries, int) and retries > 0 and message.state != FAILED:
        yield Event("retried", None, _times(retries))
    eta = _eta(message)
    # A scheduled message is usually due at its eta.
    if eta and (message.due is None or abs(eta - message.due) > _SAME):
        yield Event("asked for", eta, "the time at which its publisher wants it to run")
    if message.failures > 0:
        yield Event("came back from a worker", None, _times(message.failures))
    ready_ms = members.due_ms(message.payload)
    if message.due is not None:
        yield Event("scheduled until", message.due)
    elif ready_ms is not None and not message.is_blocked:
        yield Event("ready", from_ms(ready_ms), "since it was published, became due, or was requeued last")


def _requeued_at(message: MessageInfo) -> datetime | None:
    """When *message* was requeued last after it had failed, in UTC; ``None`` if it does not say so."""
    said = message.headers.get(REQUEUED_HEADER)
    try:
        at = datetime.fromisoformat(said) if isinstance(said, str) else None
        return at and from_ms(to_ms(at))
    except (ValueError, OverflowError):
        return None


def _eta(message: MessageInfo) -> datetime | None:
    try:
        at_ms = eta_ms(message.headers)
        return from_ms(at_ms) if at_ms else None
    except (ValueError, OverflowError):
        return None


def _times(count: int) -> str:
    return "once" if count == 1 else number_of(count, "time")


def _nothing(message: MessageInfo) -> Iterator[Event]:
    return iter(())


def _unacked(message: MessageInfo) -> Iterator[Event]:
    name = f"{message.worker}, " if message.worker else ""
    yield Event("taken", message.since, f"by {name}host {message.host or '?'}, process {message.pid or '?'}")


def _failed(message: MessageInfo) -> Iterator[Event]:
    if message.started is not None:
        yield Event("started", message.started, f"at {message.worker}" if message.worker else "")
    tries = "" if message.tries is None else f", try {message.tries:,}"
    if message.returned:
        yield Event("returned", message.since, f"and {LOST[message.returned]}, with {message.error}{tries}")
    else:
        yield Event("failed", message.since, f"with {message.error}{tries}")


def _given_up(message: MessageInfo) -> Iterator[Event]:
    yield Event("given up", message.since, message.reason)


def _finished(message: MessageInfo) -> Iterator[Event]:
    at, since, ran = f"at {message.worker}" if message.worker else "", message.since, message.ran
    if since is not None and ran is not None:
        yield Event("started", since - timedelta(seconds=ran), at)
    said = [
        f"with {message.error}" if message.error else "",
        "" if message.tries is None else f"try {message.tries:,}",
        "" if message.waited is None else f"waited {span(message.waited)}",
        "" if ran is None else f"ran {span(ran)}",
    ]
    yield Event(message.outcome or message.reason, since, ", ".join(filter(None, said)))


#: Name of a state -> the events that have brought a message there.
_OF_STATE: dict[str, Callable[[MessageInfo], Iterator[Event]]] = {
    UNACKED: _unacked,
    **dict.fromkeys(ARCHIVED, _given_up),
    FAILED: _failed,
    FINISHED: _finished,
}
