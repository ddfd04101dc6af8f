"""Pauses queues and limits them, for all workers at once. A queue with partitions is one queue here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from kombu_redisdelay.broker.control import Control, Controls, default_burst, interval_us
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.public import public


@public
@dataclass(frozen=True, slots=True)
class QueueControl:
    """What is allowed for a queue.

    Attributes:
        paused_since: since when nothing is taken from it, in UTC; ``None`` if it is not paused.
        rate: how many messages may be taken in which time, such as ``100/m``; ``None`` for any number.
        burst: with a rate, how many may be taken at once after a while without any; ``None`` without a rate.
        concurrency: how many messages all workers together may hold; ``None`` for any number.
        held_back: how many times a worker asked and got less than there was, because of the pause or a limit.
            It begins again at 0 when the last limit is cleared.
        per_second: the rate as messages a second; ``None`` without a rate.
    """

    paused_since: datetime | None = None
    rate: str | None = None
    burst: int | None = None
    concurrency: int | None = None
    held_back: int = 0
    per_second: float | None = None

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None

    @property
    def is_limited(self) -> bool:
        return self.rate is not None or self.concurrency is not None


#: The largest burst, and the largest concurrency.
MOST = 1_000_000_000

#: The control of a queue that is neither paused nor limited.
UNCONTROLLED = QueueControl()


def queue_controls(store: Store, queues: Sequence[str]) -> list[QueueControl]:
    """The control of each of *queues*, in one round trip."""
    each = [store.partitions.names(queue) for queue in queues]
    found = iter(Controls(store).get([name for names in each for name in names]))
    return [_together(list(islice(found, len(names)))) for names in each]


def pause(store: Store, queues: Iterable[str]) -> None:
    """Have no worker take anything from *queues*."""
    Controls(store).pause(store.partitions.all_names(queues))


def resume(store: Store, queues: Iterable[str]) -> None:
    """End the pause of *queues*. Their limits stay."""
    Controls(store).resume(store.partitions.all_names(queues))


def limit(
    store: Store,
    queue: str,
    rate: str | float | None = None,
    burst: int | None = None,
    concurrency: int | None = None,
) -> None:
    """Limit what all workers together take from *queue*. The limits that it had before are replaced.

    Arguments:
        rate: as Celery's ``rate_limit``: ``"100/m"``, or with ``/s`` or ``/h``, or a number of messages a
            second; ``None`` for no limit.
        burst: how many messages may be taken at once after a while without any. Over any time, no more are
            taken than the rate allows in that time and *burst*. By default what the rate allows in a second,
            and at least one; one for each partition.
        concurrency: how many messages workers may hold together; ``None`` for any number.

    Raises:
        ValueError: *rate* is no rate, below 0.01/h or above 1000000/s; *burst* is given without a rate;
            *burst* or *concurrency* is not a whole number from 1 to :data:`MOST`, or smaller than the number
            of partitions.
    """
    names = store.partitions.names(queue)
    interval = None if rate is None else interval_us(rate)
    if interval is None and burst is not None:
        raise ValueError("burst needs a rate")
    if interval is not None and burst is None:
        burst = max(default_burst(interval), len(names))
    bursts = _shares("burst", burst, len(names))
    concurrencies = _shares("concurrency", concurrency, len(names))
    for name, its_burst, its_concurrency in zip(names, bursts, concurrencies, strict=True):
        its_interval = None if interval is None else interval * len(names)
        Controls(store).limit([name], its_interval, its_burst, its_concurrency)


def _shares(what: str, number: object, count: int) -> list[int | None]:
    """What each of *count* partitions gets of a limit."""
    if number is None:
        return [None] * count
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST:
        raise ValueError(f"{what} must be a whole number from 1 to {MOST:,}, not {number!r}")
    if number < count:
        raise ValueError(
            f"{what} must be {count} at least, one for each partition of the queue, not {number}"
        )
    whole, rest = divmod(number, count)
    return [whole + (index < rest) for index in range(count)]


def _together(controls: Sequence[Control]) -> QueueControl:
    """What the partitions of a queue allow together."""
    since = [control.paused_ms for control in controls]
    intervals = [control.interval_us for control in controls]
    together = Control()
    if all(intervals):
        together = Control(interval_us=1 / sum(1 / interval for interval in intervals if interval))
    return QueueControl(
        paused_since=None if None in since else from_ms(min(ms for ms in since if ms is not None)),
        rate=together.rate,
        burst=_sum([control.burst for control in controls]),
        concurrency=_sum([control.concurrency for control in controls]),
        held_back=sum(control.held_back for control in controls),
        per_second=together.per_second,
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)
