"""A task that a consumer does not know is left to others, and a consumer that knows it fetches it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Request, Taken, Waiting
from kombu_redisdelay.broker.limits import LimitStore
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REQUEUE
from kombu_redisdelay.broker.schedule import Schedule, Withdrawal
from kombu_redisdelay.broker.unknown_tasks import LONGEST_NAME, TASKS_PER_CALL, find_waiting, is_known, listed
from tests.broker.rig import Rig, dead_letter, payload, take_out, taken, takes_of, texts, with_count

HOUR = 3_600_000
MINUTE = 60_000
#: More than the time that a test takes.
SLACK = 20_000
OPTIONS = Options(unknown_task_wait=HOUR / 1000)


def leave(consumer: Consumer, *ids: str, task: str = "t", queue: str = "q") -> None:
    """Have *consumer* take messages and leave them to others: first those with these ids that are ready."""
    deliveries = taken(consumer, queue, limit=len(ids))
    assert len(deliveries) == len(ids)
    for delivery in deliveries:
        id = next(id for id in ids if f'"{id}"' in delivery.payload.decode())
        consumer.defer_unknown(queue, delivery.tag, id, task)
    consumer.confirm_acks()


def known(consumer: Consumer, *tasks: str, queues: Sequence[str] = ("q",)) -> dict[str, list[Waiting]]:
    """What a consumer that knows *tasks* finds."""
    found = takes_of(consumer, queues).waiting_tasks({})
    return {
        queue: [each for each in some[0] if is_known(each.task, tasks)]
        for queue, some in found.items()
        if some is not None
    }


def fetch(consumer: Consumer, *tasks: str, limit: int = 64, queues: Sequence[str] = ("q",)) -> Taken:
    """Take, as a consumer that knows *tasks*."""
    return consumer.take(Request(queues, limit, known=known(consumer, *tasks, queues=queues)))


def ids(taken: Taken) -> list[str]:
    return [delivery.payload.decode().split('"id": "')[1].split('"')[0] for delivery in taken.deliveries]


def entries(rig: Rig, queue: str = "q") -> int:
    return int(rig.client.zcard(rig.store.keys(queue).unknown))


@pytest.fixture
def old(rig: Rig) -> Consumer:
    return rig.consumer("old", options=OPTIONS)


@pytest.fixture
def new(rig: Rig) -> Consumer:
    return rig.consumer("new", options=OPTIONS)


class TestLeaving:
    def test_is_no_failed_delivery(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"), step=3)
        before_ms = rig.database.now_ms()
        leave(old, "a")
        [stored] = rig.scheduled("q")
        assert stored.startswith('3:{"redisdelay-unknown": ')
        since_ms = int(stored.split(": ")[1].split(",")[0])
        assert before_ms - 1 <= since_ms <= rig.database.now_ms()
        assert (rig.unacked("q", "old"), rig.ready("q", 3)) == ({}, [])

    def test_a_count_of_failures_stays(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", with_count(payload("a"), 2))
        leave(old, "a")
        assert rig.scheduled("q")[0].startswith('0:{"redisdelay-deliveries": 2, "redisdelay-unknown": ')

    def test_done_twice_it_changes_nothing(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        [delivery] = taken(old, "q")
        for _ in range(2):
            old.defer_unknown("q", delivery.tag, "a", "t")
            old.confirm_acks()
        assert (len(rig.scheduled("q")), entries(rig)) == (1, 1)
        assert rig.missed_acks == [("q", delivery.tag)]

    def test_others_get_it_later_and_later(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        for minutes in (1, 1, 2, 4, 8, 16):
            [(_, due_ms)] = rig.client.zrange(rig.store.keys("q").schedule, 0, 0, withscores=True)
            in_ms = due_ms - rig.database.now_ms()
            assert abs(in_ms - minutes * MINUTE) < SLACK
            rig.database.advance(int(in_ms) + 2)
            leave(old, "a")
        assert entries(rig) == 1

    def test_and_for_the_last_time_when_it_is_to_be_given_up(self, rig: Rig) -> None:
        old = rig.consumer("old", options=Options(unknown_task_wait=90))
        rig.put("q", payload("a"))
        leave(old, "a")
        rig.database.advance(MINUTE + SLACK // 2)
        leave(old, "a")
        rig.database.advance(MINUTE // 2)
        reply = old.take(Request(["q"], 1))
        [delivery] = reply.deliveries
        since_ms = int(delivery.payload.decode().split(": ")[1].split(",")[0])
        assert reply.now_ms - since_ms >= 90_000

    def test_gives_back_what_a_rate_has_allowed(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"), payload("b"), payload("c"))
        LimitStore(rig.store).limit(["q"], {"interval_us": HOUR * 1000.0, "burst": 1})
        leave(old, "a")
        leave(old, "b")
        assert [*map(len, (taken(old, "q"), taken(old, "q")))] == [1, 0]

    def test_makes_room_where_the_concurrency_is_limited(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"), payload("b"))
        LimitStore(rig.store).limit(["q"], {"concurrency": 1})
        [a] = taken(old, "q")
        rig.use_up_token("q")
        old.defer_unknown("q", a.tag, "a", "t")
        old.confirm_acks()
        assert rig.tokens("q") == 1
        assert texts(taken(old, "q")) == [payload("b")]

    def test_its_list_does_not_stay_for_ever(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        assert HOUR < rig.client.pttl(rig.store.keys("q").unknown) <= 2 * HOUR
        rig.expires_ms["q"] = MINUTE
        rig.put("q", payload("b"))
        leave(rig.consumer("other", options=OPTIONS), "b")
        assert rig.client.pttl(rig.store.keys("q").unknown) <= MINUTE

    def test_what_left_the_schedule_is_forgotten_bit_by_bit(self, rig: Rig, old: Consumer) -> None:
        for number in range(30):
            rig.put("q", payload(f"m{number}"))
            leave(old, f"m{number}")
            Schedule(rig.store).cancel("q", [f"m{number}"])
        assert entries(rig) < 10


class TestFetching:
    def test_nobody_else_gets_it(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("a"), step=3)
        leave(old, "a")
        assert fetch(new, "other").deliveries == []
        assert ids(fetch(new, "other", "t")) == ["a"]
        assert (rig.scheduled("q"), len(rig.unacked("q", "new")), entries(rig)) == ([], 1, 0)

    def test_the_oldest_first_of_each_task_in_turn(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        for id, task in (("2", "a"), ("1", "a"), ("4", "b"), ("3", "b")):
            rig.put("q", payload(id))
            leave(old, id, task=task)
            rig.database.advance(1000)
        assert ids(fetch(new, "a", "b")) == ["2", "4", "1", "3"]

    def test_in_turn_with_what_is_ready(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        for number in range(3):
            rig.put("q", payload(f"w{number}"))
            leave(old, f"w{number}")
        rig.put("q", *(payload(f"r{number}") for number in range(5)))
        found = ids(fetch(new, "t"))
        assert sorted(found[:6]) == ["r0", "r1", "r2", "w0", "w1", "w2"]
        assert all(one[0] != other[0] for one, other in pairwise(found[:6]))
        assert found[6:] == ["r3", "r4"]

    def test_one_at_a_time_both_get_their_turn(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        count = 40
        for number in range(count):
            rig.put("q", payload(f"w{number}"))
        leave(old, *(f"w{number}" for number in range(count)))
        rig.put("q", *(payload(f"r{number}") for number in range(count)))
        kinds = {ids(fetch(new, "t", limit=1))[0][0] for _ in range(count)}
        assert kinds == {"r", "w"}

    def test_a_higher_priority_goes_first(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("low"), step=6)
        rig.put("q", payload("high"), step=3)
        leave(old, "low", "high")
        rig.put("q", payload("first"), step=0)
        rig.put("q", payload("last"), step=9)
        assert ids(fetch(new, "t")) == ["first", "high", "low", "last"]

    def test_not_from_a_paused_queue(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        LimitStore(rig.store).pause(["q"])
        reply = fetch(new, "t")
        assert (reply.deliveries, reply.more) == ([], {})
        LimitStore(rig.store).resume(["q"])
        assert ids(fetch(new, "t")) == ["a"]

    def test_no_faster_than_the_rate(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", *(payload(id) for id in "abc"))
        leave(old, *"abc")
        LimitStore(rig.store).limit(["q"], {"interval_us": HOUR * 1000.0, "burst": 2})
        reply = fetch(new, "t")
        assert len(reply.deliveries) == 2
        # It comes when the rate allows the next one: nobody else may know the task.
        assert 0 < reply.due["q"] <= 3600
        rig.database.advance(HOUR)
        assert len(fetch(new, "t").deliveries) == 1

    def test_no_more_than_the_concurrency(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", *(payload(id) for id in "abc"))
        leave(old, *"abc")
        LimitStore(rig.store).limit(["q"], {"concurrency": 2})
        reply = fetch(new, "t")
        assert len(reply.deliveries) == 2
        assert 0 < reply.due["q"] < 1
        assert rig.ack(new, "q", reply.deliveries[0].tag)
        assert len(fetch(new, "t").deliveries) == 1

    def test_the_rest_is_told_of(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", *(payload(id) for id in "abc"))
        leave(old, *"abc")
        assert [*fetch(new, "t", limit=2).more] == ["q"]
        assert [*fetch(new, "t", limit=2).more] == []

    def test_a_lost_reply_is_given_again(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", *(payload(id) for id in "abc"))
        leave(old, *"abc")
        rig.exchange(new, Request(["q"], 2, known=known(new, "t")))
        held = rig.unacked("q", "new")
        reply = fetch(new, "t")
        assert {delivery.tag for delivery in reply.deliveries} == held.keys()
        assert len(rig.scheduled("q")) == 1

    @pytest.mark.many_messages
    def test_what_left_the_schedule_hides_nothing(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        gone = [f"m{number}" for number in range(150)]
        rig.put("q", *map(payload, gone))
        for first in range(0, len(gone), 50):
            leave(old, *gone[first : first + 50])
        rig.database.advance(1000)
        rig.put("q", payload("last"))
        leave(old, "last")
        Schedule(rig.store).cancel("q", gone)
        found: list[str] = []
        for _ in range(10):
            found += ids(fetch(new, "t"))
        assert (found, entries(rig)) == (["last"], 0)

    def test_only_what_waits(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        """Not a retry under the same id, which is not due."""
        rig.put("q", payload("a"))
        leave(old, "a")
        Schedule(rig.store).cancel("q", ["a"])
        rig.schedule("q", payload("a"), 2 * HOUR, id="a")
        assert known(new, "t") == {"q": []}
        request = Request(["q"], 5, known={"q": [Waiting("t", "0", None)]})
        assert new.take(request).deliveries == []
        assert rig.scheduled("q") == ["0:" + payload("a")]

    def test_not_what_an_operator_has_moved_to_another_time(
        self, rig: Rig, old: Consumer, new: Consumer
    ) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        [found] = Schedule(rig.store).find("q", "a")
        Schedule(rig.store).reschedule(found, found.payload, rig.database.now_ms() + 2 * HOUR)
        assert fetch(new, "t").deliveries == []
        assert rig.scheduled("q") == ["0:" + payload("a")]

    def test_two_with_one_id(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        for text in (payload("a"), payload("a", n=2)):
            rig.put("q", text)
            leave(old, "a")
        assert len(fetch(new, "t").deliveries) == 2
        assert (entries(rig), rig.listed_duplicates("q")) == (0, set())

    def test_a_large_one(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("a", body="x" * 400_000), payload("b"))
        leave(old, "a")
        leave(old, "b")
        found = ids(fetch(new, "t"))
        assert found + ids(fetch(new, "t")) == ["a", "b"]

    def test_from_one_of_many_queues(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        queues = [f"q{number}" for number in range(40)]
        rig.put("q30", payload("a"))
        leave(old, "a", queue="q30")
        assert takes_of(new, queues).peek().any_unknown
        found = known(new, "t", queues=queues)
        reply = new.take(Request(queues, 5, polled=["q30"], known=found))
        assert ids(reply) == ["a"]
        assert not takes_of(new, queues).peek().any_unknown


class TestTasks:
    @pytest.mark.parametrize(
        "task", ["", "a b", "#a", "a\x1fb", "a\x1e", "ä" * LONGEST_NAME, "\ud800", "a\n"]
    )
    def test_of_any_name(self, rig: Rig, old: Consumer, new: Consumer, task: str) -> None:
        rig.put("q", payload("a"))
        leave(old, "a", task=task)
        assert fetch(new, "other", task[:-1] or "x").deliveries == []
        assert ids(fetch(new, task)) == ["a"]

    def test_say_since_when_they_wait(self, rig: Rig, old: Consumer) -> None:
        for id, task in (("1", "a"), ("2", "a"), ("3", "b")):
            rig.put("q", payload(id))
            leave(old, id, task=task)
            rig.database.advance(MINUTE // 4)
        rig.put("q", payload("4"), step=3)
        leave(old, "4", task="a")
        found, after = find_waiting(rig.store, {"q": ""})["q"]
        assert after == ""
        assert [each[:2] for each in found] == [("a", "0"), ("a", "3"), ("b", "0")]
        now_ms = rig.database.now_ms()
        quarters = [round(4 * (now_ms - (each.since_ms or 0)) / MINUTE) for each in found]
        assert quarters == [3, 0, 1]

    @pytest.mark.many_messages
    def test_are_read_part_by_part(self, rig: Rig, old: Consumer) -> None:
        names = sorted(f"task{number}" for number in range(TASKS_PER_CALL + 10))
        for name in names:
            rig.put("q", payload(name))
            leave(old, name, task=name)
        found, after = find_waiting(rig.store, {"q": ""})["q"]
        rest, end = find_waiting(rig.store, {"q": after})["q"]
        assert [each.task for each in found + rest] == names
        assert end == ""

    def test_a_consumer_forgets_those_of_which_none_waits(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", *(payload(f"m{number}") for number in range(50)))
        leave(old, *(f"m{number}" for number in range(50)))
        Schedule(rig.store).cancel("q", [f"m{number}" for number in range(50)])
        for _ in range(3):
            known(old)
        assert entries(rig) == 0

    def test_a_long_name_is_listed_in_short(self) -> None:
        assert listed("proj.tasks.add") == "proj.tasks.add"
        assert len(listed("x" * 10_000)) < 50


class TestOtherOperations:
    """Each of them leaves nothing behind."""

    def test_purge(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        assert rig.store.purge("q") == 1
        assert entries(rig) == 0

    def test_clear(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        assert Schedule(rig.store).clear("q") == 1
        assert entries(rig) == 0

    def test_revoke(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        assert len([*Withdrawal(rig.store).by_ids("q", ["a"])]) == 1
        assert fetch(new, "t").deliveries == []

    def test_a_dead_letter_does_not_wait_and_has_the_whole_time_again(self, rig: Rig, old: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        rig.database.advance(HOUR)
        [delivery] = taken(old, "q")
        dead_letter(old, delivery, "no worker knows it")
        assert rig.dead("q")[0].endswith("\n" + payload("a"))
        assert take_out(rig.store, "q", REQUEUE) == 1
        assert texts(taken(old, "q")) == [payload("a")]

    def test_what_a_dead_consumer_held_goes_on_waiting(self, rig: Rig, old: Consumer, new: Consumer) -> None:
        rig.put("q", payload("a"))
        leave(old, "a")
        fetch(new, "t")
        rig.end_lease("q", "new")
        assert rig.recover("q") == 1
        [text] = rig.ready("q")
        assert text.startswith('{"redisdelay-deliveries": 1, "redisdelay-')
        assert '"redisdelay-unknown": ' in text
