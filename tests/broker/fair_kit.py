"""What tests of fair queues share."""

from __future__ import annotations

from collections.abc import Sequence

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.fair_keys import key_of
from tests.broker.rig import Rig, taken
from tests.broker.test_fair_invariant import fair_payload, id_of


def publish(rig: Rig, key: str, *ids: str, weight: float = 1, step: int = 0) -> None:
    rig.put("q", *(fair_payload(id, key, weight) for id in ids), step=step)


def numbered(key: str, count: int) -> list[str]:
    return [f"{key}{number}" for number in range(count)]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [id_of(delivery.payload) for delivery in deliveries]


def keys_of(deliveries: Sequence[Delivery]) -> list[str]:
    return [key_of(delivery.payload).key for delivery in deliveries]


def take_all(me: Consumer, limit: int = 64) -> list[Delivery]:
    every: list[Delivery] = []
    while some := taken(me, "q", limit=limit):
        every += some
    return every
