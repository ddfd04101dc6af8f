"""Consumers that are gone, and what becomes of what they held."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from kombu_redisdelay.broker import recovery
from kombu_redisdelay.broker.lease import MOST_LEFT
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, finish
from kombu_redisdelay.broker.recovery import CONSUMERS_PER_LOOK, Recovery
from tests.broker.rig import WATCH_SECONDS, Rig, payload, taken, texts, with_count

MIB = 1024 * 1024
HOUR_MS = 3_600_000


def dead_process() -> str:
    """The name of a consumer whose process on this machine is gone."""
    program = "from kombu_redisdelay.broker.processes import new_consumer as n; print(n())"
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


class TestLeaseThatEnded:
    def test_gives_back_to_the_head_in_order_marked(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.put("q", *(payload(str(n)) for n in range(12)))
        rig.put("q", payload("low"), step=9)
        lost = rig.consumer("lost")
        taken(lost, "q", limit=11)
        rig.put("q", payload("new"))
        rig.end_lease("q", "lost")
        assert rig.recover("q") == 11
        again = [with_count(payload(str(n)), 1, lost=1) for n in range(11)]
        assert rig.ready("q") == [*again, payload("11"), payload("new")]
        assert rig.unacked("q", "lost") == {}
        assert rig.client.zscore(rig.key("q", "consumers"), "lost") is None
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert "11 message(s)" in record.getMessage()
        assert "lost" in record.getMessage()

    def test_each_goes_to_its_own_step(self, rig: Rig) -> None:
        rig.put("q", payload("low"), step=9)
        rig.put("q", payload("high"))
        taken(rig.consumer("lost"), "q")
        rig.end_lease("q", "lost")
        rig.recover("q")
        assert rig.ready("q", 9) == [with_count(payload("low"), 1, lost=1)]
        assert rig.ready("q", 0) == [with_count(payload("high"), 1, lost=1)]

    def test_wakes(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer("lost"), "q")
        rig.end_lease("q", "lost")
        assert rig.tokens("q") == 0
        rig.recover("q")
        assert rig.tokens("q") == 1

    @pytest.mark.parametrize("count", [500, 501, 1201])
    def test_order_of_more_than_one_call_moves(self, rig: Rig, count: int) -> None:
        everything = [payload(f"{n:04}") for n in range(count)]
        rig.put("q", *everything)
        lost = rig.consumer("lost")
        while taken(lost, "q", limit=500):
            pass
        rig.end_lease("q", "lost")
        assert rig.recover("q") == count
        assert rig.ready("q") == [with_count(text, 1, lost=1) for text in everything]

    def test_order_of_more_bytes_than_one_call_moves(self, rig: Rig) -> None:
        rig.put("q", *(str(n) * MIB for n in range(9)))
        lost = rig.consumer("lost")
        while taken(lost, "q"):
            pass
        rig.end_lease("q", "lost")
        assert rig.recover("q") == 9
        assert [text[0] for text in rig.ready("q")] == [str(n) for n in range(9)]

    def test_is_a_failure_once_it_was_held_alone_and_buries_at_the_limit(self, rig: Rig) -> None:
        rig.put("q", payload("poison"))
        for attempt in range(5):
            lost = rig.consumer(f"lost{attempt}", delivery_limit=3)
            poison = with_count(payload("poison"), attempt, min(attempt, 2))
            assert texts(taken(lost, "q", limit=1)) == [poison]
            rig.end_lease("q", f"lost{attempt}")
            rig.recover("q", rig.recoverer(delivery_limit=3))
        assert rig.ready("q") == []
        assert len(rig.dead("q")) == 1

    def test_a_suspect_goes_to_the_tail(self, rig: Rig) -> None:
        rig.put("q", payload("poison"), payload("innocent"))
        for attempt in range(3):
            lost = rig.consumer(f"lost{attempt}")
            assert texts(taken(lost, "q", limit=1)) == [with_count(payload("poison"), attempt, lost=attempt)]
            rig.end_lease("q", f"lost{attempt}")
            rig.recover("q")
        assert rig.ready("q") == [payload("innocent"), with_count(payload("poison"), 3, lost=3)]

    def test_held_nothing_is_forgotten(self, rig: Rig) -> None:
        rig.put("q", "m")
        lost = rig.consumer("lost")
        [delivery] = taken(lost, "q")
        lost.ack("q", delivery.tag)
        rig.end_lease("q", "lost")
        assert rig.recover("q") == 0
        assert rig.all_keys() == [rig.key("q", "history").encode()]

    def test_late_acks_find_nothing(self, rig: Rig) -> None:
        rig.put("q", "m")
        lost = rig.consumer("lost")
        [delivery] = taken(lost, "q")
        rig.end_lease("q", "lost")
        rig.recover("q")
        assert not rig.ack(lost, "q", delivery.tag)
        assert not lost.requeue("q", delivery.tag)
        assert lost.lost_tags("q", [delivery.tag]) == {delivery.tag}
        assert rig.ready("q") == ["m"]

    def test_other_queues_are_left_alone(self, rig: Rig) -> None:
        rig.put("a", "m")
        rig.put("b", "n")
        lost = rig.consumer("lost")
        taken(lost, "a", "b")
        rig.end_lease("a", "lost")
        rig.end_lease("b", "lost")
        rig.recover("a")
        assert len(rig.unacked("b", "lost")) == 1


class TestLeaseThatLasts:
    def test_keeps_everything(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer("alive"), "q")
        rig.database.advance(50_000)
        assert rig.recover("q") == 0
        assert len(rig.unacked("q", "alive")) == 1

    def test_ends_by_the_servers_clock(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer("lost"), "q")
        rig.database.advance(61_000)
        assert rig.recover("q") == 1

    def test_taking_renews(self, rig: Rig) -> None:
        rig.put("q", "m", "n")
        alive = rig.consumer("alive")
        taken(alive, "q", limit=1)
        rig.end_lease("q", "alive")
        taken(alive, "q", limit=1)
        assert rig.recover("q") == 0

    def test_own_lease_that_ended_is_not_recovered(self, rig: Rig) -> None:
        """Whoever is able to recover is alive."""
        rig.put("q", "m")
        late = rig.consumer("late")
        taken(late, "q")
        rig.end_lease("q", "late")
        assert rig.recover("q", rig.recoverer("late")) == 0
        assert len(rig.unacked("q", "late")) == 1


class TestLeaseThatLooksEnded:
    """The server's clock has jumped ahead, or the server was away."""

    def test_the_living_have_time_to_renew_it(self, rig: Rig) -> None:
        rig.put("q", "m", "n")
        alive, other = rig.consumer("alive"), rig.recoverer()
        taken(alive, "q", limit=1)
        finish(other.recover(["q"]))
        rig.database.advance(HOUR_MS)
        assert finish(other.recover(["q"])) == 0
        rig.wait(WATCH_SECONDS - 1)
        assert finish(other.recover(["q"])) == 0
        taken(alive, "q", limit=1)
        rig.wait(1)
        assert finish(other.recover(["q"])) == 0
        assert len(rig.unacked("q", "alive")) == 2

    def test_a_newcomer_looks_on_first(self, rig: Rig) -> None:
        rig.put("q", "m")
        taken(rig.consumer("lost"), "q")
        rig.database.advance(HOUR_MS)
        other = rig.recoverer()
        assert finish(other.recover(["q"])) == 0
        rig.wait(WATCH_SECONDS)
        assert finish(other.recover(["q"])) == 1


class TestProcessThatIsGone:
    def test_does_not_wait_for_the_lease(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        name = dead_process()
        rig.put("q", payload("m"))
        taken(rig.consumer(name), "q")
        assert rig.recover("q") == 1
        assert rig.ready("q") == [with_count(payload("m"), 1, lost=1)]
        assert "process is gone" in caplog.text

    def test_elsewhere_waits_for_the_lease(self, rig: Rig) -> None:
        _, rest = dead_process().split(":", 1)
        rig.put("q", "m")
        taken(rig.consumer(f"another-machine:{rest}"), "q")
        assert rig.recover("q") == 0


class TestGiveBackAll:
    def test_everything_at_once_marked(self, rig: Rig) -> None:
        rig.put("a", payload("0"), payload("1"))
        rig.put("b", payload("2"))
        consumer = rig.consumer()
        taken(consumer, "a", "b")
        consumer.give_back_all()
        assert rig.ready("a") == [with_count(payload("0"), 1), with_count(payload("1"), 1)]
        assert rig.ready("b") == [with_count(payload("2"), 1)]
        assert rig.all_keys("*unacked*") + rig.all_keys("*consumers*") == []

    def test_is_no_failure_of_the_message(self, rig: Rig) -> None:
        rig.put("q", payload("m"))
        for _ in range(3):
            consumer = rig.consumer(delivery_limit=1)
            assert len(taken(consumer, "q")) == 1
            consumer.give_back_all()
        assert rig.ready("q") == [with_count(payload("m"), 1)]
        assert rig.dead("q") == []

    def test_nothing(self, rig: Rig) -> None:
        rig.consumer().give_back_all()
        assert rig.all_keys() == []


class TestLeave:
    def test_a_queue_that_was_cancelled_once_nothing_is_held(self, rig: Rig) -> None:
        rig.put("q", payload("m"))
        me = rig.consumer()
        [delivery] = taken(me, "q")
        me.membership.cancel("q")
        me.membership.leave_cancelled()
        assert rig.client.zcard(rig.store.keys("q").consumers) == 1
        assert rig.ack(me, "q", delivery.tag)
        me.membership.leave_cancelled()
        assert rig.all_keys("*redisdelay:*") == [rig.key("q", "history").encode()]

    def test_not_one_that_is_consumed_again(self, rig: Rig) -> None:
        rig.put("q", payload("a"), payload("b"))
        me = rig.consumer()
        [first] = taken(me, "q", limit=1)
        me.membership.cancel("q")
        assert rig.ack(me, "q", first.tag)
        taken(me, "q")
        me.membership.leave_cancelled()
        assert rig.client.zcard(rig.store.keys("q").consumers) == 1

    @pytest.mark.many_messages
    def test_queues_that_are_asked_once(self, rig: Rig) -> None:
        me = rig.consumer()
        for number in range(5 * MOST_LEFT):
            rig.put(f"q{number}", payload("m"))
            [delivery] = taken(me, f"q{number}")
            assert rig.ack(me, f"q{number}", delivery.tag)
        assert len(rig.all_keys("*redisdelay:*:consumers")) <= 2 * MOST_LEFT
        assert len(me.membership.queues) <= 2 * MOST_LEFT


class TestFleet:
    """Hundreds of consumers."""

    def holding(self, rig: Rig, names: Sequence[str], messages: int) -> None:
        rig.put("q", *(payload(str(number)) for number in range(len(names) * messages)))
        for name in names:
            taken(rig.consumer(name), "q", limit=messages)
            rig.end_lease("q", name)

    @pytest.mark.many_messages
    def test_all_that_died_at_once_are_found(self, rig: Rig) -> None:
        names = [f"lost{number}" for number in range(150)]
        self.holding(rig, names, 3)
        assert rig.recover("q") == 450
        assert rig.client.zcard(rig.key("q", "consumers")) == 0

    @pytest.mark.many_messages
    def test_a_packet_is_bounded_in_messages(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Redis turns to other clients only after all of it."""
        self.holding(rig, [f"lost{number}" for number in range(60)], 20)
        moved: list[int] = []
        give_back_some = Recovery._give_back_some

        def counted(self: Recovery, *args: Any) -> None:
            before = len(rig.ready("q"))
            give_back_some(self, *args)
            moved.append(len(rig.ready("q")) - before)

        monkeypatch.setattr(Recovery, "_give_back_some", counted)
        assert rig.recover("q") == 1200
        assert sum(moved) == 1200
        assert max(moved) <= MESSAGES_PER_CALL

    def test_the_names_of_all_are_seen_in_time(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each look is at a part of them: a large fleet does not ask for all names again and again."""
        names = {f"somebody{number:04}" for number in range(3 * CONSUMERS_PER_LOOK)}
        lease_end_ms = rig.database.now_ms() + HOUR_MS
        rig.client.zadd(rig.key("q", "consumers"), dict.fromkeys(names, lease_end_ms))
        looked_at: list[set[str]] = []

        def process_of(name: str) -> str:
            looked_at[-1].add(name)
            return name

        monkeypatch.setattr(recovery, "process_of", process_of)
        recoverer = rig.recoverer()
        while set().union(*looked_at) != names:
            assert len(looked_at) < 100
            looked_at.append(set())
            finish(recoverer.recover(["q"]))
            assert len(looked_at[-1]) == CONSUMERS_PER_LOOK

    def test_the_first_look_is_at_all(self, rig: Rig) -> None:
        """Who starts a worker again wants the messages back at once that the killed one held."""
        others = {f"somebody{number:04}": HOUR_MS for number in range(2 * CONSUMERS_PER_LOOK)}
        dead = dead_process()
        rig.put("q", "m")
        taken(rig.consumer(dead), "q")
        rig.client.zadd(rig.key("q", "consumers"), {name: rig.database.now_ms() * 2 for name in others})
        assert finish(rig.recoverer().recover(["q"], is_first=True)) == 1

    def test_a_process_is_looked_at_once(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        dead = dead_process().rpartition(":")[0]
        queues = [f"q{number}" for number in range(20)]
        for queue in queues:
            for number in range(10):
                rig.client.zadd(rig.store.keys(queue).consumers, {f"{dead}:{number}": rig.database.now_ms()})
        looked_at = []
        monkeypatch.setattr(recovery, "has_ended", lambda name: looked_at.append(name))
        finish(rig.recoverer().recover(queues))
        assert looked_at == [dead]
