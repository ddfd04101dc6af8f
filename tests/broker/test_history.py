"""The history of a queue: what scripts count, and what is recorded of it each minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, RESULT
from kombu_redisdelay.broker.keys import Partitions
from kombu_redisdelay.broker.known_queues import UNUSED_FOR, forget_unused, record
from kombu_redisdelay.broker.message import REPLACE
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REQUEUE
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.operations.history import Counts, Period, QueueHistory, queue_history, unreadable_fields
from tests.broker.database import FAKE, RealDatabase, database
from tests.broker.rig import Rig, a_failure, dead_letter, park, payload, take_out, taken
from tests.environments import examples
from tools.harness.moved_clock import MovedClockServer, compiler

MINUTE, HOUR, WEEK = 60, 3600, 7 * 24 * 3600
NOTHING = Counts(0, 0, 0, 0)


def history(rig: Rig, queue: str = "q") -> QueueHistory:
    [found] = queue_history(rig.store, [queue])
    return found


def published(rig: Rig) -> int:
    """What was published according to the history, up to now."""
    found = history(rig)
    return found.totals.published + found.unrecorded


class TestTotals:
    """What happens to a message, and what is counted of it."""

    @pytest.fixture
    def delivery(self, rig: Rig) -> Delivery:
        """A message that the consumer "me" holds, in a queue that has a history."""
        rig.put("q", payload("m"))
        [delivery] = taken(rig.consumer(), "q")
        record(rig.store, ["q"])
        assert history(rig).totals == Counts(1, 1, 0, 0)
        return delivery

    def test_published_in_any_way(self, rig: Rig, delivery: Delivery) -> None:
        rig.put("q", payload("a"), payload("b"), step=3)
        rig.schedule("q", payload("c"), 1_000_000)
        assert history(rig).unrecorded == 3
        assert published(rig) == 4

    @pytest.mark.usefixtures("fair")
    def test_sorted_in_by_a_fair_queue(self, rig: Rig) -> None:
        rig.put("q", payload("a"), payload("b"), step=3)
        rig.put("q", payload("c"))
        assert len(taken(rig.consumer(), "q", limit=1)) == 1
        assert rig.ready("q") == rig.ready("q", 3) == []
        record(rig.store, ["q"])
        assert (history(rig).totals.published, published(rig)) == (3, 3)
        assert len(taken(rig.consumer(), "q")) == 2
        assert published(rig) == 3

    def test_acked(self, rig: Rig, delivery: Delivery) -> None:
        assert rig.ack(rig.consumer(), "q", delivery.tag)
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 0), 1)

    def test_failed(self, rig: Rig, delivery: Delivery) -> None:
        assert rig.consumer().requeue("q", delivery.tag)
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 1, 0), 1)
        taken(rig.consumer("other"), "q")
        assert (history(rig).totals, published(rig)) == (Counts(1, 2, 1, 0), 1)

    def test_put_back_unseen(self, rig: Rig, delivery: Delivery) -> None:
        rig.consumer().put_back([delivery])
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 0), 1)

    def test_lost_with_its_consumer(self, rig: Rig, delivery: Delivery) -> None:
        rig.end_lease("q")
        assert rig.recover("q") == 1
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 1, 0), 1)

    def test_delivery_limit(self, rig: Rig, delivery: Delivery) -> None:
        assert rig.consumer(delivery_limit=1).requeue("q", delivery.tag)
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 1, 1), 1)

    def test_dead_and_requeued(self, rig: Rig, delivery: Delivery) -> None:
        dead_letter(rig.consumer(), delivery, "why")
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 1), 1)
        assert take_out(rig.store, "q", REQUEUE) == 1
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 1), 1)

    def test_rejected(self, rig: Rig, delivery: Delivery) -> None:
        assert rig.consumer(options=Options(dead_letter=True)).discard("q", delivery.tag)
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 1), 1)

    def test_parked(self, rig: Rig, delivery: Delivery) -> None:
        park(rig.consumer(), delivery, "m", rig.database.now_ms() + 1_000_000)
        assert (history(rig).totals, published(rig)) == (Counts(1, 1, 0, 0), 1)

    def test_cancelled(self, rig: Rig, delivery: Delivery) -> None:
        for number in range(3):
            rig.schedule("q", payload(str(number)), 1_000_000, id=str(number))
        schedule = Schedule(rig.store)
        assert schedule.cancel("q", ["0"]) == [1]
        [first, _] = schedule.iter("q", None, None)
        assert list(schedule.remove("q", [first])) == [first]
        assert published(rig) == 4

    def test_purged(self, rig: Rig, delivery: Delivery) -> None:
        rig.put("q", payload("a"))
        for number in range(3):
            rig.schedule("q", payload(str(number)), 1_000_000)
        Schedule(rig.store).clear("q")
        rig.store.purge("q")
        assert published(rig) == 5

    def test_replaced(self, rig: Rig, delivery: Delivery) -> None:
        for text in ("a", "b", "c"):
            rig.schedule("q", payload(text), 1_000_000, id="same", on_conflict=REPLACE)
        assert published(rig) == 4

    def test_taken_by_a_stock_worker(self, rig: Rig, delivery: Delivery) -> None:
        rig.put("q", payload("a"), payload("b"))
        rig.database.client.rpop(rig.store.keys("q").ready)
        assert published(rig) == 2, "the one that nobody saw come or go is missing"
        rig.database.client.rpop(rig.store.keys("q").ready)
        rig.database.client.hdel(rig.store.keys("q").history, "minute")
        record(rig.store, ["q"])
        assert history(rig).totals.published == 1, "it never shrinks"


def test_a_queue_without_acks_has_none(rig: Rig) -> None:
    rig.put("q", payload("m"))
    taken(rig.consumer(), "q", no_ack=["q"])
    record(rig.store, ["q"])
    assert history(rig) == QueueHistory("q", NOTHING, 0, [], [])
    assert rig.all_keys("*history*") == []


def test_purging_and_cancelling_begin_none(rig: Rig) -> None:
    rig.schedule("q", payload("m"), 1_000_000, id="m")
    Schedule(rig.store).cancel("q", ["m"])
    rig.store.purge("q")
    assert rig.all_keys("*history*") == []


def test_many_queues(rig: Rig) -> None:
    queues = [f"q{number}" for number in range(25)]
    me = rig.consumer()
    for queue in queues:
        rig.put(queue, payload("m"))
        taken(me, queue)
    record(rig.store, queues)
    assert [found.totals for found in queue_history(rig.store, queues)] == 25 * [Counts(1, 1, 0, 0)]


def test_a_key_of_another_type_stops_nothing(rig: Rig) -> None:
    for queue in ("broken", "q"):
        rig.put(queue, payload("m"))
    rig.client.set(rig.store.keys("broken").history, "what is this?")
    me = rig.consumer()
    assert len(taken(me, "broken", "q")) == 2
    record(rig.store, ["broken", "q"])
    assert history(rig).totals == Counts(1, 1, 0, 0)


@pytest.mark.parametrize("field", ["minute", "hour", "minutes", "hours", "delivered", "flow"])
@pytest.mark.parametrize("value", ["what is this?", "12 what is this?", "what\nis\nthis?", "-1"])
def test_a_foreign_value_stops_nothing(rig: Rig, field: str, value: str) -> None:
    long_ago = {"minute": "1 0 0 0 0 0 0 0 0", "hour": "1 0 0 0 0 0 0 0 0"}
    me, keys = rig.consumer(), [rig.store.keys(queue).history for queue in ("broken", "q")]
    for queue, key in zip(("broken", "q"), keys, strict=True):
        rig.put(queue, payload("m"))
        taken(me, queue)
        rig.client.hset(key, mapping=long_ago)
    rig.client.hset(keys[0], field, value)
    record(rig.store, ["broken", "q"])
    assert [period.counts.delivered for period in history(rig).minutes] == [1, 0]
    # What is counted in stays as it is, and the doctor tells of it.
    assert set(unreadable_fields(rig.store, "broken")) <= {"delivered"}


@pytest.mark.parametrize("is_recorded", [True, False])
def test_outlives_its_queue(rig: Rig, is_recorded: bool) -> None:
    rig.store.remember("q")
    rig.put("q", payload("m"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    assert rig.ack(me, "q", delivery.tag)
    if is_recorded:
        record(rig.store, ["q"])
    me.membership.leave(["q"])
    rig.database.advance(round(UNUSED_FOR * 1000) + 1000)
    assert finish(forget_unused(rig.new_store())) == 1
    key = rig.store.keys("q").history
    assert rig.all_keys() == [key.encode()]
    assert 0 < rig.client.pttl(key) <= WEEK * 1000
    assert history(rig).totals.delivered == 1

    # Whoever uses the queue again goes on with it.
    rig.client.pexpire(key, 100_000)
    rig.put("q", payload("m"))
    taken(rig.consumer(), "q")
    record(rig.store, ["q"])
    assert history(rig).totals.delivered == 2
    if not is_recorded:
        # The first record of a minute makes it last again.
        assert rig.client.pttl(key) > 100_000


def test_of_a_queue_that_nobody_looks_after_it_is_kept_for_an_hour(rig: Rig) -> None:
    """As of a queue for replies, which is deleted when its consumer goes."""
    key = rig.store.keys("q").history
    rig.put("q", payload("a"))
    taken(rig.consumer(), "q")
    assert 0 < rig.client.pttl(key) <= HOUR * 1000
    record(rig.store, ["q"])
    assert rig.client.pttl(key) > HOUR * 1000
    # A worker was there before the first message.
    rig.client.hdel(key, "delivered")
    rig.put("q", payload("b"))
    taken(rig.consumer(), "q")
    assert rig.client.pttl(key) > HOUR * 1000


@pytest.mark.parametrize(("messages", "hours"), [(10, 0), (11, 0), (10, 1)])
def test_of_a_queue_that_was_used_for_a_moment_it_is_kept_for_an_hour(
    rig: Rig, messages: int, hours: int
) -> None:
    rig.store.remember("q")
    me = rig.consumer()
    rig.put("q", *(payload("m") for _ in range(messages)))
    for delivery in taken(me, "q", limit=messages):
        assert rig.ack(me, "q", delivery.tag)
    record(rig.store, ["q"])
    if hours:
        rig.client.hset(rig.store.keys("q").history, "hours", "1 3600 10 10 0 0 0 0 0 0\n")
    me.membership.leave(["q"])
    rig.database.advance(round(UNUSED_FOR * 1000) + 1000)
    assert finish(forget_unused(rig.new_store())) == 1
    left_ms = rig.client.pttl(rig.store.keys("q").history)
    assert (0 < left_ms <= HOUR * 1000) == (messages == 10 and not hours)


def test_expires_with_its_queue(rig: Rig) -> None:
    rig.expires_ms["q"] = 50_000
    rig.put("q", payload("m"))
    taken(rig.consumer(), "q")
    key = rig.store.keys("q").history
    assert 0 < rig.client.pttl(key) <= 50_000
    rig.client.delete(key)
    record(rig.store, ["q"])
    assert 0 < rig.client.pttl(key) <= 50_000


def test_what_an_older_release_does_not_know() -> None:
    """It writes and reads eight counts. Of those that it has not noted, nothing is known until the next
    minute."""

    def end(rig: Rig, **each: str) -> None:
        for id, lost in each.items():
            rig.put("q", payload(id))
            [delivery] = taken(rig.consumer(), "q")
            rig.fail(rig.consumer(), "q", delivery.tag, a_failure(id)._replace(returned=lost))
        record(rig.store, ["q"])
        fake.advance(MINUTE * 1000)
        record(rig.store, ["q"])

    with database(FAKE) as fake:
        rig = Rig(fake)
        key = rig.store.keys("q").history
        rig.put("q", payload("first"))
        taken(rig.consumer(), "q")
        record(rig.store, ["q"])
        end(rig, a="")
        assert len(rig.client.hget(key, "minutes").split()) == 2 + 8
        end(rig, b=RESULT)
        for field_ in ("minute", "hour"):
            noted = rig.client.hget(key, field_).split()
            assert len(noted) == 1 + len(astuple(NOTHING))
            rig.client.hset(key, field_, b" ".join(noted[:9]))
        end(rig, c=HOOK, d="")
        end(rig, e=CONTINUATION)
        ended = [minute.counts for minute in history(rig).minutes if minute.counts.delivered]
        assert [(each.failed, each.returned, each.continuations) for each in ended] == [
            *((1, 0, 0), (0, 1, 0), (1, 0, 0), (0, 1, 1))
        ]
        assert unreadable_fields(rig.store, "q") == []


@dataclass
class Model:
    """What a history should say.

    Attributes:
        now: seconds since the epoch.
        counts: what has happened so far.
        marks: length of a span -> when the present one began, and the counts then.
        spans: length of a span -> those that have ended and in which something happened.
    """

    now: int
    counts: Counts = NOTHING
    marks: dict[int, tuple[int, Counts]] = field(default_factory=dict)
    spans: dict[int, list[tuple[int, int, Counts]]] = field(default_factory=lambda: {MINUTE: [], HOUR: []})

    def happened(self, **counts: int) -> None:
        self.counts += Counts(**{"published": 0, "delivered": 0, "failures": 0, "dead": 0, **counts})

    def record(self) -> None:
        if MINUTE in self.marks and self.marks[MINUTE][0] // MINUTE == self.now // MINUTE:
            return
        for unit, spans in self.spans.items():
            start, before = self.marks.get(unit, (self.now, self.counts))
            if unit in self.marks and start // unit == self.now // unit:
                continue
            if self.counts != before:
                spans.append((start, self.now - start, self.counts - before))
            self.marks[unit] = self.now, self.counts

    def expected(self, unit: int, kept: int) -> list[tuple[int, int, Counts]]:
        start, before = self.marks[unit]
        present = (start, self.now - start, self.counts - before)
        return [span for span in (*self.spans[unit], present) if span[0] + span[1] > self.now - kept]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([1, 20, 59, 60, 61, 600, 3599, 4000, 90_000, WEEK])),
        st.tuples(st.sampled_from(["put", "schedule", "take", "fail", "die", "cancel"]), st.integers(1, 4)),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def fake_rig() -> Iterator[Rig]:
    with database(FAKE) as fake:
        yield Rig(fake)


@given(steps=_STEPS)
# A period that is longer than an hour, and has ended in this one.
@pytest.mark.once
@example(steps=[("put", 1), ("pass", 90_000), ("put", 1), ("pass", 59)])
@example(steps=[("put", 1), ("pass", 90_000), ("put", 1), ("pass", 61)])
@settings(max_examples=examples(150))
def test_says_what_has_happened(fake_rig: Rig, steps: list[tuple[str, int]]) -> None:
    rig = fake_rig
    rig.database.reset()
    me = rig.consumer()
    rig.put("q", payload("first"))
    taken(me, "q")
    model = Model(rig.database.now_us() // 1_000_000, Counts(1, 1, 0, 0))
    numbers = iter(range(10**6))
    for what, count in (*steps, ("pass", 1)):
        record(rig.store, ["q"])
        model.record()
        if what == "pass":
            rig.database.advance(count * 1000)
            model.now = rig.database.now_us() // 1_000_000
            continue
        for _ in range(count):
            id = str(next(numbers))
            if what == "put":
                rig.put("q", payload(id))
                model.happened(published=1)
            elif what == "schedule":
                rig.schedule("q", payload(id), 10 * WEEK * 1000, id=id)
                model.happened(published=1)
            elif what == "cancel":
                for found in list(Schedule(rig.store).iter("q", None, None))[:1]:
                    Schedule(rig.store).cancel("q", [found.member.decode()])
            else:
                for delivery in taken(me, "q", limit=1):
                    model.happened(delivered=1)
                    if what == "fail":
                        me.requeue("q", delivery.tag)
                        model.happened(failures=1)
                    elif what == "die":
                        dead_letter(me, delivery, "why")
                        model.happened(dead=1)
    told = history(rig)
    assert told.totals + Counts(told.unrecorded, 0, 0, 0) == model.counts
    assert _plain(told.minutes) == model.expected(MINUTE, HOUR)
    assert _plain(told.hours) == model.expected(HOUR, WEEK)


def _plain(periods: Sequence[Period]) -> list[tuple[int, int, Counts]]:
    return [(int(each.start.timestamp()), each.seconds, each.counts) for each in periods]


@pytest.mark.once
def test_is_bounded() -> None:
    """More than a week of a queue in which something happens each hour, and at last every twelve minutes."""
    with database(FAKE) as fake:
        rig = Rig(fake)
        me = rig.consumer()
        for minutes in (*[60] * 9 * 24, *[12] * 10):
            rig.put("q", payload("m"))
            taken(me, "q")
            record(rig.store, ["q"])
            fake.advance(minutes * 60_000)
        found = history(rig)
        assert len(found.minutes) == HOUR // 720
        # One more if the week begins within an hour.
        assert WEEK // HOUR <= len(found.hours) <= WEEK // HOUR + 1
        lines = rig.client.hget(rig.store.keys("q").history, "hours").splitlines()
        assert len(lines) <= WEEK // HOUR + 2


@pytest.mark.skipif(compiler() is None, reason="needs a C compiler to move the clock of a server")
def test_a_clock_that_is_set() -> None:
    with MovedClockServer() as server:
        rig = Rig(RealDatabase(server))
        me = rig.consumer()

        def happen() -> None:
            rig.put("q", payload("m"))
            taken(me, "q")
            record(rig.store, ["q"])

        happen()
        for _ in range(3):
            server.jump(70)
            happen()
        assert [each.counts.delivered for each in history(rig).minutes] == [1, 1, 1, 0]
        server.jump(-30 * 24 * 3600)
        happen()
        server.jump(70)
        happen()
        found = history(rig)
        assert found.totals == Counts(6, 6, 0, 0)
        # What was written when the clock was ahead is gone, so that it does not stay for a month.
        assert [each.counts.delivered for each in found.minutes] == [1, 0]


def test_partitions_are_added(rig: Rig) -> None:
    rig.store.partitions = Partitions({"q": 2})
    me = rig.consumer()
    for queue, count in (("q", 1), ("q#1", 2)):
        rig.put(queue, *count * [payload("m")])
        taken(me, queue)
    record(rig.store, ["q", "q#1"])
    rig.put("q#1", payload("n"))
    found = history(rig)
    assert (found.queue, found.totals, found.unrecorded) == ("q", Counts(3, 3, 0, 0), 1)
    [minute] = found.minutes
    assert minute.counts == Counts(1, 0, 0, 0)
