"""The life of a message, by what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.message import DELAY_HEADER, ETA_HEADER, REQUEUED_HEADER, eta_ms
from kombu_redisdelay.broker.times import from_ms, to_ms
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.states import DEAD, FAILED, FINISHED, READY, SCHEDULED, UNACKED
from kombu_redisdelay.words import LOST


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
    """What has happened to *message*, in this order. A dead letter that was requeued counts as published
    then."""
    return [*_until_ready(message), *_tries(message), *_OF_STATE.get(message.state, _ready)(message)]


def _until_ready(message: MessageInfo) -> Iterator[Event]:
    due_ms = members.due_ms(message.payload)
    ready = None if due_ms is None else from_ms(due_ms)
    origin = message.headers.get("origin")
    by = f"by {origin}" if isinstance(origin, str) else ""
    had_due_time = bool(message.headers.get(ETA_HEADER) or message.headers.get(DELAY_HEADER))
    # The moment that is in a message is when it is due.
    requeued = requeued_at(message)
    published = None if had_due_time or requeued else ready
    if published or by:
        yield Event("published", published, by)
    if requeued:
        yield Event("requeued", requeued, "after it had failed")
    if had_due_time and message.state != SCHEDULED:
        yield Event("scheduled until", _eta(message) or ready)


def requeued_at(message: MessageInfo) -> datetime | None:
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


def _tries(message: MessageInfo) -> Iterator[Event]:
    retries = message.headers.get("retries")
    # Of one that has failed, it is said with the failure.
    if isinstance(retries, int) and retries > 0 and message.state != FAILED:
        yield Event("retried", None, _times(retries))
    if message.failures > 0:
        yield Event("came back from a worker", None, _times(message.failures))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _scheduled(message: MessageInfo) -> Iterator[Event]:
    if message.due is not None:
        yield Event("scheduled until", message.due)


def _ready(message: MessageInfo) -> Iterator[Event]:
    return iter(())


def _unacked(message: MessageInfo) -> Iterator[Event]:
    name = message.worker or message.host or "?"
    yield Event("taken", message.since, f"by {name}, process {message.pid or '?'}")


def _failed(message: MessageInfo) -> Iterator[Event]:
    at = f"at {message.worker}" if message.worker else ""
    yield Event("started", message.started, at)
    tries = "" if message.tries is None else f", try {message.tries:,}"
    if message.returned:
        yield Event("returned", message.since, f"and {LOST[message.returned]}, with {message.error}{tries}")
    else:
        yield Event("failed", message.since, f"with {message.error}{tries}")


def _dead(message: MessageInfo) -> Iterator[Event]:
    yield Event("given up", message.since, message.reason)


def _finished(message: MessageInfo) -> Iterator[Event]:
    at, since, ran = f"at {message.worker}" if message.worker else "", message.since, message.ran
    if since is not None and ran is not None:
        yield Event("started", since - timedelta(seconds=ran), at)
    tries = "" if message.tries is None else f"try {message.tries:,}"
    yield Event(
        message.outcome or message.reason, since, f"with {message.error}, {tries}" if message.error else tries
    )


#: Name of a state -> the events that have brought a message there.
_OF_STATE: dict[str, Callable[[MessageInfo], Iterator[Event]]] = {
    SCHEDULED: _scheduled,
    READY: _ready,
    UNACKED: _unacked,
    FAILED: _failed,
    DEAD: _dead,
    FINISHED: _finished,
}
