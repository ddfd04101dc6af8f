"""Queues with everything in them, and a fleet that works on while a key of theirs is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.delivery import Delivery, Request
from kombu_redisdelay.broker.fair_keys import FairKey, StoredKeyLimits
from kombu_redisdelay.broker.finished import FinishedTask
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.broker.maintenance import Maintenance
from kombu_redisdelay.broker.members import with_own
from kombu_redisdelay.broker.message import Due
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REQUEUE, Part
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Withdrawal
from kombu_redisdelay.broker.server.scripts import RENEW, run_each
from kombu_redisdelay.broker.unique import DONE, LATEST, WAITING, UniqueKey, publishing
from tests.broker.rig import LEASE_MS, STEPS, Rig, a_failure, dead_letter, payload, take_out, taken, takes_of
from tests.broker.test_mover import look, mover_of
from tests.clock import Clock

#: One with all that a plain queue may have, one of its partitions, a fair one with limits, one without.
ORDERS, PARTITION, TENANTS, GUESTS = QUEUES = ("orders", "orders#1", "tenants", "guests")

#: A turn takes so many seconds of the clock by which the fleet maintains its queues.
TURN_S = 11
HOUR_MS = 3_600_000
OPTIONS = Options(retry_wait=0, keep_finished={}, unknown_task_wait=3 * 3600)
MODES = {"w": WAITING, "s": WAITING, "d": DONE, "g": DONE, "l": LATEST, "n": LATEST}
UNIQUE = {name: UniqueKey(name, mode) for name, mode in MODES.items()}
#: The key of a message of a fair queue.
UNIQUE_OF_GUEST = UniqueKey("guest", DONE)

_PAGE = Path(__file__).parents[2] / "docs" / "keys.rst"
_VARIABLES = {"<step>": r"\d*", "<key>": ".*", "<consumer>": ".*", "<what>": ".+"}


def documented() -> dict[str, re.Pattern[str]]:
    """The rows of docs/keys.rst, and what their keys look like here."""
    found = {}
    # kombu's bindings have a test of their own (tests/transport/test_bindings.py).
    ours = _PAGE.read_text().partition("Bindings of exchanges\n")[0]
    for row in re.findall(r"^   \* - (``.+``)$", ours, re.MULTILINE):
        names = [name.encode().decode("unicode_escape") for name in re.findall("``(.+?)``", row)]
        found[names[0]] = re.compile("|".join(map(_pattern, names)))
    return found


def _pattern(name: str) -> str:
    pattern = re.escape(name)
    for variable, text in _VARIABLES.items():
        pattern = pattern.replace(re.escape(variable), text)
    return re.sub(r"\bQ\b", f"(?:{'|'.join(map(re.escape, QUEUES))})", pattern)


def ids_in(text: bytes) -> list[str]:
    """The id of the message that *text* is, if it is one."""
    return [id.decode() for id in re.findall(rb'"headers": {"id": "([^"]+)"', text)]


def message(rig: Rig, id: str, key: str = "", in_ms: int = 0) -> str:
    """A message as our publisher writes it."""
    of_key = f'"redisdelay-key": "{FairKey(key, 1).member}", ' if key else ""
    return f'{{"redisdelay-due": {rig.database.now_ms() + in_ms}, {of_key}{payload(id)[1:]}'


class Fleet:
    """Two consumers: one works on, the other one was killed.

    Attributes:
        ran: how many times each message was handed out to the first one.
        later: what was published to run, besides what there was in the beginning.
    """

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.clock = Clock()
        self.me = rig.consumer("me", options=OPTIONS)
        self.lost = rig.consumer("lost", options=OPTIONS)
        recoverer = rig.recoverer("me", options=OPTIONS)
        self.maintenance = Maintenance(rig.store, recoverer, OPTIONS, TURN_S - 1, clock=self.clock)
        self.fair = FairQueues(rig.store)
        self.ran: Counter[str] = Counter()
        self.later: set[str] = set()
        #: What the first one handles.
        self.held: list[Delivery] = []
        self._fill()
        self._lease_end_ms = rig.database.now_ms() - 1
        self.ran.update(id for delivery in self.held for id in ids_in(delivery.payload))

    # -- what there is --

    def _fill(self) -> None:
        self._run_unique()
        for queue in (ORDERS, PARTITION):
            self._leave_unknown(queue)
            self._fill_plain(queue)
        self._publish_more_unique()
        self._fill_guests()
        self._fill_tenants()
        assert Withdrawal(self.rig.store).claim(ORDERS, "looking for revoked stamps", "me")
        self._maintain()
        # As a worker of an older release does.
        older = [f"1700000000000 1 0 rejected\n{message(self.rig, f'orders-older{n}')}" for n in range(2)]
        self.rig.client.lpush(self.rig.store.keys(ORDERS).dead, *older)

    def put(self, queue: str, *ids: str, key: str = "", step: int = 0) -> None:
        self.rig.put(queue, *(message(self.rig, id, key) for id in ids), step=step)

    def _hold(self, queue: str, *ids: str, key: str = "", lost: bool = False) -> None:
        self.put(queue, *ids, key=key)
        deliveries = taken(self.lost if lost else self.me, queue)
        assert len(deliveries) == len(ids)
        self.held += () if lost else deliveries

    def _run_unique(self) -> None:
        """Messages with unique keys that are unacked."""
        for name, consumer in (("d", self.me), ("l", self.me), ("g", self.lost)):
            assert self.publish_unique(name, 0)
            deliveries = taken(consumer, ORDERS)
            assert len(deliveries) == 1
            self.held += deliveries if consumer is self.me else ()

    def _publish_more_unique(self) -> None:
        """Those that wait: ready, scheduled, and for the one that runs."""
        assert self.publish_unique("w", 0)
        assert self.publish_unique("s", 0, HOUR_MS)
        assert self.publish_unique("n", 0, HOUR_MS)
        assert self.publish_unique("l", 1)

    def publish_unique(self, name: str, number: int, in_ms: int = 0) -> bool:
        """Returns whether a message with this id is to run."""
        conflict = self.rig.publish_unique(ORDERS, f"unique-{name}{number}", UNIQUE[name], in_ms)
        return conflict is None

    def publish_guest(self, number: int) -> bool:
        """The same, for a unique key in a fair queue."""
        id = f"unique-guest{number}"
        member = UNIQUE_OF_GUEST.member(id)
        text = with_own(payload(id), 1, FairKey("u", 1).member, member)
        call = publishing(self.rig.store, GUESTS, 0, text, Due(at_ms=1), id, UNIQUE_OF_GUEST)
        return bool(self.rig.store.run(call) == 1)

    def _leave_unknown(self, queue: str) -> None:
        """Messages whose task only some worker knows."""
        ids = [f"{queue}-unknown{n}" for n in range(2)]
        self.put(queue, *ids)
        for id, delivery in zip(ids, taken(self.me, queue), strict=True):
            self.me.defer_unknown(queue, delivery.tag, id, "tasks.unknown")
        self.me.confirm_acks()

    def _fill_plain(self, queue: str) -> None:
        rig = self.rig
        self._hold(queue, f"{queue}-held0", f"{queue}-held1")
        self._hold(queue, f"{queue}-lost0", f"{queue}-lost1", lost=True)
        self.fail(queue, "first", "second")
        self.fail(queue, "third", returned="result")
        self.make_dead(queue, "first", "second")
        self.make_dead(queue, "first")
        self._finish(queue)
        for n in range(2):
            text = message(rig, f"{queue}-same{n}", in_ms=HOUR_MS)
            rig.schedule(queue, text, HOUR_MS, id=f"{queue}-same")
            self._schedule(queue, f"{queue}-scheduled{n}", step=3)
            self.put(queue, f"{queue}-ready{n}")
            self.put(queue, f"{queue}-low{n}", step=3)
        limits = {"interval_us": 1000.0, "burst": 1000, "concurrency": 1000}
        LimitStore(rig.store).limit([queue], limits)

    def _schedule(self, queue: str, id: str, step: int = 0) -> None:
        self.rig.schedule(queue, message(self.rig, id, in_ms=HOUR_MS), HOUR_MS, id=id, step=step)

    def fail(self, queue: str, *which: str, returned: str = "") -> None:
        """Have tasks fail that were acked before they ran. They have the same id.

        Arguments:
            returned: what was lost, if they have returned.
        """
        for delivery in self._acked(queue, *(f"{queue}-failed-{one}" for one in which)):
            copy = f"{delivery.step}:{delivery.payload.decode()}"
            failure = a_failure(f"{queue}-failed")._replace(returned=returned)
            self.rig.fail(self.me, queue, delivery.tag, failure, copy)

    def make_dead(self, queue: str, *which: str) -> None:
        for delivery in self._acked(queue, *(f"{queue}-dead-{one}" for one in which)):
            dead_letter(self.me, delivery, "unusable")

    def _acked(self, queue: str, *ids: str) -> list[Delivery]:
        """Messages that were acked when they were taken."""
        payloads = {id: message(self.rig, id).encode() for id in ids}
        return [Delivery(f"tag-of-{id}", queue, 0, payloads[id], needs_ack=False) for id in ids]

    def _finish(self, queue: str) -> None:
        assert self.me.finishing is not None
        at_ms = self.rig.database.now_ms()
        for n in range(2):
            task = FinishedTask(at_ms, 0.25, None, 1, "succeeded", "", "tasks.add", "celery@w", f"{queue}{n}")
            self.me.finishing.add(queue, task)
        self.me.finishing.send()
        self.me.confirm_acks()

    def _fill_guests(self) -> None:
        """A fair queue: two keys in two steps, and one in a step that is not used any more."""
        self.fair.switch_on([GUESTS])
        for key in "xy":
            self.put(GUESTS, *(f"guests-{key}{n}" for n in range(4)), key=key)
            self.put(GUESTS, f"guests-{key}-low0", f"guests-{key}-low1", key=key, step=3)
        assert self.publish_guest(0)
        taken(self.me, GUESTS, limit=0)
        before = Rig(self.rig.database, steps=(*STEPS, 5))
        before.put(GUESTS, *(message(before, f"guests-z{n}", "z") for n in range(4)), step=5)
        taken(before.consumer("before"), GUESTS, limit=0)
        self.put(GUESTS, "guests-unsorted0", "guests-unsorted1", key="unsorted")

    def _fill_tenants(self) -> None:
        """A fair queue with limits."""
        fair = self.fair
        fair.switch_on([TENANTS])
        self._hold(TENANTS, "tenants-early0", "tenants-early1", key="early")
        self._hold(TENANTS, "tenants-lost0", "tenants-lost1", key="lost", lost=True)
        fair.limit([TENANTS], StoredKeyLimits(concurrency=2))
        # Its own limits, and that of its rate.
        fair.limit_key(TENANTS, "own", StoredKeyLimits(concurrency=5, interval_us=10e6, burst=3))
        self._hold(TENANTS, "tenants-own0", "tenants-own1", "tenants-own2", key="own")
        fair.pause_key(TENANTS, "paused")
        self._hold(TENANTS, "tenants-full0", "tenants-full1", key="full")
        for key in ("own", "paused", "full", "early", "lost"):
            self.put(TENANTS, *(f"tenants-{key}-waits{n}" for n in range(2)), key=key)
        assert not taken(self.me, TENANTS)
        for key in "xy":
            self.put(TENANTS, *(f"tenants-{key}{n}" for n in range(3)), key=key)
            self.put(TENANTS, *(f"tenants-{key}-low{n}" for n in range(2)), key=key, step=3)
        taken(self.me, TENANTS, limit=0)
        self.put(TENANTS, "tenants-unsorted0", "tenants-unsorted1", key="unsorted")

    # -- what is lost --

    def keys(self, pattern: re.Pattern[str]) -> list[str]:
        return sorted(key for key in map(bytes.decode, self.rig.all_keys()) if pattern.fullmatch(key))

    def members(self, key: str) -> list[bytes]:
        """What a key holds, always in the same order."""
        client = self.rig.client
        kind = client.type(key)
        if kind == b"hash":
            return sorted(client.hkeys(key))
        return list((client.lrange if kind == b"list" else client.zrange)(key, 0, -1))

    def lose(self, key: str, number: int | None) -> None:
        """Delete a key, or one of its members."""
        client = self.rig.client
        if number is None:
            client.delete(key)
            return
        member, kind = self.members(key)[number], client.type(key)
        if kind == b"list":
            client.lrem(key, 1, member)
        else:
            (client.hdel if kind == b"hash" else client.zrem)(key, member)

    def texts(self) -> Iterator[tuple[str, bytes]]:
        """All that the keys hold, each with its key."""
        client = self.rig.client
        for key in map(bytes.decode, self.rig.all_keys()):
            kind = client.type(key)
            if kind == b"list":
                texts = client.lrange(key, 0, -1)
            else:
                texts = client.hvals(key) if kind == b"hash" else ()
            yield from ((key, text) for text in texts)

    def ids(self) -> set[str]:
        """The messages that are to run."""
        return {
            id
            for key, text in self.texts()
            if not key.endswith((":dead", ":messages")) or key.endswith("}:messages")
            for id in ids_in(text)
        }

    # -- what happens then --

    def turns(self, count: int, seconds: float = 0) -> None:
        """Let so much time of the server pass. Then, in each turn, the living one acks what it had, takes
        what it may have, and maintains the queues."""
        rig = self.rig
        keys = [rig.store.keys(queue).consumers for queue in QUEUES]
        if seconds:
            rig.database.advance(round(seconds * 1000))
            self.clock.now += seconds
            for key in keys:
                # It has ended, and does not move with the clock.
                rig.client.zadd(key, {"lost": self._lease_end_ms}, xx=True)
        for _ in range(count):
            rig.wait(TURN_S)
            self.clock.now += TURN_S
            run_each(rig.store.server, [(RENEW, keys, ("me", LEASE_MS))])
            self._take()
            look(mover_of(rig.store, *QUEUES))
            self._maintain()
            self._take()

    def _take(self) -> None:
        for delivery in self.held:
            self.me.ack(delivery.queue, delivery.tag)
        self.me.confirm_acks()
        known = takes_of(self.me, QUEUES).waiting_tasks({})
        waiting = {queue: some[0] for queue, some in known.items() if some is not None}
        self.held = self.me.take(Request(QUEUES, 64, known=waiting)).deliveries
        self.ran.update(id for delivery in self.held for id in ids_in(delivery.payload))

    def _maintain(self) -> None:
        while self.maintenance.round_trip(QUEUES):
            pass

    def publish_later(self, number: int) -> None:
        """Publish something of each kind that comes later."""
        rig = self.rig
        for queue in (ORDERS, PARTITION):
            self._later(queue, f"{queue}-later{number}")
            self._later(queue, f"{queue}-low-later{number}", step=3)
            id = f"{queue}-soon{number}"
            rig.schedule(queue, message(rig, id, in_ms=5000), 5000, id=id)
            self.later.add(id)
        for queue, keys in ((TENANTS, ("early", "lost", "own", "full", "x", "new")), (GUESTS, "xyn")):
            for key in keys:
                self._later(queue, f"{queue}-{key}-later{number}", key=key)
                self._later(queue, f"{queue}-{key}-low-later{number}", key=key, step=3)

    def _later(self, queue: str, id: str, key: str = "", step: int = 0) -> None:
        self.put(queue, id, key=key, step=step)
        self.later.add(id)

    def allow_all(self) -> None:
        """End all pauses and limits, as an operator does."""
        LimitStore(self.rig.store).limit(
            [ORDERS, PARTITION], {"interval_us": None, "burst": None, "concurrency": None}
        )
        self.fair.limit([TENANTS], StoredKeyLimits())
        self.fair.limit_key(TENANTS, "own", StoredKeyLimits())
        self.fair.resume_key(TENANTS, "paused")

    def requeue_all(self) -> None:
        """Have what has failed, and the dead letters, run again."""
        for queue in (ORDERS, PARTITION):
            failed = Archive(self.rig.store, FAILED)
            every = failed.iter(queue, Part(None, None))
            list(failed.take_out(queue, REQUEUE, every))
            take_out(self.rig.store, queue, REQUEUE)

    def counts(self) -> list[int]:
        """How many messages each of the queues says that it has."""
        return ReadyLists(self.rig.store).counts(QUEUES, with_scheduled=True)
