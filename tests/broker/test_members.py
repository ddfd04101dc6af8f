"""What is ours in a message stands first in its JSON object, whatever of it is there."""

from __future__ import annotations

import json
from itertools import product

import pytest

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.members import DELIVERIES, DUE, LOST, NAMES, UNKNOWN, Members
from kombu_redisdelay.broker.message import check, mark_delivery
from kombu_redisdelay.broker.paging import REQUEUE
from tests.broker.rig import Rig, take_out, taken

PUBLISHED = '"body": "a", "headers": {}, "properties": {"delivery_tag": "t", "body_encoding": null}}'

#: One value for each of NAMES.
VALUES = {DELIVERIES: 3, LOST: 2, DUE: 1700000000000, UNKNOWN: 1700000000001}

SUBSETS = [
    {name: VALUES[name] for name, is_there in zip(NAMES, there, strict=True) if is_there}
    for there in product((False, True), repeat=len(NAMES))
]


def written(found: dict[str, int]) -> str:
    """As the scripts write them, in the order of NAMES."""
    return "{" + "".join(f'"{name}": {found[name]}, ' for name in NAMES if name in found) + PUBLISHED


def failed_once_more(found: dict[str, int]) -> dict[str, int]:
    after = {**found, DELIVERIES: found.get(DELIVERIES, 0) + 1}
    if DELIVERIES not in found:
        # Nothing can have been lost then.
        after.pop(LOST, None)
    # Who tried it knows its task.
    after.pop(UNKNOWN, None)
    return after


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset) or "none")
class TestEverySubset:
    def test_is_read(self, subset: dict[str, int]) -> None:
        payload = written(subset)
        assert members.due_ms(payload.encode()) == subset.get(DUE)
        decoded = check(json.loads(payload))
        assert mark_delivery(decoded) == Members(
            subset.get(DELIVERIES, 0), subset.get(LOST, 0), subset.get(DUE), subset.get(UNKNOWN)
        )
        assert not set(NAMES).intersection(decoded)

    def test_counts_a_failed_delivery(self, rig: Rig, subset: dict[str, int]) -> None:
        rig.put("q", written(subset))
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        assert rig.ready("q") == [written(failed_once_more(subset))]

    def test_gets_another_due_time_if_it_has_one(self, rig: Rig, subset: dict[str, int]) -> None:
        rig.put("q", written(subset))
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        before_ms = rig.database.now_ms()
        assert consumer.requeue("q", delivery.tag, 1000)
        stored = rig.client.hget(rig.store.keys("q").messages, "t")
        assert stored is not None
        step, payload = stored.decode().split(":", 1)
        after = failed_once_more(subset)
        if DUE in subset:
            after[DUE] = members.due_ms(payload.encode()) or 0
            assert after[DUE] >= before_ms
        assert (step, payload) == ("0", written(after))

    def test_keeps_only_the_due_time_as_a_dead_letter(self, rig: Rig, subset: dict[str, int]) -> None:
        rig.put("q", written(subset))
        consumer = rig.consumer(delivery_limit=1)
        [delivery] = taken(consumer, "q")
        consumer.requeue("q", delivery.tag)
        [letter] = rig.dead("q")
        why, _, payload = letter.partition("\n")
        assert payload == written({name: value for name, value in subset.items() if name == DUE})
        assert why.split()[1] == str(subset.get(DELIVERIES, 0) + 1)


@pytest.mark.parametrize("digits", ["1" + "0" * 15, "9" * 23, "1" + "0" * 400])
def test_a_count_that_somebody_else_has_written_is_bounded(rig: Rig, digits: str) -> None:
    rig.put("q", f'{{"{DELIVERIES}": {digits}, {PUBLISHED}')
    consumer = rig.consumer(delivery_limit=3)
    [delivery] = taken(consumer, "q")
    consumer.requeue("q", delivery.tag)
    [letter] = rig.dead("q")
    assert letter.split()[1] == "1000000000"
    assert letter.partition("\n")[2] == "{" + PUBLISHED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["3", True, 1.5, -1, None, [], 10**15, 10**400])
def test_another_value_is_named(name: str, value: object) -> None:
    assert members.wrong_member({name: value}) == name
    assert members.wrong_member({}) is None


def test_a_published_message_says_when_it_is_due() -> None:
    assert members.due_ms(members.with_own('{"body": ""}', 12.9, "1 a").encode()) == 12


@pytest.mark.parametrize("digits", ["1" * 16, "-1", "1.5", '"1"'])
def test_what_is_no_time_is_no_due_time(digits: str) -> None:
    assert members.due_ms(f'{{"{DUE}": {digits}, {PUBLISHED}'.encode()) is None


@pytest.mark.parametrize("step", ["9" * 9, "1" * 10, "1" * 30])
def test_a_priority_step_of_many_digits_leaves_a_dead_letter_readable(rig: Rig, step: str) -> None:
    """Somebody's hand in a hash of ours."""
    rig.put("q", written({}))
    consumer = rig.consumer()
    [delivery] = taken(consumer, "q")
    rig.client.hset(rig.store.keys("q").unacked(consumer.name), delivery.tag, f"{step}:{written({})}")
    assert consumer.make_dead("q", delivery.tag, "no good")
    [letter] = rig.dead("q")
    said, _, payload = letter.partition("\n")
    assert said.split(" ", 1)[1] == f"0 {step if len(step) < 10 else 0} no good"
    assert payload == written({})
    assert take_out(rig.store, "q", REQUEUE) == 1
    assert len(rig.ready("q", int(step) if len(step) < 10 else 0)) == 1


@pytest.mark.parametrize("step", ["1" * 10, "1" * 30])
def test_what_has_a_priority_step_of_many_digits_comes_back(rig: Rig, step: str) -> None:
    """To a list that is read."""
    rig.put("q", written({}))
    consumer = rig.consumer()
    [delivery] = taken(consumer, "q")
    rig.client.hset(rig.store.keys("q").unacked(consumer.name), delivery.tag, f"{step}:{written({})}")
    assert consumer.give_back("q", delivery.tag)
    assert len(taken(consumer, "q")) == 1
