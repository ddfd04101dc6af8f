"""Scheduled messages that a consumer of their queue takes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kombu_redisdelay.broker import schedule as module
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.broker.schedule import Withdrawal
from tests.broker.rig import Rig, payload

HOUR = 3_600_000


def withdrawn(rig: Rig, *ids: str) -> list[str]:
    return [text.decode() for text in Withdrawal(rig.store).by_ids("q", ids)]


def test_by_ids(rig: Rig) -> None:
    for id in ("a", "b", "c"):
        rig.schedule("q", payload(id), HOUR, id=id, step=3)
    assert withdrawn(rig, "c", "unknown", "a") == [payload("c"), payload("a")]
    assert rig.scheduled("q") == ["3:" + payload("b")]
    assert withdrawn(rig, "c", "a") == []


def test_all_with_an_id(rig: Rig) -> None:
    for number in range(5):
        rig.schedule("q", payload(str(number)), HOUR + number, id="same")
    rig.schedule("q", payload("other"), HOUR, id="sam")
    assert sorted(withdrawn(rig, "same")) == [payload(str(number)) for number in range(5)]
    assert rig.scheduled("q") == ["0:" + payload("other")]
    assert rig.listed_duplicates("q") == set()


def test_the_duplicates_of_one_that_is_gone(rig: Rig) -> None:
    for number in range(3):
        rig.schedule("q", payload(str(number)), HOUR + number, id="same")
    keys = rig.store.keys("q")
    # As if the first two had been delivered.
    for member in rig.client.zrange(keys.schedule, 0, 1):
        rig.client.zrem(keys.schedule, member)
        rig.client.hdel(keys.messages, member)
    assert withdrawn(rig, "same") == [payload("2")]
    assert rig.listed_duplicates("q") == set()


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_more_duplicates_than_one_call_looks_at(rig: Rig, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(module, "MESSAGES_PER_CALL", most)
    for id in ("a", "b"):
        for number in range(5):
            rig.schedule("q", payload(f"{id}{number}"), HOUR, id=id)
    expected = [payload(f"{id}{number}") for id in ("a", "b") for number in range(5)]
    assert sorted(withdrawn(rig, "a", "unknown", "b")) == expected
    assert rig.scheduled("q") == []


def test_large_messages_one_in_each_call(rig: Rig) -> None:
    large = payload("x", body="x" * BYTES_PER_CALL)
    for _ in range(2):
        for id in ("a", "b"):
            rig.schedule("q", large, HOUR, id=id)
    assert withdrawn(rig, "a", "b") == [large] * 4


def test_many_ids_are_done_in_portions(rig: Rig) -> None:
    ids = [f"id{number}" for number in range(250)]
    for id in ids[::2]:
        rig.schedule("q", payload(id), HOUR, id=id)
    assert withdrawn(rig, *ids) == list(map(payload, ids[::2]))


def test_one_of_many_gets_it(rig: Rig) -> None:
    ids = [f"id{number}" for number in range(300)]
    for id in ids:
        rig.schedule("q", payload(id), HOUR, id=id)
    withdrawals = [Withdrawal(rig.new_store()) for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        each = list(pool.map(lambda one: list(one.by_ids("q", ids)), withdrawals))
    assert sorted(text.decode() for some in each for text in some) == sorted(map(payload, ids))


def test_those_that_match(rig: Rig) -> None:
    for number in range(450):
        rig.schedule("q", payload(f"id{number}"), HOUR + number, id=f"id{number}")
    removed = list(Withdrawal(rig.store).matching("q", lambda text: b"7" in text))
    assert removed == [payload(f"id{n}").encode() for n in range(450) if "7" in str(n)]
    assert rig.client.zcard(rig.store.keys("q").schedule) == 450 - len(removed)


def test_one_of_them_claims(rig: Rig) -> None:
    withdrawal = Withdrawal(rig.store)
    assert withdrawal.claim("q", "what", "me")
    assert not withdrawal.claim("q", "what", "another")
    assert withdrawal.claim("q", "what", "me")
    assert withdrawal.claim("q", "something else", "another")
    assert withdrawal.claim("r", "what", "another")


def test_a_claim_ends(rig: Rig) -> None:
    withdrawal = Withdrawal(rig.store)
    withdrawal.claim("q", "what", "me")
    [key] = [key for key in rig.all_keys() if b"claim" in key]
    assert 0 < rig.client.pttl(key) <= module.CLAIM_FOR * 1000


def test_a_due_time_that_has_lost_its_message_goes_too(rig: Rig) -> None:
    for number in range(2):
        rig.schedule("q", payload(str(number)), HOUR, id="same")
    keys = rig.store.keys("q")
    rig.client.delete(keys.messages)
    assert withdrawn(rig, "same", "unknown") == []
    assert not rig.client.exists(keys.schedule, keys.duplicates)
