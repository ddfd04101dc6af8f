"""What is published in a row, and when: the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kombu_redisdelay.broker.fair_keys import KEY_HEADER, WEIGHT_HEADER
from tests.combinations.dimensions import Row

#: Healthy tasks a second, and how long one runs, seconds.
RATE = 12.0
WORK = 0.01
#: Of the healthy ones, if they have any; of a retry, too.
COUNTDOWNS = (0.5, 2.0)
RETRY_AFTER = 1.0
PRIORITIES = (0, 3, 6, 9)
#: So many healthy ones come at once, behind what happens in the middle: who gets on too slowly is seen here.
BURST = 60
#: What comes at once into a queue that is limited, so that the limit binds, and how long each of it runs.
BULK = {"rate": (72, 0.0), "concurrency": (20, 0.1)}
#: When what happens, as a part of the time for which is published.
WRONG = (0.1, 0.38)
#: Before what happens in the middle: a failover may lose a broadcast.
REVOKED = (0.1, 0.25)
REVOKED_AT = 0.37
#: So many of them each time: as many as there are workers.
AT_ONCE = 2
BULK_AT = 0.25
PAUSE = (0.2, 0.5)
#: When queues are not fair that are switched: around what happens in the middle, and while a burst is there.
PLAIN = ((0.15, 0.25), (0.38, 0.6), (0.81, 0.84))
MIDDLE = 0.4
#: When the servers begin to refuse: what happens in the middle has just begun.
TROUBLE = 0.41
BURST_AT = 0.8
#: A revoked task is due this much later than it was published, seconds.
REVOKED_DUE = 5.0

#: The queue that an operator is busy with, and which may have partitions.
FIRST = "q0"
#: Keys of the healthy ones in fair queues, each with its weight.
TENANTS = {"tenant 0": 1, "tenant 1": 5, "tenant 2": 0.5, "tenänt 3": 1, "": 1}

HEALTHY, BULKY, PROBE, WRONG_ONE = "healthy", "bulk", "probe", "wrong"

#: What the task "raises" has raised in the callback.
CALLBACK_ERROR = "in the callback, as it was told to"
#: Entries that are no message, or one that no worker may decode. Without the last one, which has an id.
UNREADABLE = {"garbage": "garbage", "bodyless": '{"properties": {}}'}


@dataclass(frozen=True)
class Send:
    """A task that is published.

    Attributes:
        at: seconds after the beginning.
        id: begins with what it is: ``HEALTHY``, ``BULKY``, ``PROBE`` or ``WRONG_ONE``.
        late: whether it is acked when it has ended.
        headers: those of its unique key, and of its key in a fair queue.
    """

    at: float
    task: str
    id: str
    args: list[Any]
    queue: str
    late: bool
    countdown: float = 0.0
    priority: int = 0
    expires: float | None = None
    headers: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """That of a fair queue."""
        return str(self.headers.get(KEY_HEADER, ""))


@dataclass(frozen=True)
class Plan:
    """All that is published.

    Attributes:
        seconds: for how long.
        entries: what is pushed into a queue as it is: (seconds after the beginning, queue, id, text).
        revoked: ids that are revoked: (seconds after the beginning, id).
    """

    seconds: float
    queues: Sequence[str]
    sends: Sequence[Send]
    entries: Sequence[tuple[float, str, str, str]] = field(default_factory=list)
    revoked: Sequence[tuple[float, str]] = field(default_factory=list)

    @property
    def controlled(self) -> str:
        """The queue that the operator is busy with."""
        return self.queues[0]

    @property
    def wrong(self) -> list[Send]:
        return [send for send in self.sends if send.id.startswith(WRONG_ONE)]

    def without_wrong(self) -> Plan:
        """For a transport that what is wrong would end."""
        sends = [send for send in self.sends if not send.id.startswith(WRONG_ONE)]
        return Plan(self.seconds, self.queues, sends)


def plan(row: Row, seed: str, seconds: float) -> Plan:
    """What a row publishes within so many seconds."""
    random = Random(seed)
    queues = [FIRST, *(f"q{number}" for number in range(1, int(row["queues"])))]
    late = row["acks"] == "late"
    times = [number / RATE for number in range(round(RATE * seconds))] + [BURST_AT * seconds] * BURST
    sends = [_healthy(row, number, at, random, queues, late) for number, at in enumerate(times)]
    for number in range(BULK.get(row["control"], (0, 0))[0]):
        work = BULK[row["control"]][1]
        sends.append(Send(BULK_AT * seconds, "healthy", f"{BULKY}-{number}", [work, False], queues[0], late))
    entries: list[tuple[float, str, str, str]] = []
    revoked: list[tuple[float, str]] = []
    wrong = REVOKED if row["beside"] == "revoked" else WRONG
    for number, part in enumerate(part for part in wrong for _ in range(AT_ONCE)):
        at, queue, id = part * seconds, random.choice(queues), f"{WRONG_ONE}-{row['beside']}-{number}"
        sends += _wrong(row["beside"], at, id, queue, late)
        if row["beside"] == "unreadable":
            entries += [(at, queue, f"{id}-{kind}", text) for kind, text in UNREADABLE.items()]
        if row["beside"] == "revoked":
            revoked.append((REVOKED_AT * seconds, id))
    return Plan(seconds, queues, sorted(sends, key=lambda send: send.at), entries, revoked)


def _healthy(row: Row, number: int, at: float, random: Random, queues: Sequence[str], late: bool) -> Send:
    countdown = random.uniform(*COUNTDOWNS) if row["sending"] == "countdown" else 0.0
    headers: dict[str, Any] = {}
    tenant, weight = [*TENANTS.items()][number % len(TENANTS)]
    if row["fair"] != "no" and tenant:
        headers |= {KEY_HEADER: tenant, WEIGHT_HEADER: weight}
    if row["keys"] != "none":
        headers |= {"x-unique": f"key {number // 2}", "x-unique-while": row["keys"]}
        # The same for all, so that none replaces another one to be due earlier.
        countdown = min(countdown, COUNTDOWNS[0])
    priority = random.choice(PRIORITIES) if row["priorities"] == "yes" else 0
    args = [WORK, row["sending"] == "retry"]
    queue = random.choice(queues)
    return Send(at, "healthy", f"{HEALTHY}-{number}", args, queue, late, countdown, priority, headers=headers)


def _wrong(beside: str, at: float, id: str, queue: str, late: bool) -> list[Send]:
    if beside == "nothing":
        return []
    if beside == "expired":
        return [Send(at, "unwanted", id, [], queue, False, countdown=2.0, expires=1.0)]
    if beside == "revoked":
        return [Send(at, "unwanted", id, [], queue, False, countdown=REVOKED_DUE)]
    if beside == "fails":
        return [Send(at, beside, id, [], queue, late)]
    # All of these are acked late, so that they can come back.
    return [Send(at, beside, id, [], queue, True)]
