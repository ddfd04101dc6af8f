"""Many messages that are scheduled by one script: as if each had one of its own."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.message import IGNORE, REPLACE, Due
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL
from kombu_redisdelay.broker.publish_calls import PUSH, joined
from kombu_redisdelay.broker.server.scripts import SCHEDULE
from tests.broker.rig import Rig, taken, texts

HOUR = 3_600_000


def later(rig: Rig, id: str, queue: str = "q", step: int = 0, delay_ms: float = HOUR, **options: Any) -> Any:
    return rig.store.schedule(queue, step, id, Due(delay_ms=delay_ms), id, **options)


def operations(*calls: Any) -> list[tuple[Any, int]]:
    return [(call[0], count) for call, count in joined(calls)]


class TestWhatIsJoined:
    def test_those_of_one_queue_and_step_that_follow_each_other(self, rig: Rig) -> None:
        calls = [
            later(rig, "a"),
            later(rig, "b"),
            later(rig, "c", step=3),
            later(rig, "d", "other"),
            later(rig, "e"),
        ]
        assert operations(*calls) == [(SCHEDULE, 2), (SCHEDULE, 1), (SCHEDULE, 1), (SCHEDULE, 1)]

    def test_not_what_comes_between(self, rig: Rig) -> None:
        calls = [later(rig, "a"), rig.store.put("q", 0, "now"), later(rig, "b")]
        assert operations(*calls) == [(SCHEDULE, 1), (PUSH, 1), (SCHEDULE, 1)]

    @pytest.mark.parametrize("on_conflict", [REPLACE, IGNORE])
    def test_not_what_looks_for_another_message(self, rig: Rig, on_conflict: str) -> None:
        calls = [later(rig, "a", on_conflict=on_conflict) for _ in range(2)]
        assert operations(*calls) == [(SCHEDULE, 1), (SCHEDULE, 1)]

    def test_not_in_a_queue_that_expires(self, rig: Rig) -> None:
        rig.store.expires_ms["q"] = HOUR
        assert operations(later(rig, "a"), later(rig, "b")) == [(SCHEDULE, 1), (SCHEDULE, 1)]

    def test_as_many_as_a_script_may_have(self, rig: Rig) -> None:
        calls = [later(rig, str(n)) for n in range(MESSAGES_PER_CALL + 2)]
        assert operations(*calls) == [(SCHEDULE, MESSAGES_PER_CALL), (SCHEDULE, 2)]
        large = [later(rig, "x" * 300_000) for _ in range(2)]
        assert operations(*large) == [(SCHEDULE, 1), (SCHEDULE, 1)]


class TestWhatItDoes:
    def test_all_are_scheduled_and_one_token_wakes(self, rig: Rig) -> None:
        replies = rig.store.run_all([later(rig, f"id {n}", delay_ms=HOUR + n) for n in range(300)])
        assert replies == [1] * 300
        assert rig.store.scheduled("q") == 300
        assert rig.tokens("q") == 1

    def test_a_later_one_wakes_nobody(self, rig: Rig) -> None:
        rig.store.run_all([later(rig, "a"), later(rig, "b")])
        rig.use_up_token("q")
        rig.store.run_all([later(rig, "c", delay_ms=2 * HOUR), later(rig, "d", delay_ms=2 * HOUR)])
        assert rig.tokens("q") == 0

    def test_several_under_one_id_are_all_kept(self, rig: Rig) -> None:
        rig.store.run_all([later(rig, "same") for _ in range(5)])
        assert rig.store.scheduled("q") == 5

    def test_those_that_are_due_are_ready_in_their_order(self, rig: Rig) -> None:
        past = Due(at_ms=1)
        rig.store.run_all([rig.store.schedule("q", 0, str(n), past, str(n)) for n in range(5)])
        assert texts(taken(rig.consumer(), "q")) == [str(n) for n in range(5)]

    def test_a_key_of_another_kind_refuses_all_of_them(self, rig: Rig) -> None:
        rig.client.set(rig.key("q", "schedule"), "of somebody else")
        replies = rig.store.run_all([later(rig, "a"), later(rig, "b"), later(rig, "c", "other")])
        assert [isinstance(reply, ResponseError) for reply in replies] == [True, True, False]
        assert rig.key("q", "schedule") in str(replies[0])
        assert not rig.client.exists(rig.key("q", "messages"))
