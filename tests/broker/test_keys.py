"""The layout of keys, which is a contract: stock kombu, operators and older versions read it."""

from __future__ import annotations

from enum import Enum

import pytest

from kombu_redisdelay.broker.keys import known_queues, queue_keys

SEPARATOR = "\x06\x16"


@pytest.mark.parametrize("prefix", ["", "app1:"])
def test_layout(prefix: str) -> None:
    keys = queue_keys(prefix, "celery", SEPARATOR)
    assert keys.ready == f"{prefix}celery"
    assert keys.ready_at(0) == f"{prefix}celery"
    assert keys.ready_at(6) == f"{prefix}celery\x06\x166"
    assert keys.schedule == f"{prefix}redisdelay:{{celery}}:schedule"
    assert keys.messages == f"{prefix}redisdelay:{{celery}}:messages"
    assert keys.unacked("me") == f"{prefix}redisdelay:{{celery}}:unacked:me"
    assert keys.consumers == f"{prefix}redisdelay:{{celery}}:consumers"
    assert keys.wake == f"{prefix}redisdelay:{{celery}}:wake"
    assert keys.dead == f"{prefix}redisdelay:{{celery}}:dead"
    assert keys.claim("what") == f"{prefix}redisdelay:{{celery}}:claim:what"
    assert known_queues(prefix) == f"{prefix}redisdelay:known-queues"


def test_separator_is_kombus_option() -> None:
    assert queue_keys("", "celery", ":").ready_at(3) == "celery:3"


def test_a_queue_may_be_named_like_a_key() -> None:
    keys = queue_keys("", "schedule", SEPARATOR)
    assert keys.unacked("me") == "redisdelay:{schedule}:unacked:me"


def test_a_name_from_an_enum_is_its_value() -> None:
    class Name(str, Enum):
        FAST = "from-an-enum"

    keys = queue_keys("", Name.FAST, SEPARATOR)
    assert keys.schedule == "redisdelay:{from-an-enum}:schedule"
    assert keys.ready_at(3) == f"from-an-enum{SEPARATOR}3"
