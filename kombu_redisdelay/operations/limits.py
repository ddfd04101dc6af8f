"""Pauses queues and limits them, for all workers at once. A queue with partitions is one queue here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

from kombu_redisdelay.broker.fair_keys import StoredKeyLimits
from kombu_redisdelay.broker.keys import equal_shares
from kombu_redisdelay.broker.limits import Limits, LimitStore, default_burst, interval_us
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.parameters import LIMIT, RATE_EXAMPLES, Parameter
from kombu_redisdelay.public import public
from kombu_redisdelay.words import number_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class AnyLimits:
    """The limits of a queue, or of its keys: what both have."""

    rate: str | None = None
    burst: int | None = None
    concurrency: int | None = None
    paused_since: datetime | None = None

    @property
    def is_limited(self) -> bool:
        return bool(kinds_set(self))


@public
@dataclass(frozen=True, slots=True)
class QueueLimits(AnyLimits):
    """The limits of a queue. They hold for all workers together.

    Attributes:
        paused_since: since when nothing is taken from it, in UTC; ``None`` if it is not paused.
        rate: how many messages may be taken in which time, such as ``100/m``; ``None`` for any number.
        burst: with a rate, how many may be taken at once after a while without any; ``None`` without a rate.
        concurrency: how many messages of it may be unacked; ``None`` for any number.
        throttled: how many times a worker asked and got less than there was, because of the pause or a limit;
            limits of keys do not count. It begins again at 0 when the last limit is cleared.
        per_second: the rate as messages a second; ``None`` without a rate.
    """

    throttled: int = 0
    per_second: float | None = None

    @property
    def is_paused(self) -> bool:
        return self.paused_since is not None


class LimitChanges(TypedDict, total=False):
    """Limits of a queue, or of its keys, that change. ``None`` ends one; one that is not given stays."""

    rate: str | float | None
    burst: int | None
    concurrency: int | None


#: Attribute of :class:`Limits <kombu_redisdelay.broker.limits.Limits>` -> its new value in each partition.
NewValues = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class LimitKind:
    """A kind of limit. Command line, page, exporter and the reasons why a message waits read these rows.

    Attributes:
        fields: what it is made of. It is there if the first one is, and ends with that.
        change: what changes for each partition of a queue with some limits. Raises ``ValueError``.
        said: a limit of this kind, in a list of several.
        heading, shown: what stands above it on the page of a queue, and what it is there.
        keeps: a sentence that says that it keeps messages of a queue waiting, by how many are unacked;
            empty if it does not.
        metric, documentation, value: the gauge of the exporter.
    """

    fields: tuple[Parameter, ...]
    change: Callable[[Sequence[Limits], LimitChanges], NewValues]
    said: Callable[[AnyLimits], str]
    heading: str
    shown: Callable[[AnyLimits], str]
    keeps: Callable[[QueueLimits, int], str]
    metric: str
    documentation: str
    value: Callable[[QueueLimits], float | None]

    @property
    def name(self) -> str:
        return self.fields[0].name

    def is_set(self, limits: AnyLimits) -> bool:
        return getattr(limits, self.name) is not None


def _keeps_by_concurrency(limits: QueueLimits, unacked: int) -> str:
    if limits.concurrency is None or unacked < limits.concurrency:
        return ""
    return f"Workers hold {number_of(unacked)} of the queue, and its limit is {limits.concurrency}."


#: The largest burst, and the largest concurrency.
MOST = 1_000_000_000


def _change_rate(before: Sequence[Limits], given: LimitChanges) -> NewValues:
    count = len(before)
    interval_before = _interval_us(before)
    interval = interval_before
    if "rate" in given:
        interval = None if given["rate"] is None else interval_us(given["rate"])
    burst = given.get("burst")
    if interval is None:
        if burst is not None:
            raise ValueError("burst needs a rate")
        return dict.fromkeys(("interval_us", "burst"), [None] * count)
    if "burst" not in given:
        burst = _sum([limits.burst for limits in before])
        if interval_before is None or burst == _default_burst(interval_before, count):
            burst = None
    bursts = _shares("burst", _default_burst(interval, count) if burst is None else burst, count)
    return {"interval_us": [interval * count] * count, "burst": bursts}


def _default_burst(interval: float, count: int) -> int:
    """For a queue with this number of partitions."""
    return max(default_burst(interval), count)


def _shares(what: str, number: object, count: int) -> list[int | None]:
    """What each of *count* partitions gets of a limit.

    Raises:
        ValueError: *number* is not a whole number, or too small or too great.
    """
    if number is None:
        return [None] * count
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST:
        hint = ": to stop it, pause it" if number == 0 and what == "concurrency" else ""
        raise ValueError(f"{what} must be a whole number from 1 to {MOST:,}, not {number!r}{hint}")
    if number < count:
        raise ValueError(
            f"{what} must be {count} at least, one for each partition of the queue, not {number}"
        )
    return [*equal_shares(number, count)]


def _interval_us(each: Sequence[Limits]) -> float | None:
    """Microseconds from one message of a queue to the next, if its partitions have these limits."""
    intervals = [limits.interval_us for limits in each if limits.interval_us is not None]
    return 1 / sum(1 / interval for interval in intervals) if len(intervals) == len(each) else None


def _sum(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)


#: All kinds, in the order in which they are told.
LIMIT_KINDS = (
    LimitKind(
        (
            Parameter(
                "rate",
                LIMIT,
                "Messages in a time: 10/s or just 10, 100/m or 1000/h; or none.",
                "Rate",
                RATE_EXAMPLES,
            ),
            Parameter(
                "burst",
                LIMIT,
                "Messages at once, after a while without any. By default what the rate allows in a second.",
                "Burst",
                "at once",
                least=1,
            ),
        ),
        change=_change_rate,
        said=lambda limits: f"{limits.rate}, burst {limits.burst:,}",
        heading="Rate of all workers together",
        shown=lambda limits: f"{limits.rate}, {limits.burst:,} at once",
        keeps=lambda limits, unacked: f"Workers take no more than {limits.rate} from the queue together.",
        metric="redisdelay_queue_rate_limit_per_second",
        documentation="How many messages all workers may take in a second, 0 for any number.",
        value=lambda limits: limits.per_second,
    ),
    LimitKind(
        (
            Parameter(
                "concurrency", LIMIT, "How many messages may be unacked; or none.", "Unacked at most", least=1
            ),
        ),
        change=lambda before, given: {
            "concurrency": _shares("concurrency", given["concurrency"], len(before))
        },
        said=lambda limits: f"concurrency {limits.concurrency:,}",
        heading="Unacked by all workers together at most",
        shown=lambda limits: f"{limits.concurrency:,}",
        keeps=_keeps_by_concurrency,
        metric="redisdelay_queue_concurrency_limit",
        documentation="How many messages all workers may hold together, 0 for any number.",
        value=lambda limits: limits.concurrency,
    ),
)

#: What a person fills in for all of them.
LIMIT_FIELDS = tuple(field for kind in LIMIT_KINDS for field in kind.fields)


def kinds_set(limits: AnyLimits) -> list[LimitKind]:
    """The kinds of which there is a limit."""
    return [kind for kind in LIMIT_KINDS if kind.is_set(limits)]


def in_words(limits: AnyLimits) -> str:
    """Such as ``100/m, burst 10, concurrency 20``, or ``no limits``."""
    return ", ".join(kind.said(limits) for kind in kinds_set(limits)) or "no limits"


#: The limits of a queue that is neither paused nor limited.
UNLIMITED = QueueLimits()


def queue_limits(store: Store, queues: Sequence[str]) -> list[QueueLimits]:
    """The limits of each of *queues*, in one round trip."""
    each = [store.partitions.names(queue) for queue in queues]
    found = iter(LimitStore(store).get([name for names in each for name in names]))
    return [_together(list(islice(found, len(names)))) for names in each]


def pause(store: Store, queues: Iterable[str]) -> None:
    """Have no worker take anything from *queues*."""
    LimitStore(store).pause(store.partitions.all_names(queues))


def resume(store: Store, queues: Iterable[str]) -> None:
    """End the pause of *queues*. Their limits stay."""
    LimitStore(store).resume(store.partitions.all_names(queues))


def limit(store: Store, queue: str, **changes: Unpack[LimitChanges]) -> None:
    """Change limits of *queue*: see :meth:`kombu_redisdelay.Queues.limit`."""
    names = store.partitions.names(queue)
    new = _new_values(LimitStore(store).get(names), changes)
    for name, *values in zip(names, *new.values(), strict=True):
        LimitStore(store).limit([name], dict(zip(new, values, strict=True)))


def changed_of_key(before: StoredKeyLimits, changes: LimitChanges) -> StoredKeyLimits:
    """The limits *before* of a key, or of every key, after some have changed.

    Raises:
        TypeError, ValueError: as for :meth:`kombu_redisdelay.Queues.limit`.
    """
    new = _new_values([Limits(**before._asdict())], changes)
    return before._replace(**{name: value for name, [value] in new.items()})


def _new_values(before: Sequence[Limits], changes: LimitChanges) -> NewValues:
    """What changes for each partition of a queue with the limits *before*."""
    *names, last = (each.name for each in LIMIT_FIELDS)
    if not changes or not changes.keys() <= {*names, last}:
        raise TypeError(f"say which limit: {', '.join(names)} or {last}")
    new: dict[str, Sequence[Any]] = {}
    for kind in LIMIT_KINDS:
        if any(each.name in changes for each in kind.fields):
            new |= kind.change(before, changes)
    return new


def set_burst(limits: AnyLimits, partitions: int = 1) -> int | None:
    """The burst of *limits*, if somebody has set it. ``None`` for the default, which follows the rate."""
    if limits.rate is None:
        return None
    try:
        default = _default_burst(interval_us(limits.rate), partitions)
    except ValueError:
        # Another program has written a rate that is too low or too high.
        return limits.burst
    return None if limits.burst == default else limits.burst


def _together(each: Sequence[Limits]) -> QueueLimits:
    """The limits of a queue whose partitions have these."""
    since = [limits.paused_ms for limits in each]
    together = Limits(interval_us=_interval_us(each))
    return QueueLimits(
        paused_since=None if None in since else from_ms(min(ms for ms in since if ms is not None)),
        rate=together.rate,
        burst=_sum([limits.burst for limits in each]),
        concurrency=_sum([limits.concurrency for limits in each]),
        throttled=sum(limits.throttled for limits in each),
        per_second=together.per_second,
    )
