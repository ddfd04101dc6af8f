"""The partitions of queues, by name."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from kombu_redisdelay.broker.keys import Partitions

PARTITIONS = Partitions({"emails": 8, "one": 1})


def test_a_queue_is_its_own_first_partition() -> None:
    names = PARTITIONS.names("emails")
    assert names == ("emails", *(f"emails#{number}" for number in range(1, 8)))
    assert PARTITIONS.names("one") == ("one",)
    assert PARTITIONS.names("other") == ("other",)


def test_all_names_come_once() -> None:
    assert PARTITIONS.all_names(["one", "emails", "emails#1", "one"]) == ["one", *PARTITIONS.names("emails")]


def test_the_queue_of_a_partition() -> None:
    assert {PARTITIONS.queue_of(name) for name in PARTITIONS.names("emails")} == {"emails"}
    assert PARTITIONS.queue_of("emails#8") == "emails#8", "it is none of them"
    assert PARTITIONS.queue_of("other") == "other"


def test_the_same_id_is_always_in_the_same_partition() -> None:
    # Other processes, and other releases, must find the same.
    assert PARTITIONS.pick("emails", "an id") == "emails#7"
    assert PARTITIONS.pick("emails", "") == "emails"
    assert PARTITIONS.pick("other", "an id") == "other"


def test_ids_are_spread_evenly() -> None:
    picked = Counter(
        PARTITIONS.pick("emails", str(UUID(int=number << 64 | number))) for number in range(8000)
    )
    assert len(picked) == 8
    assert max(picked.values()) < 1.2 * min(picked.values())
