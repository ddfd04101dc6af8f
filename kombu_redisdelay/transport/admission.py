"""What is refused when it is published: what is for a full queue, or is too large.

Only new work is: its publisher is there to hear of it, and nothing waits for it yet. What follows of work
that was accepted before is not.

Queues that refuse are those that are declared with ``max_length`` and ``x-overflow: reject-publish``. A
producer reads how long they are, and counts what it publishes itself. A script that counts would be exact,
and each publish would take more than twice as long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from kombu.exceptions import OperationalError

from kombu_redisdelay.broker.keys import equal_shares
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.outgoing import Outgoing
from kombu_redisdelay.broker.processes import in_each_child
from kombu_redisdelay.public import public
from kombu_redisdelay.words import number_of, shortened

logger = logging.getLogger(__name__)

#: Seconds for which a process goes by a length that it has read.
FRESH_FOR = 0.1

#: What is left of the growth that a process has seen, when it sees less.
STAYS = 0.8

LENGTH, OVERFLOW, REJECT = "x-max-length", "x-overflow", "reject-publish"

#: What helps against a large message.
ADVICE = (
    "Compress it (task_compression, or compression='zlib' with kombu), or keep the data elsewhere and pass a "
    "reference to it"
)

#: How many tasks with large messages a process remembers to have warned of.
MOST_WARNED = 1000

#: Those that this process has warned of.
_warned: set[str] = set()
in_each_child(_warned.clear)


def name_of(message: Outgoing) -> str:
    """What people know *message* by: its task, else where it goes. It has a bounded length."""
    task = message.headers.get("task")
    if task:
        return f"task {shortened(str(task))}"
    info = message.properties.get("delivery_info") or {}
    return f"a message for {shortened(str(info.get('routing_key') or info.get('exchange') or ''))}"


@public
class QueueFull(OperationalError):
    """New work was not published, because its queue has as many messages as it may have.

    Attributes:
        queue: name of the queue; of a queue with partitions, the name of the partition.
        bound: how many messages it may have, ready and scheduled ones together; of a partition, its share.
        length: how many it has, about.
        messages: how many were to be published; more than one in a batch.
    """

    def __init__(self, queue: str, bound: int, length: int, messages: int = 1) -> None:
        what = "is full" if messages == 1 else f"has no room for {messages:,} messages"
        super().__init__(
            f"queue {queue!r} {what}: it has {number_of(length)}, and may have {bound:,}; publish it later, "
            "start more workers, or raise its max_length"
        )
        self.queue = queue
        self.bound = bound
        self.length = length
        self.messages = messages

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.queue, self.bound, self.length, self.messages)


def bound_of(queue: str, arguments: Mapping[str, Any], partitions: int) -> int | None:
    """How many messages a queue may have that is declared with these *arguments*; ``None`` for any number.

    Raises:
        ValueError: its length is no whole number, or smaller than the number of *partitions*.
    """
    bound = arguments.get(LENGTH)
    if bound is None or arguments.get(OVERFLOW) != REJECT:
        return None
    if not isinstance(bound, int) or isinstance(bound, bool) or bound < partitions:
        least = "1" if partitions == 1 else f"{partitions}, one for each partition"
        raise ValueError(f"queue {queue!r}: max_length must be a whole number from {least}, not {bound!r}")
    return bound


@dataclass(slots=True)
class _Known:
    """What a process knows of a queue. Times are seconds of the monotonic clock.

    Attributes:
        length: how many messages it had when that was read.
        read_at: when that was.
        until: when to read it again.
        sent: how many messages this process has published since it was read.
        growth: by how many messages the queue grows for each of these, because others publish, too.
    """

    length: int
    read_at: float
    until: float
    sent: int = 0
    growth: float = 1.0

    @property
    def estimate(self) -> int:
        return self.length + round(self.sent * self.growth)

    def growth_until(self, length: int, now: float) -> float:
        """The growth, now that *length* was read."""
        if not self.sent:
            return self.growth
        # What this process has sent, it has sent within FRESH_FOR.
        part = FRESH_FOR / max(now - self.read_at, FRESH_FOR)
        return max(1.0, (length - self.length) * part / self.sent, self.growth * STAYS)


class Lengths:
    """What this process knows of the queues of one broker."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def forget(self) -> None:
        self._known.clear()

    def admit(
        self,
        counts: Mapping[str, int],
        bounds: Mapping[str, int],
        read: Callable[[Sequence[str]], Sequence[int]],
    ) -> None:
        """Count messages that are to be published.

        Arguments:
            counts: queue, or partition -> how many messages.
            bounds: the same -> how many it may have.
            read: returns how many messages queues have.

        Raises:
            QueueFull: a queue has no room for them. None is counted.
        """
        known = self._refreshed(counts, read)
        full = [name for name, count in counts.items() if known[name].estimate + count > bounds[name]]
        guessed = [name for name in full if known[name].sent]
        if guessed:
            # Workers may have taken what this process has sent. A refusal costs more than to look again.
            for name in guessed:
                known[name].until = 0.0
            known |= self._refreshed(guessed, read)
        for name in full:
            estimate, count = known[name].estimate, counts[name]
            if estimate + count > bounds[name]:
                raise QueueFull(name, bounds[name], estimate, count)
        for name, count in counts.items():
            known[name].sent += count

    def _refreshed(
        self, queues: Iterable[str], read: Callable[[Sequence[str]], Sequence[int]]
    ) -> dict[str, _Known]:
        now = monotonic()
        before = {name: self._known.get(name) for name in queues}
        found = {name: known for name, known in before.items() if known is not None and now < known.until}
        old = [name for name in before if name not in found]
        if not old:
            return found
        begun: dict[str, int] = {}
        for name in old:
            if (last := before[name]) is not None:
                # Other threads go by the old length while this one reads.
                last.until = now + FRESH_FOR
                begun[name] = last.sent
        try:
            lengths = read(old)
        except BaseException:
            for name in old:
                self._known.pop(name, None)
            raise
        for name, length in zip(old, lengths, strict=True):
            last, current = before[name], self._known.get(name)
            if current is not None and current is not last:
                # Another thread was faster, and counts since then.
                found[name] = current
                continue
            new = _Known(length, now, now + FRESH_FOR)
            if last is not None:
                new.sent = last.sent - begun[name]
                new.growth = last.growth_until(length, now)
            found[name] = self._known[name] = new
        return found


#: By broker. All connections of a process share what it knows.
_lengths: dict[Hashable, Lengths] = {}


def lengths_of(broker: Hashable) -> Lengths:
    return _lengths.setdefault(broker, Lengths())


def forget_lengths() -> None:
    """Have this process read all lengths anew."""
    for lengths in _lengths.values():
        lengths.forget()


# Only the parent counts on what the parent publishes.
in_each_child(forget_lengths)


class Bounds:
    """The queues that were declared with a bound over one connection.

    Attributes:
        of: name of a partition -> how many messages it may have.
    """

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def declare(self, names: Sequence[str], bound: int | None) -> None:
        """Note that a queue with these partitions was declared with *bound*."""
        if bound is None:
            self.forget(names)
        else:
            self.of.update(zip(names, equal_shares(bound, len(names)), strict=True))

    def forget(self, names: Sequence[str]) -> None:
        for name in names:
            self.of.pop(name, None)


class Sizes:
    """The sizes of messages that the options allow.

    Attributes:
        noted: bytes that a message may have before :meth:`check` has anything to do.
    """

    def __init__(self, options: Options) -> None:
        self._warning = options.message_size_warning or math.inf
        self._limit = options.message_size_limit or math.inf
        self.noted = min(self._warning, self._limit)

    def check(self, message: Outgoing) -> None:
        """Look at a *message* whose text has more bytes than :attr:`noted`.

        Raises:
            ValueError: it is new work and above the limit.
        """
        size = len(message.text)
        name, bound = name_of(message), f"message_size_warning is {self._warning:,}"
        if size > self._limit:
            if message.is_new_work:
                raise ValueError(
                    f"{name} was not published: its message has {size:,} bytes, and message_size_limit is "
                    f"{self._limit:,}. {ADVICE}"
                )
            bound = (
                f"message_size_limit is {self._limit:,}, which does not hold for what follows of other work"
            )
        if name in _warned:
            return
        if len(_warned) >= MOST_WARNED:
            _warned.clear()
        _warned.add(name)
        logger.warning("Large message: %s has %s bytes (%s). %s.", name, f"{size:,}", bound, ADVICE)
