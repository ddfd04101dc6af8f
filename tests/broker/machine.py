"""What producers and operators do with messages, at random: in Redis, and in the model."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.keeping import move_older
from kombu_redisdelay.broker.keys import DEAD, FAILED
from kombu_redisdelay.broker.message import IGNORE, KEEP, REPLACE
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import Schedule
from tests.broker.database import Database
from tests.broker.model import Broker, Message
from tests.broker.rig import Rig, never, take_out, timeless, trim_failed

QUEUES = ("a", "b")
PRIORITIES = (0, 6)
#: So long that the time which the test itself takes on a real server does not matter.
UNIT_MS = 1_000_000
DELIVERY_LIMIT = 3
#: What has failed waits for so many ms: it is due in a unit, before all that is scheduled for that time.
RETRY_WAIT_MS = UNIT_MS * 3 // 10
#: So few failed tasks are kept, for so long, and of so many bytes, that each bound can be met. The
#: time is half a unit less, so that it is over for certain when so many units have passed.
KEPT, KEPT_UNITS, KEPT_BYTES = 5, 4, 1050
OPTIONS = Options(
    delivery_limit=DELIVERY_LIMIT,
    retry_wait=RETRY_WAIT_MS / 1000,
    keep_failed={"count": KEPT, "age": (KEPT_UNITS - 0.5) * UNIT_MS / 1000, "bytes": KEPT_BYTES},
)

queues = st.sampled_from(QUEUES)
priorities = st.sampled_from(PRIORITIES)
conflicts = st.sampled_from((KEEP, REPLACE, IGNORE))
choices = st.integers(0, 1000)
units = st.integers(-2, 4)


class PublishingMachine(RuleBasedStateMachine):
    """Messages are in the queues ``a`` and ``b``."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.database.reset()
        self.rig = Rig(self.database, steps=PRIORITIES)
        self.model = Broker(QUEUES, PRIORITIES, OPTIONS.isolated_after)
        self.numbers = count(1)

    @staticmethod
    def in_ms(in_units: int, number: int) -> int:
        """Half a unit early, so that it is due for certain when so many units have passed."""
        return in_units * UNIT_MS - UNIT_MS // 2 + number

    # -- publishing --

    @rule(queue=queues, step=priorities, how_many=st.integers(1, 5))
    def publish(self, queue: str, step: int, how_many: int) -> None:
        for _ in range(how_many):
            message = Message(f"m{next(self.numbers)}", step)
            self.rig.put(queue, message.text, step=step)
            self.model.queues[queue].put(message)

    @rule(queue=queues, step=priorities, in_units=units, same_id=st.booleans(), on_conflict=conflicts)
    def schedule(self, queue: str, step: int, in_units: int, same_id: bool, on_conflict: str) -> None:
        number = next(self.numbers)
        message = Message(f"m{number}", step, due=self.model.now + in_units, number=number)
        id = "same" if same_id else message.id
        in_ms = self.in_ms(in_units, number)
        self.rig.schedule(queue, message.text, in_ms, id=id, step=step, on_conflict=on_conflict)
        there = self.model.queues[queue]
        if on_conflict == IGNORE and any(other.scheduled_as == id for other in there.scheduled):
            return
        if on_conflict == REPLACE:
            there.cancel(id)
        if in_units > 0:
            there.schedule(message, id)
        else:
            there.put(message)

    @rule(by=st.integers(1, 5))
    def time_passes(self, by: int) -> None:
        self.database.advance(by * UNIT_MS)
        self.model.now += by

    @rule(queue=queues)
    def purge(self, queue: str) -> None:
        assert self.rig.store.purge(queue) == self.model.queues[queue].purge()

    # -- steering --

    def any_scheduled(self) -> bool:
        return any(queue.scheduled for queue in self.model.queues.values())

    def one_scheduled(self, which: int) -> tuple[str, str]:
        """The queue and the id of one that is scheduled."""
        every = [(name, m.scheduled_as) for name, queue in self.model.queues.items() for m in queue.scheduled]
        return every[which % len(every)]

    @precondition(any_scheduled)
    @rule(which=choices)
    def cancel(self, which: int) -> None:
        queue, id = self.one_scheduled(which)
        removed = Schedule(self.rig.store).cancel(queue, ["unknown", id])
        assert removed == [0, self.model.queues[queue].cancel(id)]

    @precondition(any_scheduled)
    @rule(which=choices, in_units=units)
    def reschedule(self, which: int, in_units: int) -> None:
        queue, id = self.one_scheduled(which)
        schedule, there = Schedule(self.rig.store), self.model.queues[queue]
        by_text = {message.text: message for message in there.scheduled if message.scheduled_as == id}
        for found in schedule.find(queue, id):
            message = by_text.pop(timeless(found.payload.decode()))
            message.unknown = None
            message.number = next(self.numbers)
            message.due = self.model.now + in_units
            due_ms = self.database.now_ms() + self.in_ms(in_units, message.number)
            assert schedule.reschedule(found, found.payload, due_ms)
            there.scheduled.remove(message)
            if in_units > 0:
                there.schedule(message, id)
            else:
                there.put(message)
        assert not by_text

    @precondition(any_scheduled)
    @rule(which=choices)
    def remove_what_was_seen(self, which: int) -> None:
        queue, _ = self.one_scheduled(which)
        schedule, there = Schedule(self.rig.store), self.model.queues[queue]
        seen = list(schedule.iter(queue, None, None))
        assert [timeless(found.stored.decode()) for found in seen] == [
            f"{m.step}:{m.text}" for m in there.scheduled
        ]
        index = which % len(seen)
        changed = replace(seen[index], stored=b"0:another")
        assert list(schedule.remove(queue, [changed, seen[index]])) == [seen[index]]
        del there.scheduled[index]

    @precondition(lambda self: any(queue.dead for queue in self.model.queues.values()))
    @rule(which=choices, how=st.sampled_from((REQUEUE, REMOVE)), by_id=st.booleans())
    def take_out_dead(self, which: int, how: str, by_id: bool) -> None:
        name, queue = next((name, queue) for name, queue in self.model.queues.items() if queue.dead)
        message = queue.dead.pop(which % len(queue.dead))
        message.deliveries = message.lost = 0
        if by_id:
            dead = Archive(self.rig.store, DEAD)
            [seen] = dead.find_all([name], ["unknown", message.id])
            assert seen.payload.decode() == message.text
            assert list(dead.take_out(name, how, [replace(seen, head=b"another"), seen])) == [seen]
            assert not list(dead.take_out(name, how, [seen]))
        else:
            text = message.text
            assert take_out(self.rig.store, name, how, lambda each: each.payload.decode() == text) == 1
        if how == REQUEUE:
            queue.put(message)

    @rule(queue=queues, since=choices, how_many=st.integers(1, 3))
    def bury_as_an_older_worker_does(self, queue: str, since: int, how_many: int) -> None:
        keys, now_ms = self.rig.store.keys(queue), self.database.now_ms()
        for _ in range(how_many):
            message = Message(f"m{next(self.numbers)}", step=6)
            self.rig.client.lpush(keys.dead, f"{now_ms - since} 1 6 rejected\n{message.text}")
            self.model.queues[queue].bury(message)

    @rule()
    def move_what_older_workers_have_buried(self) -> None:
        finish(move_older(self.rig.store, QUEUES, refused=never))
        assert not any(map(self.rig.older_dead, QUEUES))

    @rule(queue=queues)
    def count_dead(self, queue: str) -> None:
        there = self.model.queues[queue].dead
        dead = Archive(self.rig.store, DEAD)
        assert dead.counts([queue]) == [len(there)]
        assert dead.counts([queue], 0) == [len(there)]
        assert sum(group.count for group in dead.groups(queue)) == len(there)

    @rule(queue=queues)
    def clear_dead(self, queue: str) -> None:
        assert Archive(self.rig.store, DEAD).clear(queue) == len(self.model.queues[queue].dead)
        self.model.queues[queue].dead.clear()

    @precondition(lambda self: any(queue.failed for queue in self.model.queues.values()))
    @rule(which=choices, how=st.sampled_from((REQUEUE, REMOVE)))
    def take_out_failed(self, which: int, how: str) -> None:
        name, queue = next((name, queue) for name, queue in self.model.queues.items() if queue.failed)
        index = which % len(queue.failed)
        message, tasks = queue.failed.pop(index), Archive(self.rig.store, FAILED)
        seen = self.rig.failed(name)[index]
        changed = replace(seen, head=b"another")
        assert list(tasks.take_out(name, how, [changed, seen])) == [seen]
        assert not list(tasks.take_out(name, how, [seen]))
        message.deliveries = message.lost = 0
        message.unknown = None
        if how == REQUEUE:
            queue.put(message)

    @rule(queue=queues)
    def clear_failed(self, queue: str) -> None:
        assert Archive(self.rig.store, FAILED).clear(queue) == len(self.model.queues[queue].failed)
        self.model.queues[queue].failed.clear()

    @rule()
    def drop_what_failed_long_ago(self) -> None:
        finish(trim_failed(self.rig.store, OPTIONS.kept_failed, QUEUES))
        for queue in self.model.queues.values():
            queue.trim_failed(self.model.now, KEPT, KEPT_UNITS, KEPT_BYTES)
