"""Dead letters: what goes there, and how many are kept."""

from __future__ import annotations

import logging
from collections import Counter
from hashlib import sha1
from itertools import count, zip_longest

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker import archive as archive_module
from kombu_redisdelay.broker import keeping
from kombu_redisdelay.broker.archive import Archive, Archived
from kombu_redisdelay.broker.failure import FOREIGN, kind_of_reason
from kombu_redisdelay.broker.keys import DEAD
from kombu_redisdelay.broker.maintenance import Maintenance
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE, Part
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.rig import Rig, dead_letter, never, payload, take_out, taken, with_count


def letters(rig: Rig) -> list[Archived]:
    return list(Archive(rig.store, DEAD).iter("q", Part(None, None)))


def celery_payload(id: str, task: str) -> str:
    """A message as Celery writes it, as far as the broker looks."""
    return payload(id, headers={"lang": "py", "task": task, "id": id})


def dead(rig: Rig) -> list[str]:
    """Dead letters without the time, the oldest first."""
    return [letter.split(" ", 1)[1] for letter in rig.dead("q")]


class TestDiscard:
    def test_drops_by_default(self, rig: Rig) -> None:
        rig.put("q", "m")
        me = rig.consumer(options=Options())
        [delivery] = taken(me, "q")
        assert me.discard("q", delivery.tag)
        assert (rig.unacked("q"), rig.ready("q"), dead(rig)) == ({}, [], [])

    def test_keeps_a_dead_letter_when_asked(self, rig: Rig) -> None:
        text = payload("1")
        rig.put("q", text, step=3)
        me = rig.consumer(options=Options(dead_letter=True))
        [delivery] = taken(me, "q")
        assert me.discard("q", delivery.tag)
        assert (rig.unacked("q"), rig.ready("q", 3)) == ({}, [])
        assert dead(rig) == [f"1 3 rejected\n{text}"]

    def test_what_is_not_held_is_left_alone(self, rig: Rig) -> None:
        assert not rig.consumer(options=Options(dead_letter=True)).discard("q", "1")
        assert dead(rig) == []


def test_the_latest_are_kept_and_the_rest_said(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", *(payload(str(n)) for n in range(5)))
    me = rig.consumer(options=Options(delivery_limit=1, dead_letter_limit=3))
    for delivery in taken(me, "q"):
        me.requeue("q", delivery.tag)
    assert [letter.partition("\n")[2] for letter in dead(rig)] == [payload(str(n)) for n in (2, 3, 4)]
    dropped = [record for record in caplog.records if "dead_letter_limit=3" in record.getMessage()]
    assert len(dropped) == 2
    assert {record.levelno for record in dropped} == {logging.ERROR}


class TestDamagedSchedule:
    def test_ids_without_a_message_are_skipped_and_said(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.schedule("q", payload("kept"), -1000, id="kept")
        rig.client.zadd(rig.store.keys("q").schedule, {f"lost{n}": 1 for n in range(3)})
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload.decode() == payload("kept")
        assert rig.client.zcard(rig.store.keys("q").schedule) == 0
        assert "3 scheduled id(s)" in caplog.text

    def test_messages_without_a_due_time_become_dead_letters(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        for n in range(250):
            rig.schedule("q", payload(str(n)), 60_000, id=str(n))
        lost = [str(n) for n in range(0, 250, 2)]
        rig.client.zrem(rig.store.keys("q").schedule, *lost)
        assert rig.mend("q") == 125
        assert {letter.partition("\n")[2] for letter in dead(rig)} == {payload(n) for n in lost}
        assert len(rig.scheduled("q")) == 125
        assert "125 scheduled message(s)" in caplog.text

    def test_messages_that_say_when_they_are_due_are_scheduled_again(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They have lost their due time."""
        due_ms = rig.database.now_ms() + 60_000
        texts = [f'{{"redisdelay-due": {due_ms + n}, {payload(str(n))[1:]}' for n in range(3)]
        for n, text in enumerate(texts):
            rig.schedule("q", text, 60_000 + n, id=str(n))
        rig.schedule("q", payload("silent"), 60_000)
        # Too long for a time.
        rig.schedule("q", f'{{"redisdelay-due": {"9" * 16}, {payload("odd")[1:]}', 60_000)
        rig.client.delete(rig.store.keys("q").schedule)
        rig.use_up_token("q")
        assert rig.mend("q") == 5
        found = rig.client.zrange(rig.store.keys("q").schedule, 0, -1, withscores=True)
        assert found == [(b"%d" % n, due_ms + n) for n in range(3)]
        assert rig.tokens("q") == 1
        assert len(dead(rig)) == 2
        assert "3 scheduled message(s) of queue 'q' had lost their due time" in caplog.text
        assert rig.mend("q") == 0
        rig.database.advance(61_000)
        assert len(taken(rig.consumer(), "q")) == 3

    def test_nothing_is_said_of_a_schedule_in_order(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.schedule("q", payload("1"), 60_000)
        assert rig.mend("q") == 0
        assert caplog.records == []


class TestGraveyard:
    """Looking at dead letters, and taking them out."""

    def bury(self, rig: Rig, *payloads: str, step: int = 0) -> None:
        me = rig.consumer(options=Options(dead_letter=True))
        for text in payloads:
            rig.put("q", text, step=step)
            [delivery] = taken(me, "q")
            rig.database.tick()
            dead_letter(me, delivery, " ".join(f"because of {text}".split()))

    def test_what_they_say(self, rig: Rig) -> None:
        before = rig.database.now_ms()
        self.bury(rig, with_count("{}", 0), "two\nlines", step=3)
        first, second = letters(rig)
        assert (first.payload, second.payload) == (b"{}", b"two\nlines")
        assert (second.queue, split_stored(second.stored)[0], second.failures) == ("q", 3, 0)
        assert second.failure.text == "because of two lines"
        assert before <= first.since_ms <= second.since_ms <= rig.database.now_ms() + 1

    def test_they_have_the_ids_of_their_messages(self, rig: Rig) -> None:
        self.bury(rig, payload("a"), payload("b"), payload("a"), "no message")
        digest = sha1(b"no message", usedforsecurity=False).hexdigest()
        assert [letter.id for letter in letters(rig)] == ["a", "b", "a", digest]
        found = Archive(rig.store, DEAD).find_all(["other", "q"], ["a", digest, "none"])
        assert [letter.payload.decode() for letter in found] == [payload("a"), payload("a"), "no message"]
        assert len(rig.dead("q")) == 4

    def test_they_are_grouped_by_task_and_reason(self, rig: Rig) -> None:
        me = rig.consumer(options=Options(dead_letter=True, delivery_limit=1))
        rig.put(
            "q", *(celery_payload(id, task) for id, task in zip("abcd", "xxyx", strict=True)), "no message"
        )
        rejected, failed, other, unknown, malformed = taken(me, "q")
        me.discard("q", rejected.tag, lambda: "ValueError('it is blue')")
        for delivery in (failed, other):
            me.requeue("q", delivery.tag)
        me.make_dead("q", unknown.tag, "no worker knows the task x")
        dead_letter(me, malformed, "not JSON: it is none")
        rig.schedule("q", celery_payload("e", "y"), 60_000)
        rig.client.delete(rig.store.keys("q").schedule)
        rig.mend("q")
        counts = {(each.task, each.error): each.count for each in Archive(rig.store, DEAD).groups("q")}
        assert counts == {
            ("x", "rejected"): 1,
            ("x", "delivery-limit"): 1,
            ("y", "delivery-limit"): 1,
            ("x", "unknown-task"): 1,
            ("-", "unreadable"): 1,
            ("y", "no-due-time"): 1,
        }
        assert {kind_of_reason(letter.failure.text) for letter in letters(rig)} == {
            letter.failure.error for letter in letters(rig)
        }

    def test_they_are_counted_between_times(self, rig: Rig) -> None:
        self.bury(rig, "a", "b", "c")
        archive, times = Archive(rig.store, DEAD), [letter.since_ms for letter in letters(rig)]
        assert archive.counts(["q", "none"], times[1]) == [2, 0]
        assert archive.counts(["q", "none"], None, times[1]) == [1, 0]

    def test_many_pages_the_oldest_first(self, rig: Rig) -> None:
        texts = [f"letter {number:02}" for number in range(50)]
        self.bury(rig, *texts)
        yard = Archive(rig.store, DEAD)
        found = yard.iter("q", Part(None, letters(rig)[-1].since_ms + 0.001))
        seen = [next(found).payload.decode() for _ in range(5)]
        # Those that come and go meanwhile shift nothing.
        self.bury(rig, "late")
        assert take_out(rig.store, "q", REMOVE, lambda letter: letter.payload == b"letter 00") == 1
        assert seen + [letter.payload.decode() for letter in found] == texts
        assert yard.counts(["q", "empty"]) == [50, 0]

    def test_a_page_is_bounded_by_bytes(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archive_module, "BYTES_PER_CALL", 5)
        self.bury(rig, *"abcd")
        assert take_out(rig.store, "q", REQUEUE) == 4
        assert rig.ready("q") == ["a", "b", "c", "d"]

    def test_requeue_goes_back_to_where_it_came_from_with_no_count(self, rig: Rig) -> None:
        text = payload("1")
        rig.put("q", with_count(text, 7), step=6)
        me = rig.consumer(options=Options(delivery_limit=8))
        [delivery] = taken(me, "q")
        me.requeue("q", delivery.tag)
        rig.put("q", "waiting", step=6)
        rig.use_up_token("q")
        assert take_out(rig.store, "q", REQUEUE, lambda letter: letter.failures == 8) == 1
        assert rig.ready("q", 6) == ["waiting", text]
        assert rig.dead("q") == []
        assert rig.tokens("q") == 1

    def test_only_what_is_wanted_over_many_pages(self, rig: Rig) -> None:
        self.bury(rig, *(f"{number:02}" for number in range(70)))
        assert take_out(rig.store, "q", REQUEUE, lambda letter: int(letter.payload) % 3 == 0) == 24
        assert [int(text) for text in rig.ready("q")] == list(range(0, 70, 3))
        assert take_out(rig.store, "q", REMOVE, lambda letter: int(letter.payload) % 3 == 1) == 23
        assert [int(letter.payload) for letter in letters(rig)] == list(range(2, 70, 3))

    def test_all_are_requeued_once(self, rig: Rig) -> None:
        """Also those of equal bytes, which died in the same millisecond."""
        me = rig.consumer()
        rig.put("q", *["same"] * 30)
        for delivery in taken(me, "q"):
            dead_letter(me, delivery, "why")
        assert take_out(rig.store, "q", REQUEUE) == 30
        assert rig.ready("q") == ["same"] * 30

    def test_drop_wakes_nobody(self, rig: Rig) -> None:
        self.bury(rig, "m")
        rig.use_up_token("q")
        assert take_out(rig.store, "q", REMOVE) == 1
        assert (rig.tokens("q"), rig.ready("q"), rig.dead("q")) == (0, [], [])

    def test_clear(self, rig: Rig) -> None:
        self.bury(rig, "a", "b")
        assert Archive(rig.store, DEAD).clear("q") == 2
        assert Archive(rig.store, DEAD).clear("q") == 0
        assert rig.client.exists(*rig.store.keys("q").archive(DEAD)) == 0

    def test_a_large_one_is_kept_whole(self, rig: Rig) -> None:
        large = payload("1", body="x" * 2 * 1024 * 1024)
        self.bury(rig, large)
        [letter] = letters(rig)
        assert (letter.is_whole, letter.payload.decode()) == (True, large)
        assert take_out(rig.store, "q", REQUEUE) == 1

    def test_no_key_of_them_has_a_time_to_live(self, rig: Rig) -> None:
        self.bury(rig, "a", "a")
        ttls = {rig.client.pttl(key) for key in rig.store.keys("q").archive(DEAD)}
        # Of dead letters, none has returned.
        assert ttls == {-1, -2}

    def test_those_of_a_queue_whose_limit_is_lower_now_go_bit_by_bit(
        self, rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keeping, "TRIMMED_PER_CALL", 2)
        self.bury(rig, *"abcde")
        finish(keeping.trim(rig.store, Options(dead_letter_limit=2), ["q", "none"]))
        assert [letter.payload for letter in letters(rig)] == [b"d", b"e"]
        assert len(caplog.messages) == 2

    def test_queues_with_dead_letters_are_known(self, rig: Rig) -> None:
        rig.put("limit", payload("m"))
        rig.put("q", "m")
        me = rig.consumer(options=Options(delivery_limit=1))
        for delivery in taken(me, "limit"):
            me.requeue("limit", delivery.tag)
        for delivery in taken(me, "q"):
            dead_letter(me, delivery, "why")
        rig.client.hset(rig.key("swept", "messages"), "id", "0:m")
        rig.mend("swept")
        assert rig.store.queues() == ["limit", "q", "swept"]


def older(rig: Rig, payload: str, since_ms: int = 1_700_000_000_000, reason: str = "rejected") -> None:
    """Bury a message as a worker of an older release does."""
    rig.client.lpush(rig.store.keys("q").dead, f"{since_ms} 2 3 {reason}\n{payload}")


class TestOfAnOlderRelease:
    """It keeps dead letters in a list, and goes on to do so while newer workers run."""

    def move(self, rig: Rig) -> None:
        finish(keeping.move_older(rig.store, ["none", "q"], refused=lambda queue, error: None))

    def test_they_are_moved_in_their_order(self, rig: Rig) -> None:
        # Some of a millisecond, with ids that are sorted in another way.
        texts = [payload(f"{100 - number}") for number in range(70)]
        for number, text in enumerate(texts):
            older(rig, text, 1_700_000_000_000 + number // 7)
        self.move(rig)
        assert rig.client.llen(rig.store.keys("q").dead) == 0
        assert dead(rig) == [f"2 3 rejected\n{text}" for text in texts]
        first, *_ = letters(rig)
        assert (first.id, first.failure.error, first.since_ms) == ("100", "rejected", 1_700_000_000_000)
        assert take_out(rig.store, "q", REQUEUE) == 70
        assert rig.ready("q", 3) == texts

    def test_equal_ones_are_all_moved(self, rig: Rig) -> None:
        for _ in range(20):
            older(rig, "same")
        self.move(rig)
        assert len(rig.dead("q")) == 20

    @pytest.mark.parametrize("entry", ["foreign", "", "1 2 3 no line", "9" * 5000 + " 1 0 why\nbody"])
    def test_what_another_program_has_written_is_a_message_as_it_is(self, rig: Rig, entry: str) -> None:
        rig.client.lpush(rig.store.keys("q").dead, entry)
        self.move(rig)
        [letter] = letters(rig)
        assert (letter.payload.decode(), letter.failures, letter.failure.text) == (entry, 0, FOREIGN)
        assert letter.since_ms == 0

    def test_what_is_told_is_true_before_they_are_moved(self, rig: Rig) -> None:
        archive = Archive(rig.store, DEAD)

        def bury() -> None:
            older(rig, celery_payload("a", "x"))
            older(rig, celery_payload("b", "y"))

        bury()
        assert archive.counts(["q", "none"]) == [2, 0]
        [stats] = queue_stats(rig.store, ["q"])
        assert stats.dead == 2
        assert rig.client.llen(rig.store.keys("q").dead) == 2
        assert [letter.id for letter in archive.find_all(["none", "q"], ["b"])] == ["b"]
        for told in (
            lambda: archive.counts(["q"], 0, 1_800_000_000_000)[0],
            lambda: len(list(archive.iter("q", Part(None, None)))),
            lambda: sum(map(len, archive.heads("q", Part(None, None)))),
            lambda: len(archive.groups("q")),
            lambda: take_out(rig.store, "q", REMOVE),
            lambda: archive.clear("q"),
        ):
            archive.clear("q")
            bury()
            assert told() == 2

    def test_an_older_worker_adds_some_while_they_are_read_and_moved(self, rig: Rig) -> None:
        """Each is told of once, whatever comes first."""
        numbers, told = count(), Counter[str]()
        for _ in range(6):
            for _ in range(5):
                older(rig, payload(f"older {next(numbers)}"))
            me = rig.consumer(options=Options(dead_letter=True))
            rig.put("q", payload(f"newer {next(numbers)}"))
            [delivery] = taken(me, "q")
            me.discard("q", delivery.tag)
            maintenance = keeping.move_older(rig.store, ["q"], refused=never)
            next(maintenance)
            # In the middle of the move.
            older(rig, payload(f"older {next(numbers)}"))
            some = letters(rig)[:4]
            told.update(each.id for each in Archive(rig.store, DEAD).take_out("q", REMOVE, some))
            finish(maintenance)
        told.update(letter.id for letter in letters(rig))
        assert set(told.values()) == {1}
        assert len(told) == next(numbers)
        assert rig.client.llen(rig.store.keys("q").dead) == 0

    def test_of_two_that_move_them_each_does_some(self, rig: Rig) -> None:
        for number in range(100):
            older(rig, payload(str(number)), 1_700_000_000_000 + number)
        one, other = (keeping.move_older(rig.new_store(), ["q"], refused=never) for _ in range(2))
        for turns in zip_longest(one, other):
            assert set(turns) == {None}
        assert [letter.id for letter in letters(rig)] == list(map(str, range(100)))

    def test_more_than_the_limit_are_dropped(self, rig: Rig) -> None:
        for number in range(5):
            older(rig, payload(str(number)), 1_700_000_000_000 + number)
        self.move(rig)
        finish(keeping.trim(rig.store, Options(dead_letter_limit=2), ["q"]))
        assert [letter.id for letter in letters(rig)] == ["3", "4"]

    def test_a_list_that_another_program_has_is_left_alone(self, rig: Rig) -> None:
        rig.client.set(rig.store.keys("none").dead, "foreign")
        older(rig, payload("a"))
        self.move(rig)
        assert len(rig.dead("q")) == 1

    @pytest.mark.parametrize("key", ["dead:index", "dead:heads", "dead:messages", "dead:groups"])
    def test_they_stay_where_they_are_if_another_program_has_the_place(self, rig: Rig, key: str) -> None:
        older(rig, payload("a"))
        rig.client.set(rig.key("q", key), "foreign")
        self.move(rig)
        assert rig.client.llen(rig.store.keys("q").dead) == 1
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            letters(rig)
        rig.client.delete(rig.key("q", key))
        assert [letter.id for letter in letters(rig)] == ["a"]

    def test_maintenance_moves_them(self, rig: Rig) -> None:
        older(rig, payload("a"))
        maintenance = Maintenance(rig.store, rig.recoverer(), Options(), 10)
        while maintenance.round_trip(["q"]):
            pass
        assert rig.client.llen(rig.store.keys("q").dead) == 0
        assert len(rig.dead("q")) == 1
