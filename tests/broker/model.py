"""The broker as it should be, in memory: every message is in exactly one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter

from tests.broker.rig import payload, with_count, with_unknown


@dataclass(eq=False)
class Message:
    """A message that was published.

    Attributes:
        deliveries: how often it was given back after it had been delivered.
        lost: how many of these its consumer was gone, and nobody knows why.
        due: when it is due, in the model's units of time.
        number: tells messages that are due in the same unit apart, in the order of their scheduling.
        scheduled_as: the id that it was scheduled under, which others may have, too.
        unknown: since when it waits for a consumer that knows its task, in the model's units of time;
            ``None`` if it does not.
        left: tells those apart that wait since the same unit.
        failed: since when it is among the failed ones, in the model's units of time.
        kept_bytes: how much it takes there.
    """

    id: str
    step: int
    deliveries: int = 0
    lost: int = 0
    due: int = 0
    number: int = 0
    scheduled_as: str = ""
    unknown: int | None = None
    left: int = 0
    failed: int = 0
    kept_bytes: int = 0

    @property
    def text(self) -> str:
        """As it is stored, but for the time since when it waits."""
        text = with_count(payload(self.id), self.deliveries, self.lost)
        return text if self.unknown is None else with_unknown(text, "?")


@dataclass
class Control:
    """What an operator allows for a queue.

    Attributes:
        interval: with a rate: units of time from one message to the next; 0 without.
        full_at: when `burst` messages may be taken again.
        concurrency: how many messages may be held; 0 for any number.
    """

    is_paused: bool = False
    interval: int = 0
    burst: int = 1
    full_at: Fraction | int = 0
    concurrency: int = 0

    def allowed(self, now: int, held: int, *, acked: bool) -> int:
        """How many messages may be taken now."""
        allowed = 10**6
        if self.interval:
            self.full_at = min(max(self.full_at, now), now + self.burst * self.interval)
            allowed = int((self.burst * self.interval - (self.full_at - now)) // self.interval)
        if self.is_paused:
            return 0
        if self.concurrency and acked:
            allowed = min(allowed, max(0, self.concurrency - held))
        return allowed


@dataclass
class Queue:
    """The messages of a queue that no consumer holds; those of `ready` in the order of taking."""

    steps: tuple[int, ...]
    ready: dict[int, list[Message]] = field(init=False)
    scheduled: list[Message] = field(default_factory=list)
    dead: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    control: Control = field(default_factory=Control)

    def __post_init__(self) -> None:
        self.ready = {step: [] for step in self.steps}

    def put(self, message: Message) -> None:
        self.ready[message.step].append(message)

    def put_first(self, message: Message) -> None:
        self.ready[message.step].insert(0, message)

    def schedule(self, message: Message, id: str) -> None:
        message.scheduled_as = id
        self.scheduled.append(message)
        self.scheduled.sort(key=attrgetter("due", "number"))

    def cancel(self, id: str) -> int:
        """Returns how many there were."""
        before = len(self.scheduled)
        self.scheduled = [message for message in self.scheduled if message.scheduled_as != id]
        return before - len(self.scheduled)

    def migrate(self, now: int) -> None:
        for message in [message for message in self.scheduled if message.due <= now]:
            self.scheduled.remove(message)
            self.put(message)

    def has_ready(self) -> bool:
        return any(self.ready.values())

    def purge(self) -> int:
        count = len(self.scheduled) + sum(map(len, self.ready.values()))
        self.scheduled.clear()
        for messages in self.ready.values():
            messages.clear()
        return count

    def bury(self, message: Message) -> None:
        message.unknown = None
        self.dead.append(message)

    def waiting(self, step: int) -> list[Message]:
        """The scheduled messages that wait for a consumer that knows their task, the oldest first."""
        some = [message for message in self.scheduled if message.step == step and message.unknown is not None]
        return sorted(some, key=attrgetter("left"))

    def fail(self, message: Message, delivery_limit: int, due: int | None, number: int) -> None:
        """Have a message wait until *due* that has failed once more, or bury it. If *due* is ``None``, it is
        taken again, after the others."""
        message.deliveries += 1
        # A consumer knew its task.
        message.unknown = None
        if message.deliveries - message.lost >= delivery_limit:
            self.bury(message)
        elif due is None:
            self.put(message)
        else:
            message.due, message.number = due, number
            self.schedule(message, message.id)

    def trim_failed(self, now: int, count: int, age: int, size: int) -> None:
        """Drop the oldest failed ones while they are more than *count*, as old as *age*, or larger than
        *size* together."""
        while self.failed and (
            len(self.failed) > count
            or now - self.failed[0].failed >= age
            or sum(message.kept_bytes for message in self.failed) > size
        ):
            del self.failed[0]

    def lose(self, message: Message, isolated_from: int) -> None:
        """Put a message back whose consumer is gone."""
        message.deliveries += 1
        message.lost += 1
        (self.put if message.lost == isolated_from else self.put_first)(message)


class Broker:
    """Queues, and what is taken from them.

    Arguments:
        isolated_from: a message that was lost so many times is the last that is taken.

    Attributes:
        held: how many messages of a queue all consumers hold.
    """

    held: Callable[[str], int] = staticmethod(lambda name: 0)

    def __init__(self, names: tuple[str, ...], steps: tuple[int, ...], isolated_from: int) -> None:
        self.isolated_from = isolated_from
        self.queues = {name: Queue(steps) for name in names}
        self.steps = steps
        self.now = 0

    def take(
        self, limit: int, names: Sequence[str], *, in_turn: bool, acked: bool = True
    ) -> list[tuple[str, Message]]:
        """Take from the queues with these names, in this order."""
        for name in names:
            self.queues[name].migrate(self.now)
        controls = {name: self.queues[name].control for name in names}
        allowed = {
            name: control.allowed(self.now, self.held(name), acked=acked)
            for name, control in controls.items()
        }
        taken: list[tuple[str, Message]] = []
        for name, message in list(self._in_order(names, in_turn)):
            if len(taken) == limit:
                break
            if not allowed[name]:
                continue
            allowed[name] -= 1
            controls[name].full_at += controls[name].interval
            self.queues[name].ready[message.step].remove(message)
            taken.append((name, message))
            if acked and message.lost >= self.isolated_from:
                break
        return taken

    def _in_order(self, names: Sequence[str], in_turn: bool) -> Iterator[tuple[str, Message]]:
        for step in self.steps:
            waiting = {name: list(self.queues[name].ready[step]) for name in names}
            while any(waiting.values()):
                for name, messages in waiting.items():
                    for _ in range(min(1, len(messages)) if in_turn else len(messages)):
                        yield name, messages.pop(0)
