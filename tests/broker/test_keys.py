"""The layout of keys, which is a contract: stock kombu, operators and older versions read it."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

from kombu_redisdelay.broker.keys import expected_type, known_queues, redis_keys

SEPARATOR = "\x06\x16"


@pytest.mark.parametrize("prefix", ["", "app1:"])
def test_layout(prefix: str) -> None:
    keys = redis_keys(prefix, "celery", SEPARATOR)
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
    assert redis_keys("", "celery", ":").ready_at(3) == "celery:3"


def test_a_queue_may_be_named_like_a_key() -> None:
    keys = redis_keys("", "schedule", SEPARATOR)
    assert keys.unacked("me") == "redisdelay:{schedule}:unacked:me"


def test_a_name_from_an_enum_is_its_value() -> None:
    class Name(str, Enum):
        FAST = "from-an-enum"

    keys = redis_keys("", Name.FAST, SEPARATOR)
    assert keys.schedule == "redisdelay:{from-an-enum}:schedule"
    assert keys.ready_at(3) == f"from-an-enum{SEPARATOR}3"


def test_the_page_has_each_of_them_and_its_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "keys.rst").read_text()
    of_queue = page.partition("``redisdelay:known-queues``")[0]
    rows = re.findall(r"^   \* - ``redisdelay:\{Q\}:(.+)``\n     - (\w+)$", of_queue, re.MULTILINE)
    said = {re.sub("<.*", "", name): kind for name, kind in rows}
    # The list of a key: its name begins with a step, or with nothing.
    assert said.pop("") == expected_type("redisdelay:{Q}:3:key") == "list"
    names = [key.removeprefix("redisdelay:{Q}:") for key in redis_keys("", "Q", "").own]
    assert set(said) == {*names, "turns:", "unacked:", "claim:", "finished:sent:"}
    assert said == {name: expected_type(f"redisdelay:{{Q}}:{name}") for name in said}


@pytest.mark.parametrize("queue", ["messages", "fair", "x}:messages", "history"])
@pytest.mark.parametrize("in_slots", [False, True])
def test_a_ready_list_named_as_one_of_ours_is_a_list(queue: str, in_slots: bool) -> None:
    keys = redis_keys("", queue, "\x06\x16", in_slots=in_slots)
    assert expected_type(keys.ready) == "list"
    assert expected_type(keys.messages) == "hash"


@pytest.mark.parametrize("queue", ["x_kombu.binding.y", "a:redisdelay:known-queues", "_kombu.binding.q"])
def test_the_keys_of_a_queue_with_an_odd_name(queue: str) -> None:
    keys = redis_keys("", queue, "\x06\x16")
    assert [expected_type(key) for key in (keys.messages, keys.schedule, keys.wake)] == [
        "hash",
        "zset",
        "zset",
    ]
