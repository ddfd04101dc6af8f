"""Looking at scheduled messages, and steering them, below kombu."""

from __future__ import annotations

from itertools import islice

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker import paging
from kombu_redisdelay.broker import schedule as module
from kombu_redisdelay.broker.schedule import Schedule
from tests.broker.rig import Rig, payload, taken

HOUR = 3_600_000


@pytest.fixture
def schedule(rig: Rig) -> Schedule:
    return Schedule(rig.store)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few messages are many pages."""
    monkeypatch.setattr(paging, "FIRST_PAGE", 2)
    monkeypatch.setattr(paging, "MESSAGES_PER_CALL", 3)
    monkeypatch.setattr(module, "MESSAGES_PER_CALL", 3)
    monkeypatch.setattr(module, "MOVES_PER_CALL", 3)


def payloads(schedule: Schedule, queue: str = "q") -> list[str]:
    return [found.payload.decode() for found in schedule.iter(queue, None, None)]


def put_at(rig: Rig, due_ms: float, *members: str | bytes) -> None:
    """Schedule by hand, to the microsecond."""
    keys = rig.store.keys("q")
    for member in members:
        rig.client.hset(
            keys.messages, member, b"0:" + (member if isinstance(member, bytes) else member.encode())
        )
        rig.client.zadd(keys.schedule, {member: due_ms})


@pytest.mark.usefixtures("small_pages")
class TestIter:
    def test_in_due_order(self, rig: Rig, schedule: Schedule) -> None:
        for number in (5, 1, 9, 3, 7, 2, 8, 4, 6):
            rig.schedule("q", str(number), number * HOUR)
        assert payloads(schedule) == list("123456789")

    def test_nothing(self, schedule: Schedule) -> None:
        assert payloads(schedule) == []

    def test_many_within_one_millisecond(self, rig: Rig, schedule: Schedule) -> None:
        """Not in the order of their names."""
        due_ms = [1_795_244_092_945 + number / 1000 for number in range(12)]
        for number, at in enumerate(due_ms):
            put_at(rig, at, f"{99 - number}")
        assert [found.due_ms for found in schedule.iter("q", None, None)] == due_ms
        window = due_ms[5], due_ms[9]
        assert [found.due_ms for found in schedule.iter("q", *window)] == due_ms[5:9]
        assert schedule.count(["q"], *window) == 4
        assert schedule.next_due_ms(["q"]) == due_ms[0]

    def test_many_at_one_time(self, rig: Rig, schedule: Schedule) -> None:
        names = [f"{number:02}" for number in range(20)]
        put_at(rig, 5000, *names)
        put_at(rig, 4000, "first")
        put_at(rig, 6000, "last")
        assert payloads(schedule) == ["first", *names, "last"]

    @pytest.mark.usefixtures("small_pages")
    def test_many_at_no_time(self, rig: Rig, schedule: Schedule) -> None:
        """Another program has written these. They were read again and again."""
        put_at(rig, float("-inf"), *"abcdefgh")
        put_at(rig, float("inf"), *"ijklmnop")
        pages = schedule.iter("q", None, None)
        assert [found.payload.decode() for found in islice(pages, 20)] == list("abcdefghijklmnop")

    def test_names_are_sorted_by_bytes(self, rig: Rig, schedule: Schedule) -> None:
        names = [b"", b"A", b"a", b"B", b"b", b"a\x00", b"\xff", b"\xc3\xa4", b"a\x1fb", b"aa", b"_", b"Z"]
        put_at(rig, 5000, *names)
        assert [found.member for found in schedule.iter("q", None, None)] == sorted(names)

    @pytest.mark.parametrize("gone", [["03"], ["02", "03", "04"], [f"{n:02}" for n in range(8)]])
    def test_what_goes_meanwhile_moves_nothing_else(
        self, rig: Rig, schedule: Schedule, gone: list[str]
    ) -> None:
        names = [f"{number:02}" for number in range(12)]
        put_at(rig, 5000, *names)
        found = schedule.iter("q", None, None)
        seen = [next(found).member.decode() for _ in range(4)]
        schedule.cancel("q", gone)
        rest = [entry.member.decode() for entry in found]
        # What had been read with the last page is still handed out.
        assert set(rest) >= set(names) - set(seen) - set(gone)
        assert sorted(seen + rest) == sorted(set(seen + rest))

    def test_a_window_of_time(self, rig: Rig, schedule: Schedule) -> None:
        for due_ms in range(1000, 1010):
            put_at(rig, due_ms, str(due_ms))
        found = [int(entry.member) for entry in schedule.iter("q", 1002, 1006)]
        assert found == [1002, 1003, 1004, 1005]
        assert schedule.count(["q"], 1002, 1006) == 4
        assert schedule.count(["q"], 1002, None) == 8
        assert schedule.count(["q"], None, 1002) == 2

    def test_ids_without_a_message_are_passed_over(self, rig: Rig, schedule: Schedule) -> None:
        put_at(rig, 1000, *"abcdef")
        rig.client.hdel(rig.key("q", "messages"), *"abce")
        assert payloads(schedule) == ["d", "f"]

    def test_a_page_is_bounded_by_bytes(
        self, rig: Rig, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "BYTES_PER_CALL", 5)
        put_at(rig, 1000, *(letter * 10 for letter in "abcdef"))
        assert payloads(schedule) == [letter * 10 for letter in "abcdef"]

    def test_what_was_not_stored_by_us(self, rig: Rig, schedule: Schedule) -> None:
        rig.client.hset(rig.key("q", "messages"), "x", b"no step: \xff")
        rig.client.zadd(rig.key("q", "schedule"), {"x": 1000})
        [found] = schedule.iter("q", None, None)
        assert found.payload == b"no step: \xff"
        assert found.rewritten(b"new") == b"new"


class TestNextDue:
    def test_of_all_queues(self, rig: Rig, schedule: Schedule) -> None:
        put_at(rig, 5000, "m")
        rig.client.zadd(rig.key("other", "schedule"), {"n": 4000})
        assert schedule.next_due_ms(["q", "other", "empty"]) == 4000
        assert schedule.next_due_ms(["empty"]) is None
        assert schedule.next_due_ms([]) is None


class TestDuplicates:
    """Several messages under one id."""

    def fill(self, rig: Rig, how_many: int, id: str = "same") -> None:
        for number in range(how_many):
            rig.schedule("q", payload(id, n=number), (number + 1) * HOUR, id=id)

    @pytest.mark.usefixtures("small_pages")
    @pytest.mark.parametrize("how_many", [1, 2, 3, 4, 5, 20])
    def test_all_are_found(self, rig: Rig, schedule: Schedule, how_many: int) -> None:
        self.fill(rig, how_many)
        self.fill(rig, 3, id="other")
        found = [entry.payload.decode() for entry in schedule.find("q", "same")]
        assert sorted(found) == sorted(payload("same", n=number) for number in range(how_many))

    @pytest.mark.usefixtures("small_pages")
    @pytest.mark.parametrize("how_many", [1, 2, 3, 4, 20])
    def test_all_are_cancelled(self, rig: Rig, schedule: Schedule, how_many: int) -> None:
        self.fill(rig, how_many)
        self.fill(rig, 3, id="other")
        assert schedule.cancel("q", ["unknown", "same", "other"]) == [0, how_many, 3]
        assert rig.scheduled("q") == []
        assert rig.listed_duplicates("q") == set()

    def test_those_that_remain_are_found_when_the_first_is_delivered(
        self, rig: Rig, schedule: Schedule
    ) -> None:
        self.fill(rig, 4)
        rig.database.advance(2 * HOUR + HOUR // 2)
        assert len(taken(rig.consumer(), "q")) == 2
        assert schedule.cancel("q", ["same"]) == [2]

    def test_an_id_that_is_free_again_is_used_again(self, rig: Rig, schedule: Schedule) -> None:
        self.fill(rig, 2)
        rig.database.advance(HOUR + HOUR // 2)
        taken(rig.consumer(), "q")
        self.fill(rig, 1)
        assert len(list(schedule.find("q", "same"))) == 2
        assert rig.client.zscore(rig.key("q", "schedule"), "same") is not None

    @pytest.mark.parametrize("other", ["same#2", "same ", "same!", "samesame", "sam", "same\x7f"])
    def test_ids_that_look_alike_are_other_ids(self, rig: Rig, schedule: Schedule, other: str) -> None:
        self.fill(rig, 2)
        self.fill(rig, 2, id=other)
        assert schedule.cancel("q", ["same"]) == [2]
        assert len(list(schedule.find("q", other))) == 2

    def test_the_list_does_not_grow_with_what_was_delivered(self, rig: Rig) -> None:
        consumer = rig.consumer()
        for _ in range(50):
            self.fill(rig, 3)
            rig.database.advance(4 * HOUR)
            for delivery in taken(consumer, "q"):
                consumer.ack("q", delivery.tag)
        assert len(rig.listed_duplicates("q")) < 30

    def test_mending_forgets_them(self, rig: Rig) -> None:
        self.fill(rig, 20)
        rig.database.advance(30 * HOUR)
        consumer = rig.consumer()
        taken(consumer, "q")
        # Some at random each time.
        for _ in range(5):
            rig.mend("q")
        assert rig.listed_duplicates("q") == set()


class TestReschedule:
    def test_later(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", "m", HOUR, step=3)
        [found] = schedule.find("q", "m")
        due_ms = rig.database.now_ms() + 3 * HOUR
        assert schedule.reschedule(found, b"changed", due_ms)
        assert rig.scheduled("q") == ["3:changed"]
        assert schedule.next_due_ms(["q"]) == due_ms

    def test_a_time_that_has_come(self, rig: Rig, schedule: Schedule) -> None:
        rig.put("q", "before", step=3)
        rig.schedule("q", "m", HOUR, step=3)
        rig.use_up_token("q")
        [found] = schedule.find("q", "m")
        assert schedule.reschedule(found, b"changed", 0)
        assert rig.scheduled("q") == []
        assert rig.ready("q", 3) == ["before", "changed"]
        assert rig.tokens("q") == 1

    def test_the_first_to_be_due_wakes(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", "a", HOUR)
        rig.schedule("q", "b", 2 * HOUR)
        rig.use_up_token("q")
        [b] = schedule.find("q", "b")
        now_ms = rig.database.now_ms()
        assert schedule.reschedule(b, b.payload, now_ms + 3 * HOUR)
        assert rig.tokens("q") == 0
        [b] = schedule.find("q", "b")
        assert schedule.reschedule(b, b.payload, now_ms + HOUR // 2)
        assert rig.tokens("q") == 1

    def test_a_ready_list_that_is_none(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", "m", HOUR)
        rig.client.set(rig.store.keys("q").ready, "not a list")
        [found] = schedule.find("q", "m")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            schedule.reschedule(found, b"changed", 0)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            rig.schedule("q", "new", 0, id="m", on_conflict="replace")
        assert rig.scheduled("q") == ["0:m"]

    def test_one_that_is_gone(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", "m", HOUR)
        [found] = schedule.find("q", "m")
        rig.database.advance(2 * HOUR)
        taken(rig.consumer(), "q")
        assert not schedule.reschedule(found, b"changed", rig.database.now_ms() + HOUR)
        assert rig.scheduled("q") == []
        assert schedule.reread(found) is None

    def test_one_that_is_another_now(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", payload("m"), HOUR, id="m")
        [found] = schedule.find("q", "m")
        schedule.cancel("q", ["m"])
        rig.schedule("q", payload("m", new=True), HOUR, id="m")
        assert not schedule.reschedule(found, b"changed", rig.database.now_ms() + HOUR)
        again = schedule.reread(found)
        assert again is not None
        assert again.payload.decode() == payload("m", new=True)

    @pytest.mark.usefixtures("small_pages")
    def test_of_many_all_but_those_that_are_gone_or_others_now(self, rig: Rig, schedule: Schedule) -> None:
        for number in range(10):
            text = payload(f"{number}")
            rig.schedule("q", text, HOUR + number, id=f"{number}", step=3 * (number % 2))
        found = list(schedule.iter("q", None, None))
        schedule.cancel("q", ["3", "4"])
        rig.schedule("q", payload("4", new=True), HOUR, id="4")
        due_ms = rig.database.now_ms() + 2 * HOUR
        done = schedule.reschedule_all("q", reversed(found), lambda each: (each.rewritten(b"later"), due_ms))
        assert [each.member for each in done] == [b"9", b"8", b"7", b"6", b"5", b"2", b"1", b"0"]
        assert rig.scheduled("q").count("3:later") == rig.scheduled("q").count("0:later") == 4
        assert schedule.count(["q"], due_ms, None) == 8

    @pytest.mark.usefixtures("small_pages")
    def test_many_whose_time_has_come_keep_their_order(self, rig: Rig, schedule: Schedule) -> None:
        for number in range(8):
            rig.schedule("q", f"{number}", HOUR + number, step=3 * (number % 2))
        found = list(schedule.iter("q", None, None))
        rig.use_up_token("q")
        assert (
            len(
                list(
                    schedule.reschedule_all(
                        "q", found, lambda each: (each.rewritten(b"now " + each.payload), 0)
                    )
                )
            )
            == 8
        )
        assert rig.ready("q") == ["now 0", "now 2", "now 4", "now 6"]
        assert rig.ready("q", 3) == ["now 1", "now 3", "now 5", "now 7"]
        assert (rig.scheduled("q"), rig.tokens("q")) == ([], 1)

    @pytest.mark.usefixtures("small_pages")
    def test_many_ids_are_found_together(self, rig: Rig, schedule: Schedule) -> None:
        for number in range(7):
            rig.schedule("q", f"{number}", HOUR, id="same" if number < 5 else f"{number}")
        found = list(schedule.find_all(["q"], ["6", "unknown", "same", "5"]))
        assert [id for id, _ in found] == ["6", *["same"] * 5, "5"]
        assert {each.payload for _, each in found} == {b"0", b"1", b"2", b"3", b"4", b"5", b"6"}
        assert list(schedule.find_all(["q"], [])) == []


class TestConflict:
    """x-delay-on-conflict."""

    def test_replace_moves_what_waits(self, rig: Rig, schedule: Schedule) -> None:
        rig.schedule("q", "old", HOUR, id="key")
        rig.schedule("q", "new", 2 * HOUR, id="key", step=3, on_conflict="replace")
        rig.schedule("q", "other", 3 * HOUR, id="other", on_conflict="replace")
        assert rig.scheduled("q") == ["3:new", "0:other"]

    def test_replace_removes_duplicates_too(self, rig: Rig) -> None:
        for number in range(3):
            rig.schedule("q", str(number), HOUR, id="key")
        rig.schedule("q", "new", HOUR, id="key", on_conflict="replace")
        assert rig.scheduled("q") == ["0:new"]
        assert rig.listed_duplicates("q") == set()

    def test_replace_by_one_that_is_due(self, rig: Rig) -> None:
        rig.schedule("q", "old", HOUR, id="key")
        rig.schedule("q", "new", 0, id="key", on_conflict="replace")
        assert (rig.scheduled("q"), rig.ready("q")) == ([], ["new"])

    @pytest.mark.parametrize("in_ms", [0, 2 * HOUR])
    def test_ignore_keeps_what_waits(self, rig: Rig, in_ms: int) -> None:
        rig.schedule("q", "old", HOUR, id="key")
        rig.schedule("q", "new", in_ms, id="key", on_conflict="ignore")
        assert (rig.scheduled("q"), rig.ready("q")) == (["0:old"], [])

    def test_ignore_sees_a_duplicate_whose_first_was_delivered(self, rig: Rig) -> None:
        rig.schedule("q", "first", HOUR, id="key")
        rig.schedule("q", "second", 3 * HOUR, id="key")
        rig.database.advance(2 * HOUR)
        taken(rig.consumer(), "q")
        rig.schedule("q", "new", HOUR, id="key", on_conflict="ignore")
        assert rig.scheduled("q") == ["0:second"]

    def test_ignore_is_not_misled_by_a_duplicate_that_was_delivered(self, rig: Rig) -> None:
        for text in ("first", "second"):
            rig.schedule("q", text, HOUR, id="key")
        rig.database.advance(2 * HOUR)
        taken(rig.consumer(), "q")
        rig.schedule("q", "new", HOUR, id="key", on_conflict="ignore")
        assert rig.scheduled("q") == ["0:new"]

    @pytest.mark.parametrize("on_conflict", ["replace", "ignore"])
    def test_what_is_ready_already_is_no_conflict(self, rig: Rig, on_conflict: str) -> None:
        rig.schedule("q", "old", 0, id="key")
        rig.schedule("q", "new", HOUR, id="key", on_conflict=on_conflict)
        assert (rig.scheduled("q"), rig.ready("q")) == (["0:new"], ["old"])

    @pytest.mark.parametrize("on_conflict", ["replace", "ignore"])
    def test_another_queue_is_no_conflict(self, rig: Rig, on_conflict: str) -> None:
        rig.schedule("other", "old", HOUR, id="key")
        rig.schedule("q", "new", HOUR, id="key", on_conflict=on_conflict)
        assert (rig.scheduled("q"), rig.scheduled("other")) == (["0:new"], ["0:old"])
