"""What workers of redis:// had taken, on every server: the API over it is in tests/operations."""

from __future__ import annotations

import pytest

from kombu_redisdelay.broker import portions
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.stranded import ABSENT, MOVED, REFUSED, Destination, Leftover, Leftovers
from tests.broker.rig import Rig, payload

pytestmark = pytest.mark.one_server

HOUR = 3_600_000


@pytest.fixture
def taken(rig: Rig) -> Leftovers:
    return Leftovers(rig.store, "unacked", "unacked_index")


def hold(rig: Rig, *tags: str) -> None:
    for tag in tags:
        rig.client.hset("unacked", tag, f"[{payload(tag)}]")
        rig.client.zadd("unacked_index", {tag: 1})


def destination(tag: bytes, due_ms: float | None = None, *queues: str, step: int = 0) -> Destination:
    return Destination(queues or ("q",), step, payload(tag.decode()).encode(), tag.decode(), due_ms)


def move(taken: Leftovers, due_ms: float | None = None, *queues: str, step: int = 0) -> list[int]:
    moves = ((each, destination(each.tag, due_ms, *queues, step=step)) for each in taken.iter())
    return [outcome for _, _, outcome in taken.move(moves)]


def test_into_the_schedule(rig: Rig, taken: Leftovers) -> None:
    hold(rig, "a")
    due_ms = rig.database.now_ms() + HOUR + 0.25
    assert move(taken, due_ms, step=3) == [MOVED]
    assert rig.scheduled("q") == [f"3:{payload('a')}"]
    assert rig.client.zscore(rig.store.keys("q").schedule, "a") == due_ms
    assert (taken.count(), rig.client.exists("unacked_index")) == (0, 0)
    assert (rig.tokens("q"), rig.store.queues()) == (1, ["q"])


def test_to_the_head_of_all_its_queues(rig: Rig, taken: Leftovers) -> None:
    hold(rig, "a")
    rig.put("q", "first", step=6)
    rig.use_up_token("q")
    assert move(taken, None, "q", "r", step=6) == [MOVED]
    counted = payload("a").replace("{", '{"redisdelay-deliveries": 1, ', 1)
    assert (rig.ready("q", 6), rig.ready("r", 6)) == ([counted, "first"], [counted])
    assert (rig.tokens("q"), rig.tokens("r")) == (1, 1)


def test_what_a_stock_worker_acks_meanwhile_is_left_alone(rig: Rig, taken: Leftovers) -> None:
    hold(rig, "acked", "taken again", "stays")
    found = {each.tag: each for each in taken.iter()}
    rig.client.hdel("unacked", "acked")
    rig.client.hset("unacked", "taken again", "another")
    outcomes = {
        each.tag: outcome for each, _, outcome in taken.move((e, destination(e.tag)) for e in found.values())
    }
    assert outcomes == {b"acked": ABSENT, b"taken again": ABSENT, b"stays": MOVED}
    assert rig.client.hgetall("unacked") == {b"taken again": b"another"}


@pytest.mark.parametrize("key", ["schedule", "messages", "duplicates"])
def test_a_key_of_a_wrong_type_keeps_the_message_where_it_is(rig: Rig, taken: Leftovers, key: str) -> None:
    hold(rig, "a")
    rig.client.set(rig.key("q", key), "")
    assert move(taken, rig.database.now_ms() + HOUR, "other", "q") == [REFUSED]
    assert (taken.count(), rig.scheduled("other")) == (1, [])


def test_a_page_has_fewer_if_they_are_large(
    rig: Rig, taken: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "BYTES_PER_CALL", 10_000)
    for number in range(1000):
        rig.client.hset("unacked", str(number), "x" * 1000)
    asked: list[int] = []
    real = rig.store.server.call

    def call(*command: object) -> object:
        if command[0] == "HSCAN":
            asked.append(int(str(command[-1])))
        return real(*command)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store.server, "call", call)
    assert {each.tag for each in taken.iter()} == {b"%d" % number for number in range(1000)}
    assert max(asked) <= 20


def test_many_are_moved_in_several_steps(rig: Rig, taken: Leftovers) -> None:
    hold(rig, *map(str, range(500)))
    assert move(taken, rig.database.now_ms() + HOUR) == [MOVED] * 500
    assert len(rig.scheduled("q")) == 500


def test_duplicates_of_an_id_are_kept(rig: Rig, taken: Leftovers) -> None:
    hold(rig, "1", "2")
    rig.schedule("q", "ours", HOUR, id="id")
    due_ms = rig.database.now_ms() + HOUR
    moves = [(each, Destination(("q",), 0, each.tag, "id", due_ms)) for each in taken.iter()]
    assert [outcome for _, _, outcome in taken.move(moves)] == [MOVED, MOVED]
    assert sorted(rig.scheduled("q")) == ["0:1", "0:2", "0:ours"]


@pytest.mark.parametrize("from_the_tail", [True, False])
def test_from_a_ready_list_into_the_schedule(rig: Rig, from_the_tail: bool) -> None:
    names = [str(number) for number in range(30)]
    rig.put("q", *names, step=3)
    lists = ReadyLists(rig.store)
    wanted = names[-5:] if from_the_tail else names[:5]
    due_ms = float(rig.database.now_ms() + HOUR)
    chosen = (each for each in lists.iter("q") if each.payload.decode() in wanted)
    moved = lists.schedule_all("q", chosen, lambda each: (each.payload.decode(), due_ms, False))
    assert sorted(each.payload.decode() for each in moved) == sorted(wanted)
    assert rig.ready("q", 3) == [name for name in names if name not in wanted]
    assert sorted(rig.scheduled("q")) == sorted(f"3:{name}" for name in wanted)


def test_one_that_was_taken_meanwhile_is_not_scheduled(rig: Rig) -> None:
    rig.put("q", "a", "b")
    lists = ReadyLists(rig.store)
    found = list(lists.iter("q"))
    rig.client.rpop(rig.store.keys("q").ready)
    due_ms = float(rig.database.now_ms() + HOUR)
    moved = lists.schedule_all("q", found, lambda each: ("id", due_ms, False))
    assert [each.payload for each in moved] == [b"b"]
    assert (rig.ready("q"), rig.scheduled("q")) == ([], ["0:b"])


def test_a_leftover_is_what_the_hash_has(rig: Rig, taken: Leftovers) -> None:
    rig.client.hset("unacked", b"\xff", b"\x00")
    assert list(taken.iter()) == [Leftover(b"\xff", b"\x00")]


def test_the_tail_of_a_list(rig: Rig) -> None:
    rig.put("q", "other")
    rig.put("q", *map(str, range(7)), step=3)
    lists = ReadyLists(rig.store)
    assert [each.payload for each in lists.tail("q", 3, 0, 3)] == [b"6", b"5", b"4"]
    # Only the half that is taken last. Each knows how many are taken before it.
    assert [(each.payload, each.position) for each in lists.tail("q", 3, 2, 10)] == [(b"4", 5), (b"3", 4)]
    assert lists.tail("q", 3, 4, 10) == []
    assert lists.tail("q", 6, 0, 10) == []
