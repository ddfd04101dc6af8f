"""What a publisher does while a server is away or refuses: it waits for a failover, and publishes once.

There may be a failover with sentinels, and on a cluster. Only what was not done is tried again. If a reply
was lost, the message may be there already, and the publisher has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from kombu_redisdelay.broker.outgoing import Addressed
from kombu_redisdelay.broker.server.wire import NothingDone, Unreachable
from kombu_redisdelay.public import public
from kombu_redisdelay.refusals import refusal_of

#: Seconds that the server is waited for, from when it was first missed.
PATIENCE = 10.0

#: Seconds between two tries.
PAUSE = 0.1

#: Seconds for which a thread that has waited to the end does not try again. kombu would, three times.
GIVEN_UP_FOR = 1.0

_Result = TypeVar("_Result")

_here = local()


class _Outage(NamedTuple):
    """Times are seconds of the monotonic clock.

    Attributes:
        began: when the first try began that was in vain.
        tried: when the latest one began.
        latest: when that was known to be in vain.
    """

    began: float
    tried: float
    latest: float
    error: str

    @property
    def is_over_long(self) -> bool:
        """Whether it is for :data:`PATIENCE` that the server is not there. A try that began before does not
        tell: in a busy process, it may have ended long after the server was asked."""
        return self.tried - self.began >= PATIENCE


class Patience:
    """Waits for the servers of one broker, in one process.

    The time counts from when a server was first missed, for all threads together: not every request to a web
    server must wait for one that does not come back.
    """

    def __init__(self) -> None:
        self._outages: dict[Hashable, _Outage] = {}
        #: A process that never reached it may have a wrong URL, and must get the error at once.
        self._has_worked = False

    def wait_for(self, what: Hashable, do: Callable[[], _Result]) -> _Result:
        """Call *do*, and call it again while it raises :class:`NothingDone`, for :data:`PATIENCE` at most.

        Arguments:
            what: what it needs. The time is counted for each of these.

        Returns:
            What *do* returns.

        Raises:
            NothingDone: the server did not come back in time.
        """
        if not self._has_worked or getattr(_here, "is_impatient", False):
            result = do()
            self._has_worked = True
            return result
        outage = self._outages.get(what)
        if outage and outage.is_over_long and monotonic() - outage.latest < GIVEN_UP_FOR:
            raise Unreachable(outage.error)
        while True:
            began = monotonic()
            try:
                result = do()
            except NothingDone as exc:
                outage = self._go_on(what, began, str(exc))
                if outage.is_over_long:
                    raise
            else:
                self._outages.pop(what, None)
                return result
            sleep(PAUSE)

    def _go_on(self, what: Hashable, began: float, error: str) -> _Outage:
        before, since = self._outages.get(what), began
        if before is not None and began - before.latest < PATIENCE:
            since = before.began
        outage = self._outages[what] = _Outage(since, began, monotonic(), error)
        return outage


@contextmanager
def impatient() -> Iterator[None]:
    """A block in which this thread does not wait for a failover, because it has other work."""
    _here.is_impatient = True
    try:
        yield
    finally:
        _here.is_impatient = False


@public
class PartlyPublishedError(OperationalError):
    """A message goes to several queues, and only some of them have it. kombu does not publish it again.

    Attributes:
        queues: those that have it.
        others: those that do not. If the reply of the first of them was lost, it may have it; the text says
        so.
    """

    def __init__(self, queues: Sequence[str], others: Sequence[str], error: BaseException) -> None:
        self.queues, self.others = tuple(queues), tuple(others)
        unsure = f" ({others[0]!r} may have it)" if _may_be_done(error) else ""
        super().__init__(
            f"the message is in {_named(queues)}, and not in {_named(others)}{unsure}. To publish it again "
            f"would be to publish it twice: {error}"
        )


def put_into_each(addressed: Sequence[Addressed], put: Callable[[Addressed], None]) -> None:
    """Call *put* for each queue of a message. If some have it and the server refuses, only the rest is tried
    again, for :data:`~kombu_redisdelay.transport.patience.PATIENCE` at most.

    Raises:
        RedisError: the first queue has not got the message, so none has.
        PartlyPublishedError: some have it.
    """
    until: float | None = None
    for number, each in enumerate(addressed):
        while True:
            try:
                put(each)
                break
            except RedisError as exc:
                if not number:
                    raise
                until = until or monotonic() + PATIENCE
                if not _may_be_over(exc) or monotonic() >= until:
                    queues = [each.queue for each in addressed]
                    raise PartlyPublishedError(queues[:number], queues[number:], exc) from exc
            sleep(PAUSE)


def _may_be_over(error: RedisError) -> bool:
    """Whether nothing was done, and it may be done a little later."""
    if isinstance(error, NothingDone):
        return True
    refusal = refusal_of(error)
    return refusal is not None and refusal.is_for_a_while


def _may_be_done(error: BaseException) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError)) and not isinstance(error, NothingDone)


def _named(queues: Sequence[str]) -> str:
    return f"queue{'s' if len(queues) > 1 else ''} {', '.join(map(repr, queues))}"
