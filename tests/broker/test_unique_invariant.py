"""Whatever is done to messages with one key: what may run runs, and no key outlives its message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.unique import DONE, DROPPED, LATEST, MODES, WAITING, UniqueKey, check_unique
from tests.broker.database import Database
from tests.broker.rig import Rig, a_failure, again_at, park, take_out, taken
from tests.search import may_search_for_long, replay, run_machine

STEPS = (0, 6)
UNIT_MS = 1_000_000
#: How a message leaves its consumer without being done.
WAYS_BACK = ("returned", "failed", "later", "dead", "unseen", "parked", "unknown")
choices = st.integers(0, 1000)
steps = st.sampled_from(STEPS)


@dataclass
class Run:
    """A message that a consumer has begun to run."""

    consumer: Consumer
    delivery: Delivery
    id: str
    version: str


class UniqueMachine(RuleBasedStateMachine):
    """Messages of one key are in the queue ``q``.

    No rule has a precondition: what runs may depend on the clock of a server, and Hypothesis must draw the
    same again. A rule that has nothing to work on makes it.

    Attributes:
        seen: whether a run has begun after the last publish that saw what it should see.
        excused: ids of messages that somebody removed, or that a program took that does not know keys.
    """

    database: Database
    mode: str

    def __init__(self) -> None:
        super().__init__()
        self.database.reset()
        self.rig = Rig(self.database, steps=STEPS)
        self.unique = UniqueKey("account:4", self.mode)
        self.names = count(1)
        self.consumers = [self.rig.consumer(f"c{next(self.names)}") for _ in range(2)]
        self.runs: list[Run] = []
        self.zombies: list[Run] = []
        self.elsewhere: list[tuple[int, bytes]] = []
        self.published: list[str] = []
        self.version = 0
        self.seen = True
        self.began: set[str] = set()
        #: Retries that have not begun: id -> what they are to see.
        self.owed: dict[str, str] = {}
        self.excused: set[str] = set()
        #: Ids of tasks that have failed, and are kept.
        self.failed: Counter[str] = Counter()
        #: Failed tasks and dead letters that were requeued, and have not begun again: as above.
        self.requeued: dict[str, str] = {}
        #: Whether two may run: a lease was lost, or another program has taken or removed something.
        self.may_be_two = False

    # -- what producers and consumers do --

    @rule(step=steps, in_units=st.integers(0, 3))
    def publish(self, step: int, in_units: int) -> None:
        id = f"m{next(self.names)}"
        self.version += 1
        self.seen = False
        in_ms = in_units * UNIT_MS
        conflict = self.rig.publish_unique("q", id, self.unique, in_ms, step=step, body=str(self.version))
        assert conflict is None or conflict.holder != id
        if self.mode == LATEST:
            assert conflict is None or conflict.outcome != DROPPED
        self.published.append(id if conflict is None else conflict.holder)

    @rule(which=st.integers(0, 1), limit=st.integers(1, 3))
    def take(self, which: int, limit: int) -> None:
        consumer = self.consumers[which]
        for delivery in taken(consumer, "q", limit=limit):
            decoded = json.loads(delivery.payload)
            run = Run(consumer, delivery, decoded["headers"]["id"], decoded["body"])
            self.runs.append(run)
            self.began.add(run.id)
            for promised in (self.owed, self.requeued):
                if promised.get(run.id) == run.version:
                    del promised[run.id]
            if self.mode != LATEST or run.version == str(self.version):
                self.seen = True
        if self.mode != WAITING and not self.may_be_two:
            assert len(self.runs) <= 1, "two of one key run"

    def one_run(self, which: int) -> Run | None:
        """One that runs, which its consumer forgets. If none does, a message is published and taken: rules
        that come one after the other by chance seldom get so far. ``None`` if it is not taken, because
        another one holds the key."""
        if not self.runs:
            self.publish(0, 0)
            self.take(0, 1)
        return self.runs.pop(which % len(self.runs)) if self.runs else None

    @rule(which=choices)
    def ack(self, which: int) -> None:
        if run := self.one_run(which):
            assert self.rig.ack(run.consumer, "q", run.delivery.tag)

    @rule(which=choices, acks_first=st.booleans())
    def task_fails(self, which: int, acks_first: bool) -> None:
        run = self.one_run(which)
        if run is None:
            return
        tag, copy = run.delivery.tag, ""
        if acks_first:
            self.rig.ack(run.consumer, "q", tag)
            # Somebody else comes in between.
            self.take(0, 1)
            copy = f"{run.delivery.step}:{run.delivery.payload.decode()}"
        self.database.tick()
        assert self.rig.fail(run.consumer, "q", tag, a_failure(run.id), copy)
        holders = self.rig.client.hvals(self.rig.key("q", "running"))
        assert not any(run.consumer.name.encode() in each and tag.encode() in each for each in holders)
        self.failed[run.id] += 1

    def retry(self, run: Run, in_units: int) -> None:
        self.rig.publish_unique(
            *("q", run.id, self.unique, in_units * UNIT_MS), body=run.version, is_continued=True
        )
        self.owed[run.id] = run.version

    @rule(which=choices, in_units=st.integers(0, 2), acks_first=st.booleans())
    def retry_and_ack(self, which: int, in_units: int, acks_first: bool) -> None:
        run = self.one_run(which)
        if run is None:
            return
        if acks_first:
            self.rig.ack(run.consumer, "q", run.delivery.tag)
            # Somebody else comes in between.
            self.take(0, 1)
        self.retry(run, in_units)
        if acks_first:
            self.may_be_two = True
        else:
            self.take(1, 1)
            self.rig.ack(run.consumer, "q", run.delivery.tag)

    @rule(which=choices, in_units=st.integers(0, 2))
    def retry_and_be_lost(self, which: int, in_units: int) -> None:
        if run := self.one_run(which):
            self.runs.append(run)
            self.retry(run, in_units)
            self.lose_lease(self.consumers.index(run.consumer))

    @rule(which=choices, how=st.sampled_from(WAYS_BACK))
    def give_back(self, which: int, how: str) -> None:
        run = self.one_run(which)
        if run is None:
            return
        consumer, tag = run.consumer, run.delivery.tag
        if how == "unseen":
            consumer.put_back([run.delivery])
        elif how == "returned":
            assert consumer.give_back("q", tag)
        elif how == "dead":
            assert consumer.make_dead("q", tag, "why")
        elif how == "parked":
            park(consumer, run.delivery, run.id, self.database.now_ms() + UNIT_MS)
        elif how == "unknown":
            consumer.defer_unknown("q", tag, run.id, "task")
            consumer.confirm_acks()
        else:
            assert consumer.requeue("q", tag, UNIT_MS if how == "later" else None)

    @rule(which=st.integers(0, 1))
    def lose_lease(self, which: int) -> None:
        """A worker stands still, and goes on when others have its messages."""
        consumer = self.consumers[which]
        lost = [run for run in self.runs if run.consumer is consumer]
        if lost:
            self.runs = [run for run in self.runs if run.consumer is not consumer]
            self.zombies += lost
            # The lease of the other may have ended, too, in time that passed.
            leases = {each.name: self.database.now_ms() + UNIT_MS for each in self.consumers}
            self.rig.client.zadd(self.rig.store.keys("q").consumers, leases, xx=True)
            self.rig.end_lease("q", consumer.name)
            self.rig.recover("q")
            self.consumers[which] = self.rig.consumer(f"c{next(self.names)}")

    @rule(which=choices, retries=st.booleans(), in_units=st.integers(0, 2))
    def zombie_ends(self, which: int, retries: bool, in_units: int) -> None:
        if not self.zombies:
            if run := self.one_run(which):
                self.runs.append(run)
            self.lose_lease(which % 2)
        if not self.zombies:
            return
        run = self.zombies.pop(which % len(self.zombies))
        if retries:
            self.may_be_two = True
            self.retry(run, in_units)
        assert not self.rig.fail(run.consumer, "q", run.delivery.tag, a_failure(run.id))
        assert not self.rig.ack(run.consumer, "q", run.delivery.tag)

    @rule(by=st.integers(1, 3))
    def time_passes(self, by: int) -> None:
        self.database.advance(by * UNIT_MS)

    # -- what operators do --

    def ids_that_wait(self) -> set[str]:
        stored = self.rig.scheduled("q")
        texts = [text.partition(":")[2] for text in stored]
        texts += [text for step in STEPS for text in self.rig.ready("q", step)]
        return {json.loads(text)["headers"]["id"] for text in texts}

    @rule(which=choices)
    def cancel(self, which: int) -> None:
        found = list(Schedule(self.rig.store).iter("q", None, None))
        if found:
            id = found[which % len(found)].member.partition(b"\x1f")[0].decode()
            self.excused.add(id)
            Schedule(self.rig.store).cancel("q", [id])

    @rule(which=choices)
    def cancel_ready(self, which: int) -> None:
        found = list(ReadyLists(self.rig.store).iter("q"))
        if found:
            message = found[which % len(found)]
            self.excused.add(json.loads(message.payload)["headers"]["id"])
            assert ReadyLists(self.rig.store).remove(message)

    @rule(which=choices, in_units=st.integers(-1, 2))
    def reschedule(self, which: int, in_units: int) -> None:
        schedule = Schedule(self.rig.store)
        found = list(schedule.iter("q", None, None))
        if found:
            message = found[which % len(found)]
            schedule.reschedule(message, message.payload, self.database.now_ms() + in_units * UNIT_MS)

    @rule(in_units=st.integers(-1, 2))
    def reschedule_all(self, in_units: int) -> None:
        """As a dry run says before."""
        due_ms = self.database.now_ms() + in_units * UNIT_MS
        schedule = Schedule(self.rig.store)
        found = list(schedule.iter("q", None, None))
        outcomes = []
        for is_dry_run in (True, False):
            stay: list[Scheduled] = []
            moved = schedule.reschedule_all(
                *("q", found, lambda each: (each.stored, due_ms)), stays=stay.append, is_dry_run=is_dry_run
            )
            outcomes.append((list(moved), stay))
        assert outcomes[0] == outcomes[1]

    @rule(in_units=st.integers(1, 3))
    def schedule_ready(self, in_units: int) -> None:
        due_ms = self.database.now_ms() + in_units * UNIT_MS
        ready = ReadyLists(self.rig.store)
        list(ready.schedule_all("q", list(ready.iter("q")), again_at(due_ms)))

    @rule()
    def purge(self) -> None:
        self.excused |= self.ids_that_wait()
        self.rig.store.purge("q")

    @rule()
    def requeue_dead(self) -> None:
        before = self.rig.dead("q")
        is_free = not (self.runs or self.zombies or self.ids_that_wait())
        requeued = take_out(self.rig.store, "q", REQUEUE)
        if self.mode == DONE and before and is_free:
            assert requeued, "nobody has its key"
        left = Counter(before) - Counter(self.rig.dead("q"))
        assert requeued == left.total()
        for letter in left:
            self.is_requeued(letter.partition("\n")[2])

    def is_requeued(self, text: str) -> None:
        decoded = json.loads(text)
        self.requeued[decoded["headers"]["id"]] = decoded["body"]

    @rule(which=choices, how=st.sampled_from((REQUEUE, REMOVE)))
    def take_out_failed(self, which: int, how: str) -> None:
        if not self.failed.total():
            self.task_fails(which, False)
        found = self.rig.failed("q")
        if not found:
            return
        task = found[which % len(found)]
        stays: dict[str, str] = {}
        tasks = Archive(self.rig.store, FAILED)
        done = list(
            tasks.take_out("q", how, [task], stays=lambda each, holder: stays.update({each.id: holder}))
        )
        if how == REQUEUE and self.mode == DONE and not (self.runs or self.zombies or self.ids_that_wait()):
            assert done, "nobody has its key"
        if not done:
            # It stays, and it is known why.
            assert how == REQUEUE
            assert list(stays) == [task.id]
            assert stays[task.id] in self.published
            return
        assert not stays
        self.failed[task.id] -= 1
        if how == REQUEUE:
            self.is_requeued(task.payload.decode())

    # -- what others do --

    @rule(step=steps)
    def a_stock_worker_takes(self, step: int) -> None:
        # What became ready in the present millisecond counts as there, whatever is seen.
        self.database.end_millisecond()
        text = self.rig.client.rpop(self.rig.store.keys("q").ready_at(step))
        if text is not None:
            self.may_be_two = True
            self.elsewhere.append((step, text))
            self.excused.add(json.loads(text)["headers"]["id"])

    @rule(gives_back=st.booleans())
    def a_stock_worker_ends(self, gives_back: bool) -> None:
        if not self.elsewhere:
            self.a_stock_worker_takes(0)
        if not self.elsewhere:
            return
        step, text = self.elsewhere.pop()
        if gives_back:
            self.rig.client.rpush(self.rig.store.keys("q").ready_at(step), text)

    @rule(name=st.sampled_from(("unique", "running")))
    def the_hash_is_deleted(self, name: str) -> None:
        self.may_be_two = True
        # A retry says itself that it is one. Of others, only the hash knows that they have begun.
        self.requeued.clear()
        self.rig.client.delete(self.rig.key("q", name))

    @rule()
    def keys_are_checked(self) -> None:
        check_unique(self.rig.store, ["q"], {})

    # -- what always holds --

    @invariant()
    def what_has_failed_is_kept(self) -> None:
        assert Counter(task.id for task in self.rig.failed("q")) == +self.failed

    # -- the end --

    def teardown(self) -> None:
        for _ in range(200):
            while self.runs:
                self.ack(0)
            self.take(0, 3)
            if self.runs:
                continue
            check_unique(self.rig.store, ["q"], {})
            self.database.advance(5 * UNIT_MS)
            if not self.ids_that_wait():
                break
        assert not self.ids_that_wait(), "some never run"
        check_unique(self.rig.store, ["q"], {})
        assert self.rig.client.hgetall(self.rig.key("q", "unique")) == {}
        assert self.rig.client.hgetall(self.rig.key("q", "running")) == {}
        assert set(self.published) - self.began - self.excused == set(), "ids that were accepted never ran"
        assert set(self.owed) - self.excused == set(), "a retry is lost"
        assert set(self.requeued) - self.excused == set(), "one that was requeued is lost"
        if self.mode != DONE and self.published and self.published[-1] not in self.excused:
            assert self.seen, "nothing that began after the last publish saw it"


@may_search_for_long
@pytest.mark.in_all_orders
@pytest.mark.parametrize("mode", MODES)
def test_what_may_run_runs(database: Database, mode: str) -> None:
    run_machine(UniqueMachine, 40, name=f"{database.name} {mode}", database=database, mode=mode)


def a_retry_is_moved_twice(state: UniqueMachine) -> None:
    state.take_out_failed(how=REQUEUE, which=0)
    state.take(limit=1, which=0)
    state.retry_and_ack(acks_first=False, in_units=0, which=0)
    state.reschedule(in_units=0, which=0)
    state.schedule_ready(in_units=1)
    state.task_fails(acks_first=False, which=0)


def a_retry_is_delivered_by_hand_and_moved(state: UniqueMachine) -> None:
    state.retry_and_ack(acks_first=True, in_units=1, which=0)
    state.reschedule(in_units=0, which=0)
    state.schedule_ready(in_units=1)
    state.publish(in_units=0, step=0)


def one_that_was_requeued_is_moved(state: UniqueMachine) -> None:
    state.task_fails(acks_first=False, which=0)
    state.take_out_failed(how=REQUEUE, which=0)
    state.schedule_ready(in_units=1)
    state.publish(in_units=0, step=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "steps",
    [a_retry_is_moved_twice, a_retry_is_delivered_by_hand_and_moved, one_that_was_requeued_is_moved],
)
def test_what_has_failed_once(database: Database, mode: str, steps: Callable[[UniqueMachine], None]) -> None:
    replay(steps, UniqueMachine, database=database, mode=mode)
