"""Puts a message into each of several queues, when the server refuses after some have it.

kombu would publish the message anew, and those queues would have it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from kombu_redisdelay.broker.server.wire import NothingDone
from kombu_redisdelay.public import public
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.patience import PATIENCE, PAUSE


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


def put_into_each(queues: Sequence[str], put: Callable[[str], None]) -> None:
    """Call *put* for each of *queues*. If some have the message and the server refuses, only the rest is
    tried again, for :data:`~kombu_redisdelay.transport.patience.PATIENCE` at most.

    Raises:
        RedisError: the first queue has not got the message, so none has.
        PartlyPublishedError: some have it.
    """
    until: float | None = None
    for number, queue in enumerate(queues):
        while True:
            try:
                put(queue)
                break
            except RedisError as exc:
                if not number:
                    raise
                until = until or monotonic() + PATIENCE
                if not _may_be_over(exc) or monotonic() >= until:
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
