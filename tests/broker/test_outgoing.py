"""A message that is published is read once, and nearly all say nothing to the broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kombu_redisdelay.broker import outgoing
from kombu_redisdelay.broker.message import KEEP
from kombu_redisdelay.broker.outgoing import ASKING, Addressed, Outgoing, has_times

TASK = {"task": "t", "id": "task-id", "eta": None, "expires": None, "retries": 0}
LATER = "2099-01-01T00:00:00+00:00"


def read(headers: dict[str, Any] | None = None, **properties: Any) -> Outgoing:
    properties = {"delivery_tag": "tag", "delivery_info": {"exchange": "", "routing_key": "q"}, **properties}
    message = Outgoing({"headers": headers, "properties": properties}, 0, json.dumps)
    message.write()
    return message


@pytest.mark.parametrize("headers", [{}, TASK, {"mine": 1}, {**TASK, "eta": ""}])
def test_nearly_all_are_plain(monkeypatch: pytest.MonkeyPatch, headers: dict[str, Any]) -> None:
    """Nothing else is called for them."""
    assert ASKING.isdisjoint(headers)
    assert not has_times(headers)
    for name in ("due", "on_conflict", "unique_of", "member_of"):
        monkeypatch.delattr(outgoing, name)
    message = read(headers)
    assert (message.due, message.on_conflict, message.key, message.unique) == (None, KEEP, None, None)


@pytest.mark.parametrize(
    "header",
    [
        *({"eta": LATER}, {"expires": LATER}, {"x-delay": 1000}, {"x-delay-on-conflict": "replace"}),
        *({"x-key": "tenant"}, {"x-key-weight": 2}),
        *({"x-unique": "key"}, {"x-unique-while": "done"}, {"x-unique-at-most": 60}),
    ],
)
def test_each_header_of_ours_is_read(header: dict[str, Any]) -> None:
    assert not ASKING.isdisjoint(header) or has_times({**TASK, **header})


def test_what_it_says() -> None:
    message = read({**TASK, "eta": LATER, "x-key": "tenant", "x-unique": "key", "x-unique-while": "latest"})
    assert message.due is not None
    assert message.due.at_ms > 0
    assert message.key == "1 tenant"
    assert message.unique is not None
    assert message.unique.key == message.partition_key == "key"
    first = list(json.loads(message.text))[:3]
    assert first == ["redisdelay-due", "redisdelay-key", "redisdelay-unique"]


@pytest.mark.parametrize("properties", [{"delivery_info": {}}, {"delivery_info": None}])
def test_one_of_another_program_may_say_no_exchange(properties: dict[str, Any]) -> None:
    message = read(TASK, **properties)
    assert message.destination == ("", "")
    assert not Addressed(message, "q").is_to_note


@pytest.mark.parametrize(
    ("headers", "properties", "is_new"),
    [
        (TASK, {}, True),
        ({**TASK, "retries": 1}, {}, False),
        ({**TASK, "parent_id": "p"}, {}, False),
        ({**TASK, "group_index": 1}, {}, False),
        (None, {}, True),
        (None, {"delivery_mode": 1}, False),
        (None, {"correlation_id": "c"}, False),
    ],
)
def test_new_work(headers: dict[str, Any] | None, properties: dict[str, Any], is_new: bool) -> None:
    assert read(headers, **properties).is_new_work is is_new


@pytest.mark.parametrize(
    ("headers", "properties", "id"),
    [
        (TASK, {"message_id": "m"}, "task-id"),
        ({}, {"message_id": "m", "correlation_id": "c"}, "m"),
        ({}, {"correlation_id": "c"}, "c"),
        ({}, {}, "tag"),
    ],
)
def test_its_id(headers: dict[str, Any], properties: dict[str, Any], id: str) -> None:
    message = read(headers, **properties)
    assert message.id == message.partition_key == id


def test_a_wrong_fair_key_is_no_error_for_what_follows_of_other_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="x-key"):
        read({**TASK, "x-key": 42})
    assert read({**TASK, "retries": 1, "x-key": 42}).key is None
    assert "Published without a key" in caplog.text
