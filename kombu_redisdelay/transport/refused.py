"""What a Celery worker does while a server refuses: it keeps what it has, and asks again after a pause.

What a refusal means stands in the table of :mod:`kombu_redisdelay.refusals`. Only a worker waits: a program
with kombu gets the error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from random import uniform
from threading import local
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from kombu_redisdelay.broker import waits
from kombu_redisdelay.refusals import Refusal, Then, refusal_of
from kombu_redisdelay.words import in_a_line

_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)

#: Seconds of the first pause. Each is twice as long as the one before.
FIRST_PAUSE = 0.1

#: The longest pause, in seconds: over a connection that stands, and where a new one is needed.
LONGEST_PAUSE, LONGEST_RECONNECT_PAUSE = 1.0, 5.0

#: Seconds for which an error that no row of the table knows counts as a server in trouble.
UNKNOWN_FOR = 60.0

#: Seconds between two looks whether the worker is to stop.
LOOK_EVERY = 0.2


class Asked(Enum):
    """What a worker asks a server for all the time, each with permissions of its own."""

    TAKE = "take"
    WAIT = "wait"
    #: To hear of what is published to fanout exchanges.
    LISTEN = "listen"


#: Brokers that have answered this process, and what it had asked. They know its user.
_have_served: set[tuple[Hashable, Asked]] = set()

_here = local()


class NeverServed(NoPermissionError):
    """A server refuses what it has never done for this process."""


def served(broker: Hashable, asked: Asked = Asked.TAKE) -> None:
    """Note that *broker* has answered this."""
    _have_served.add((broker, asked))


def may_wait(refusal: Refusal | None, broker: Hashable, asked: Asked = Asked.TAKE) -> bool:
    """Whether a worker waits for a server that refuses in this way. It also waits if no row is known, but not
    for ever."""
    if refusal is None:
        return True
    if refusal.then is Then.SLOT_RESTS or not refusal.is_for_a_while:
        return False
    return not refusal.once_served or (broker, asked) in _have_served


def may_connect_again(refusal: Refusal, broker: Hashable) -> bool:
    """The same, for what is refused to a worker while it connects or starts. It takes before it listens, and
    a busy one may never wait."""
    return may_wait(refusal, broker) and any(
        may_wait(refusal, broker, asked) for asked in (Asked.WAIT, Asked.LISTEN)
    )


#: Seconds that a program which ends waits for servers that refuse its last acks, for all of them together.
#: What was not acked then is delivered again. Docker kills a container ten seconds after SIGTERM.
END_PATIENCE = 6.0


def patiently(settle: Callable[[], object]) -> None:
    """Call *settle*, which settles messages at the end of a program, and call it again while a server refuses
    for a while, for :data:`END_PATIENCE` at most.

    Raises:
        RedisError: the server still refuses, or there is another error.
    """
    while True:
        try:
            settle()
        except ResponseError as exc:
            refusal = refusal_of(exc)
            if refusal is None or refusal.then is not Then.ASKS_AGAIN or monotonic() >= end_of_patience():
                raise
            sleep(LOOK_EVERY)
        else:
            return


@cache
def end_of_patience() -> float:
    """When the patience of this process ends: it begins with the first refusal."""
    return monotonic() + END_PATIENCE


class UnknownError:
    """How long an error that no row of the table knows has come again and again."""

    def __init__(self) -> None:
        self._said, self._since, self._latest = "", 0.0, float("-inf")

    def has_lasted(self, error: RedisError) -> bool:
        """Note *error*. Returns whether the same one has come for :data:`UNKNOWN_FOR`."""
        said, now = re.sub(r"\d+", "#", str(error)), monotonic()
        if said != self._said or now - self._latest > UNKNOWN_FOR:
            self._said, self._since = said, now
            logger.error("Redis refuses for a reason that is not known: %s", error, exc_info=error)
        self._latest = now
        return now - self._since > UNKNOWN_FOR


@dataclass
class _Wait:
    """
    Attributes:
        refusal: the row of the table; ``None`` if none knows the answer.
        unknown: what no row knows.
        pause: the latest, in seconds.
    """

    refusal: Refusal | None
    unknown: UnknownError
    pause: float = 0.0


class Call(NamedTuple):
    """Something that a server may refuse.

    Attributes:
        what: in words, behind "refuses".
        by: whose call it is.
        asked: which permission it needs.
    """

    what: str
    by: Hashable = None
    asked: Asked = Asked.TAKE


class Refused:
    """The calls that a server refuses to one consumer. Each waits by itself, for its own pause.

    Arguments:
        broker: of the consumer.
        longest_pause: in seconds.
    """

    def __init__(self, broker: Hashable, longest_pause: float) -> None:
        self._broker = broker
        self._longest_pause = min(LONGEST_PAUSE, longest_pause)
        self._waits: dict[Call, _Wait] = {}

    @property
    def any(self) -> bool:
        """Whether any call waits."""
        return bool(self._waits)

    def refuses_all(self, call: Call) -> bool:
        """Whether *call* waits, and the server refuses it to everybody."""
        wait = self._waits.get(call)
        return wait is not None and wait.refusal is not None and not wait.refusal.is_for_one

    def bear(self, call: Call, error: ResponseError) -> float:
        """Note that a server has refused *call*. To be called while *error* is handled.

        Returns:
            Seconds until it should be made again.

        Raises:
            NeverServed: this process never had the permission.
            ResponseError: *error*, because waiting does not help.
        """
        refusal = refusal_of(error)
        if not may_wait(refusal, self._broker, call.asked):
            if refusal is not None and refusal.once_served:
                raise NeverServed(str(error)) from error
            raise error
        wait = self._waits.get(call)
        if wait is None:
            wait = self._waits[call] = _Wait(refusal, UnknownError())
        wait.refusal = refusal
        if refusal is None and wait.unknown.has_lasted(error):
            raise error
        wait.pause = min(self._longest_pause, 2 * wait.pause or FIRST_PAUSE)
        waits.begin((self, call), reason_of(refusal), told(call, error, refusal))
        return wait.pause * uniform(0.5, 1.0)

    def is_served(self, call: Call) -> None:
        """Note that a server has done *call*, which it had refused."""
        if self._waits.pop(call, None) is not None:
            waits.end((self, call))

    def end(self) -> None:
        """Note that the consumer has ended, and nothing waits any more."""
        for call in list(self._waits):
            del self._waits[call]
            waits.end((self, call), is_served=False)


def reason_of(refusal: Refusal | None) -> str:
    """The reason, as metrics and logs have it."""
    return refusal.reason if refusal else "unknown error"


def told(call: Call, error: RedisError, refusal: Refusal | None) -> str:
    """What a person is told of a refusal, in a line."""
    said = in_a_line(error)
    hint = f" ({refusal.hint})" if refusal and refusal.hint not in said else ""
    return f"{call.what}{hint}: {said}"


#: What :func:`outlast` does.
CONNECTING = Call("to be connected to")


@contextmanager
def as_worker(maybe_shutdown: Callable[[], object], longest_pause: float) -> Iterator[None]:
    """A block in which this thread connects a worker: :func:`outlast` waits.

    Arguments:
        maybe_shutdown: raises if the worker is to stop.
        longest_pause: in seconds.
    """
    _here.worker = maybe_shutdown, min(LONGEST_RECONNECT_PAUSE, longest_pause)
    try:
        yield
    finally:
        _here.worker = None


def is_worker() -> bool:
    """Whether this thread connects a worker."""
    return getattr(_here, "worker", None) is not None


def outlast(broker: Hashable, connect: Callable[[], _Result]) -> _Result:
    """Call *connect*, and in a worker call it again while a server answers and refuses for a while.

    Raises:
        RedisError: the server refuses for good, or cannot be reached, or this is no worker.
        ValueError: it has refused for :data:`UNKNOWN_FOR`, and no row of the table knows why.
    """
    worker: Any = getattr(_here, "worker", None)
    if worker is None:
        return connect()
    maybe_shutdown, longest_pause = worker
    pause, by, is_served, unknown = 0.0, object(), False, UnknownError()
    try:
        while True:
            try:
                connected = connect()
                is_served = True
                return connected
            except RedisError as exc:
                refusal = refusal_of(exc)
                if refusal is None and not isinstance(exc, ResponseError):
                    raise
                if not may_wait(refusal, broker):
                    raise
                if refusal is None and unknown.has_lasted(exc):
                    # kombu would connect again for an error of the server.
                    raise ValueError(f"Redis refuses, for a reason that is not known: {exc}") from exc
                waits.begin(by, reason_of(refusal), told(CONNECTING, exc, refusal))
            pause = min(longest_pause, 2 * pause or FIRST_PAUSE)
            until = monotonic() + pause * uniform(0.5, 1.0)
            while (rest := until - monotonic()) > 0:
                maybe_shutdown()
                sleep(min(rest, LOOK_EVERY))
    finally:
        waits.end(by, is_served=is_served)
