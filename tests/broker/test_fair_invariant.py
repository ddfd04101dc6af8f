"""Whatever is done to a fair queue: each message is in one place, a key that has messages has its turn or
waits for its limits, and no limit of a key is exceeded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.fair_keys import ON, PLAIN, FairKey, StoredKeyLimits, key_of
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import Schedule
from tests.broker.database import Database, FakeDatabase
from tests.broker.rig import Rig, a_failure, check_fair, park, take_out, taken, trim_failed
from tests.broker.test_mover import look, mover_of
from tests.search import may_search_for_long, replay, run_machine

STEPS = (0, 6)
UNIT_MS = 1_000_000
KEYS = ("", "a", "b", "é}:{ 1")
MOST = 100
choices = st.integers(0, 1000)
steps = st.sampled_from(STEPS)
keys = st.sampled_from(KEYS)
concurrencies = st.sampled_from((None, 1, 2))
intervals = st.sampled_from((None, 1, 2))


@dataclass
class Allowed:
    """What the model says of the limits of a key."""

    concurrency: int | None = None
    interval: int | None = None
    burst: int = 1

    @property
    def limits(self) -> StoredKeyLimits:
        interval_us = self.interval and float(self.interval * UNIT_MS * 1000)
        return StoredKeyLimits(self.concurrency, interval_us, self.burst if self.interval else None)


@dataclass
class Own(Allowed):
    is_paused: bool = False
    tat: int = 0


@dataclass
class Run:
    consumer: Consumer
    delivery: Delivery
    id: str
    key: str


def fair_payload(id: str, key: str, weight: float = 1, *, stock: bool = False) -> str:
    """A message as our publishers write it, or as those of ``redis://`` do."""
    headers = {"id": id, "x-key": key, "x-key-weight": weight} if key else {"id": id}
    text = json.dumps({"body": "", "headers": headers, "properties": {}})
    if stock or not key:
        return text
    member = FairKey(key, weight).member
    return f'{{"redisdelay-due": 1, "redisdelay-key": "{member}", {text[1:]}'


def id_of(payload: bytes | str) -> str:
    return str(json.loads(payload)["headers"]["id"])


@dataclass
class Found:
    """What is in Redis of the queue ``q``."""

    sorted_by_key: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    ids: Counter[str] = field(default_factory=Counter)


class FairMachine(RuleBasedStateMachine):
    """Messages of some keys are in the queue ``q``."""

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.database.reset()
        self.rig = Rig(self.database, steps=STEPS)
        self.fair = FairQueues(self.rig.store)
        self.names = count(1)
        self.consumers = [self.new_consumer() for _ in range(2)]
        self.runs: list[Run] = []
        #: Those that were acked when they were taken.
        self.early: list[Run] = []
        self.zombies: list[Run] = []
        self.elsewhere: list[tuple[int, bytes]] = []
        self.there: set[str] = set()
        self.keys: dict[str, str] = {}
        self.every = Allowed()
        self.own = {key: Own() for key in KEYS}
        self.now = 0
        #: Ids of messages that were published and nothing else, in this order, as long as the order is kept.
        self.in_order: dict[tuple[int, str], list[str]] = {}
        self.checked: dict[str, bytes] = {}
        #: Consumer and tag of what was acked by who knew of no limit.
        self.uncounted: set[bytes] = set()

    def new_consumer(self) -> Consumer:
        return self.rig.consumer(f"c{next(self.names)}")

    @initialize(is_fair=st.booleans(), concurrency=concurrencies)
    def begin(self, is_fair: bool, concurrency: int | None) -> None:
        """Most ways on which something is lost begin with a limit. Rules that set one come by chance, and
        late."""
        if is_fair:
            self.switch_on()
        self.limit(concurrency, None, 1)

    # -- what producers do --

    @rule(key=keys, step=steps, how_many=st.integers(1, 3), weight=st.sampled_from((1, 2.5, 0.1)))
    def publish(self, key: str, step: int, how_many: int, weight: float) -> None:
        self.push(key, step, how_many, weight, stock=False)

    @rule(key=keys, step=steps, how_many=st.integers(1, 3))
    def a_stock_producer_publishes(self, key: str, step: int, how_many: int) -> None:
        self.push(key, step, how_many, 2, stock=True)

    def push(self, key: str, step: int, how_many: int, weight: float, *, stock: bool) -> None:
        for _ in range(how_many):
            id = f"m{next(self.names)}"
            self.there.add(id)
            self.keys[id] = key
            self.in_order.setdefault((step, key), []).append(id)
            self.rig.put("q", fair_payload(id, key, weight, stock=stock), step=step)

    @rule(key=keys, step=steps, in_units=st.integers(-1, 3))
    def schedule(self, key: str, step: int, in_units: int) -> None:
        id = f"m{next(self.names)}"
        self.there.add(id)
        self.keys[id] = key
        self.rig.schedule("q", fair_payload(id, key), in_units * UNIT_MS, id=id, step=step)

    @rule(by=st.integers(1, 3))
    def time_passes(self, by: int) -> None:
        self.database.advance(by * UNIT_MS)
        self.now += by

    # -- what consumers do --

    @rule(which=st.integers(0, 1), limit=st.integers(0, 4), acked=st.booleans())
    def take(self, which: int, limit: int, acked: bool) -> None:
        consumer = self.consumers[which]
        deliveries = taken(consumer, "q", limit=limit, no_ack=() if acked else ("q",))
        is_fair = self.fair.states(["q"]) == [ON]
        runs = [Run(consumer, each, id_of(each.payload), key_of(each.payload).key) for each in deliveries]
        # Before anything is said of them: the end has to know what is held.
        if acked:
            self.runs += runs
        else:
            self.early += runs
            self.there -= {run.id for run in runs}
        for run in runs:
            assert run.key == self.keys[run.id], "it has lost its key"
            self.follows_order(run)
            if is_fair:
                self.counts_against(run)
        if acked and is_fair:
            self.no_limit_is_exceeded({key_of(delivery.payload).key for delivery in deliveries})
        if is_fair:
            self.who_waits_is_at_a_limit()

    def follows_order(self, run: Run) -> None:
        waiting = self.in_order.get((run.delivery.step, run.key), [])
        if run.id in waiting:
            assert waiting.pop(0) == run.id, "out of order within its key"

    def allowed(self, key: str) -> Allowed:
        own = self.own[key]
        interval = own.interval or self.every.interval
        burst = own.burst if own.interval else self.every.burst
        return Allowed(own.concurrency or self.every.concurrency, interval, burst)

    def counts_against(self, run: Run) -> None:
        own, allowed = self.own[run.key], self.allowed(run.key)
        assert not own.is_paused
        if allowed.interval:
            own.tat = self.used_until(run.key)
            assert own.tat - (allowed.burst - 1) * allowed.interval <= self.now, "faster than its rate"
            own.tat += allowed.interval

    def gives_back_what_its_rate_allowed(self, run: Run) -> None:
        """Its task is not known to the worker, and is not run."""
        allowed = self.allowed(run.key)
        if allowed.interval and self.fair.states(["q"]) == [ON]:
            self.own[run.key].tat = max(self.now, self.used_until(run.key) - allowed.interval)

    def used_until(self, key: str) -> int:
        """When as much may be taken at once as its burst says."""
        tat, allowed = self.own[key].tat, self.allowed(key)
        assert allowed.interval
        return min(max(tat, self.now), self.now + allowed.burst * allowed.interval)

    def no_limit_is_exceeded(self, some: set[str]) -> None:
        held = Counter(run.key for run in self.runs)
        for key in some:
            concurrency = self.allowed(key).concurrency
            assert concurrency is None or held[key] <= concurrency, "more than its concurrency"

    def who_waits_is_at_a_limit(self) -> None:
        """A key below its limits is in the turns."""
        client, k = self.rig.client, self.rig.store.keys("q")
        active = client.hgetall(k.unacked_by_key)
        for _, key in self.limited():
            own, allowed = self.own[key], self.allowed(key)
            is_slow = client.zscore(self.rig.key("q", "alarms"), key) is not None
            is_full = allowed.concurrency and int(active.get(key.encode(), 0)) >= allowed.concurrency
            assert own.is_paused or is_slow or is_full, f"{key!r} waits for nothing"

    def some_run(self, key: str) -> bool:
        """Whether any message is unacked. Rules that come one after the other by chance seldom get so
        far: if there is none, one of *key* is published and taken."""
        if not self.runs:
            self.publish(key, 0, 1, 1)
            self.take(0, 1, True)
        return bool(self.runs)

    @rule(which=choices, key=keys)
    def ack(self, which: int, key: str) -> None:
        if self.some_run(key):
            self.ack_one(which)

    def ack_one(self, which: int) -> None:
        run = self.runs.pop(which % len(self.runs))
        if "q" not in run.consumer.limited:
            self.uncounted.add(f"{run.consumer.name}\x1e{run.delivery.tag}".encode())
        assert self.rig.ack(run.consumer, "q", run.delivery.tag)
        self.there.remove(run.id)

    @rule(which=choices, key=keys)
    def task_fails(self, which: int, key: str) -> None:
        if self.some_run(key):
            run = self.runs.pop(which % len(self.runs))
            self.database.tick()
            assert self.rig.fail(run.consumer, "q", run.delivery.tag, a_failure(run.id))

    @precondition(lambda self: self.early)
    @rule(which=choices)
    def task_fails_after_its_ack(self, which: int) -> None:
        run = self.early.pop(which % len(self.early))
        copy = f"{run.delivery.step}:{run.delivery.payload.decode()}"
        self.database.tick()
        assert self.rig.fail(run.consumer, "q", run.delivery.tag, a_failure(run.id), copy)
        self.there.add(run.id)

    @rule(
        which=choices,
        key=keys,
        how=st.sampled_from(("returned", "failed", "later", "dead", "parked", "unknown")),
    )
    def give_back(self, which: int, key: str, how: str) -> None:
        if not self.some_run(key):
            return
        run = self.runs.pop(which % len(self.runs))
        consumer, tag = run.consumer, run.delivery.tag
        if how == "returned":
            assert consumer.give_back("q", tag)
        elif how == "dead":
            assert consumer.make_dead("q", tag, "why")
        elif how == "parked":
            park(consumer, run.delivery, run.id, self.database.now_ms() + UNIT_MS)
        elif how == "unknown":
            consumer.defer_unknown("q", tag, run.id, "task")
            consumer.confirm_acks()
            self.gives_back_what_its_rate_allowed(run)
        else:
            assert consumer.requeue("q", tag, UNIT_MS if how == "later" else None)

    @rule(how_many=st.integers(1, 3), key=keys)
    def put_back(self, how_many: int, key: str) -> None:
        if not self.some_run(key):
            return
        some = [run for run in self.runs if run.consumer is self.runs[-1].consumer][-how_many:]
        self.runs = [run for run in self.runs if run not in some]
        some[0].consumer.put_back([run.delivery for run in some])

    @rule(which=st.integers(0, 1), key=keys)
    def lose_lease(self, which: int, key: str) -> None:
        self.some_run(key)
        consumer = self.consumers[which]
        self.zombies += [run for run in self.runs if run.consumer is consumer]
        self.runs = [run for run in self.runs if run.consumer is not consumer]
        # The lease of the other may have ended, too, in time that passed.
        leases = {each.name: self.database.now_ms() + UNIT_MS for each in self.consumers}
        self.rig.client.zadd(self.rig.store.keys("q").consumers, leases, xx=True)
        self.rig.end_lease("q", consumer.name)
        self.rig.recover("q")
        self.consumers[which] = self.new_consumer()

    @precondition(lambda self: self.zombies)
    @rule(which=choices)
    def zombie_ends(self, which: int) -> None:
        run = self.zombies.pop(which % len(self.zombies))
        assert not self.rig.fail(run.consumer, "q", run.delivery.tag, a_failure(run.id))
        assert not self.rig.ack(run.consumer, "q", run.delivery.tag)

    @rule(which=st.integers(0, 1))
    def close(self, which: int) -> None:
        consumer = self.consumers[which]
        assert consumer.give_back_all()
        self.runs = [run for run in self.runs if run.consumer is not consumer]
        self.consumers[which] = self.new_consumer()

    @rule()
    def move_while_there_is_no_room(self) -> None:
        look(mover_of(self.rig.store, "q"))

    # -- what operators do --

    @rule()
    def switch_on(self) -> None:
        self.fair.switch_on(["q"])

    @rule()
    def switch_off(self) -> None:
        self.fair.switch_off(["q"])
        # What is moved back comes behind what is not sorted by key.
        self.in_order.clear()

    @rule(concurrency=concurrencies, interval=intervals, burst=st.integers(1, 2))
    def limit(self, concurrency: int | None, interval: int | None, burst: int) -> None:
        self.every = Allowed(concurrency, interval, burst)
        self.fair.limit(["q"], self.every.limits)
        assert self.fair.limits(["q"]) == [self.every.limits]
        self.forget_rates()

    @rule(key=keys, concurrency=concurrencies, interval=intervals, burst=st.integers(1, 2))
    def limit_key(self, key: str, concurrency: int | None, interval: int | None, burst: int) -> None:
        own = self.own[key]
        own.concurrency, own.interval, own.burst = concurrency, interval, burst
        self.fair.limit_key("q", key, own.limits)
        self.forget_rates()

    @rule(which=choices, key=keys)
    def limit_while_one_runs(self, which: int, key: str) -> None:
        """Its consumer does not know of the limit when it acks."""
        if self.some_run(key):
            self.limit(1, None, 1)
            self.ack_one(which)

    @rule(key=keys, is_paused=st.booleans())
    def pause(self, key: str, is_paused: bool) -> None:
        self.own[key].is_paused = is_paused
        if is_paused:
            self.fair.pause_key("q", key)
        else:
            self.fair.resume_key("q", key)
            self.forget_rates()

    @rule()
    def purge(self) -> None:
        found = self.found()
        kept = {*self.dead(), *self.failed()}
        waiting = set(found.ids) - {run.id for run in self.runs} - kept
        assert self.rig.store.purge("q") == len(waiting)
        self.there -= waiting
        self.in_order.clear()

    @rule()
    def requeue_dead(self) -> None:
        assert take_out(self.rig.store, "q", REQUEUE) == len(self.dead()) or not self.dead()

    @rule(which=choices, how=st.sampled_from((REQUEUE, REMOVE)))
    def take_out_failed(self, which: int, how: str) -> None:
        found = self.rig.failed("q")
        if found:
            task = found[which % len(found)]
            assert list(Archive(self.rig.store, FAILED).take_out("q", how, [task])) == [task]
            if how == REMOVE:
                self.there.remove(task.id)

    @rule(which=choices)
    def deliver_now(self, which: int) -> None:
        schedule = Schedule(self.rig.store)
        found = list(schedule.iter("q", None, None))
        if found:
            message = found[which % len(found)]
            assert schedule.reschedule(message, message.payload, self.database.now_ms() - 1)

    @rule()
    def keys_are_checked(self) -> None:
        # Nothing was lost, so nothing has to be searched.
        assert check_fair(self.rig.store, ["q"], self.checked) == []
        self.forget_rates()

    def forget_rates(self) -> None:
        """What was used of a rate may be forgotten when there is none any more."""
        has_rate = self.every.interval or any(
            own.concurrency or own.interval or own.is_paused for own in self.own.values()
        )
        if not has_rate and not self.rig.client.exists(self.rig.key("q", "tats")):
            for own in self.own.values():
                own.tat = 0

    # -- what others do --

    @rule(step=steps)
    def a_stock_worker_takes(self, step: int) -> None:
        text = self.rig.client.rpop(self.rig.store.keys("q").ready_at(step))
        if text is not None:
            self.elsewhere.append((step, text))
            self.in_order.clear()

    @precondition(lambda self: self.elsewhere)
    @rule(gives_back=st.booleans())
    def a_stock_worker_ends(self, gives_back: bool) -> None:
        step, text = self.elsewhere.pop()
        if gives_back:
            self.rig.client.rpush(self.rig.store.keys("q").ready_at(step), text)
        else:
            self.there.remove(id_of(text))

    # -- what always holds --

    def dead(self) -> list[str]:
        return [id_of(letter.split("\n", 1)[1]) for letter in self.rig.dead("q")]

    def failed(self) -> list[str]:
        return [id_of(task.payload) for task in self.rig.failed("q")]

    def found(self) -> Found:
        found = Found()
        prefix = re.escape(self.rig.key("q", ""))
        for name in self.rig.all_keys():
            if match := re.fullmatch(rf"{prefix}(\d*):(.*)", name.decode()):
                step, key = match.groups()
                ids = [id_of(text) for text in self.rig.client.lrange(name, 0, -1)]
                found.sorted_by_key[int(step or 0), key] = ids
                found.ids.update(ids)
        found.ids.update(id_of(text) for step in STEPS for text in self.rig.ready("q", step))
        found.ids.update(id_of(text.partition(":")[2]) for text in self.rig.scheduled("q"))
        for consumer in self.consumers:
            held = self.rig.unacked("q", consumer.name)
            found.ids.update(id_of(text.partition(":")[2]) for text in held.values())
        found.ids.update(self.dead())
        found.ids.update(self.failed())
        return found

    @invariant()
    def all_is_where_it_belongs(self) -> None:
        found = self.found()
        self.every_message_is_in_one_place(found)
        self.each_key_has_its_turn_or_waits(found)

    def every_message_is_in_one_place(self, found: Found) -> None:
        elsewhere = Counter(id_of(text) for _, text in self.elsewhere)
        assert found.ids + elsewhere == Counter(self.there)

    def limited(self) -> Iterator[tuple[int, str]]:
        for key, turns in self.rig.client.hgetall(self.rig.store.keys("q").limited).items():
            yield from ((int(step), key.decode()) for step in turns.decode().split()[::2])

    def each_key_has_its_turn_or_waits(self, found: Found) -> None:
        client, k = self.rig.client, self.rig.store.keys("q")
        sorted_by_key = found.sorted_by_key
        assert all(self.keys[id] == key for (_, key), ids in sorted_by_key.items() for id in ids)
        limited = Counter(self.limited())
        turns = {(step, key.decode()) for step in STEPS for key in client.zrange(k.turns(step), 0, -1)}
        assert set(sorted_by_key) <= turns | set(limited)
        assert not turns & set(limited)
        assert all(times == 1 for times in limited.values())
        numbers = {step: int(client.hget(k.fair, f"n:{step}") or 0) for step in STEPS}
        lengths = Counter(step for (step, _), ids in sorted_by_key.items() for _ in ids)
        assert numbers == {step: lengths[step] for step in STEPS}
        assert turns == set() or any(numbers.values())

    @invariant()
    def what_is_held_is_counted(self) -> None:
        client, k = self.rig.client, self.rig.store.keys("q")
        holders = client.hgetall(k.unacked_keys)
        active = {key: int(number) for key, number in client.hgetall(k.unacked_by_key).items()}
        assert active == Counter(holders.values())
        if self.fair.states(["q"]) == [ON] and client.hexists(k.limits, "key_concurrency"):
            for run in self.runs:
                assert holders[f"{run.consumer.name}\x1e{run.delivery.tag}".encode()] == run.key.encode()
        for holder in holders.keys() - self.uncounted:
            consumer, tag = holder.decode().split("\x1e")
            assert client.hexists(k.unacked(consumer), tag), "a permit that nobody frees"

    # -- the end --

    def takes_all_that_is_allowed(self) -> None:
        check_fair(self.rig.store, ["q"], {})
        for _ in range(MOST):
            before = len(self.runs)
            self.take(0, 4, True)
            if len(self.runs) == before:
                return
        raise AssertionError("takes never end")

    def teardown(self) -> None:
        self.takes_all_that_is_allowed()
        held = Counter(run.key for run in self.runs)
        for (_, key), ids in self.found().sorted_by_key.items():
            own, allowed = self.own[key], self.allowed(key)
            is_slow = allowed.interval and own.tat - (allowed.burst - 1) * allowed.interval > self.now
            is_full = allowed.concurrency and held[key] >= allowed.concurrency
            assert own.is_paused or is_slow or is_full, f"{ids} of {key!r} could be taken"
        for key in KEYS:
            self.pause(key, False)
            self.limit_key(key, None, None, 1)
        self.limit(None, None, 1)
        self.requeue_dead()
        list(Archive(self.rig.store, FAILED).take_out("q", REQUEUE, self.rig.failed("q")))
        for number in range(MOST):
            while self.runs:
                self.ack_one(0)
            self.time_passes(100)
            self.takes_all_that_is_allowed()
            # One that was lost again and again is taken alone.
            if number >= 2 and not self.runs:
                break
        elsewhere = {id_of(text) for _, text in self.elsewhere}
        assert self.there == elsewhere, "some never run"
        self.fair.switch_off(["q"])
        taken(self.consumers[0], "q")
        assert self.fair.states(["q"]) == [PLAIN]
        finish(trim_failed(self.rig.store, Options().kept_failed, ["q"]))
        left = {name.rpartition(b"}:")[2] for name in self.rig.all_keys() if b"redisdelay:{q}:" in name}
        assert left <= {b"history", b"consumers", b"wake", b"control", b"duplicates", b"unknown"}


@may_search_for_long
@pytest.mark.in_all_orders
def test_each_message_is_in_one_place_and_no_limit_is_exceeded(database: Database) -> None:
    usual = 60 if isinstance(database, FakeDatabase) else 30
    run_machine(FairMachine, usual, name=database.name, database=database)


def a_third_follows_one_that_is_not_known(state: FairMachine) -> None:
    state.begin(is_fair=True, concurrency=None)
    state.limit_key(burst=2, concurrency=None, interval=2, key="b")
    state.give_back(how="returned", key="b", which=0)
    state.give_back(how="unknown", key="b", which=0)
    state.give_back(how="returned", key="b", which=0)


def one_that_was_lost_is_not_known(state: FairMachine) -> None:
    state.begin(is_fair=True, concurrency=None)
    state.limit(burst=2, concurrency=None, interval=2)
    state.lose_lease(key="é}:{ 1", which=0)
    state.give_back(how="unknown", key="é}:{ 1", which=576)
    state.task_fails(key="é}:{ 1", which=604)


@pytest.mark.parametrize(
    "steps",
    [a_third_follows_one_that_is_not_known, one_that_was_lost_is_not_known],
)
def test_what_has_failed_once(database: Database, steps: Callable[[FairMachine], None]) -> None:
    replay(steps, FairMachine, database=database)
