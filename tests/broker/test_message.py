"""Ids, the marks of a redelivery, and what is no message at all."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_redisdelay.broker.message import MalformedMessage, check, mark_delivery, message_id, split_stored


def payload(**changes: Any) -> dict[str, Any]:
    return {
        "body": "e30=",
        "headers": {},
        "properties": {"delivery_tag": "tag", "delivery_info": {}},
        **changes,
    }


@pytest.mark.parametrize(
    ("headers", "properties", "expected"),
    [
        ({"id": "task"}, {"message_id": "m", "correlation_id": "c"}, "task"),
        ({}, {"message_id": "m", "correlation_id": "c"}, "m"),
        ({"id": None}, {"message_id": "", "correlation_id": "c"}, "c"),
        ({}, {}, "tag"),
        (None, {}, "tag"),
        ({"id": 17}, {}, "17"),
    ],
)
def test_id_is_the_one_the_application_knows(
    headers: dict[str, Any] | None, properties: dict[str, Any], expected: str
) -> None:
    assert message_id({"headers": headers, "properties": {**properties, "delivery_tag": "tag"}}) == expected


class TestMarkDelivery:
    def test_first_delivery_has_no_marks(self) -> None:
        first = payload(headers={"mine": 1})
        mark_delivery(first)
        assert first == payload(headers={"mine": 1})

    def test_redelivery(self) -> None:
        again = payload(**{"redisdelay-deliveries": 3})
        mark_delivery(again)
        assert again["headers"] == {"x-delivery-count": 3, "redelivered": True}
        assert again["properties"]["delivery_info"] == {"redelivered": True}
        assert "redisdelay-deliveries" not in again

    def test_count_of_the_message_that_a_retry_was_made_from_is_dropped(self) -> None:
        retry = payload(headers={"x-delivery-count": 4})
        mark_delivery(retry)
        assert retry["headers"] == {}


class TestCheck:
    def test_message(self) -> None:
        assert check(payload()) == payload()

    @pytest.mark.parametrize("headers", [{"headers": None}, {"headers": []}, {"headers": ""}, {}])
    def test_headers_may_be_missing(self, headers: dict[str, Any]) -> None:
        message = payload()
        del message["headers"]
        assert check({**message, **headers})["headers"] == {}

    def test_delivery_info_may_be_missing(self) -> None:
        assert check(payload(properties={}))["properties"] == {"delivery_info": {}}
        nothing: list[Any] = [None, [], {}]
        for empty in nothing:
            message = check(payload(properties={"delivery_info": empty, "reply_to": empty}))
            assert message["properties"]["delivery_info"] == {}

    @pytest.mark.parametrize("body", ["", "text"])
    def test_body(self, body: str) -> None:
        assert check(payload(body=body))["body"] == body

    @pytest.mark.parametrize(
        ("value", "what"),
        [
            ([], "list"),
            (5, "int"),
            ("text", "str"),
            (None, "null"),
            (True, "bool"),
            ({}, "properties"),
            (payload(properties=None), "properties"),
            (payload(properties=[]), "properties"),
            (payload(headers=["h"]), "headers"),
            (payload(headers="h"), "headers"),
            (payload(properties={"delivery_info": ["x"]}), "delivery_info"),
            (payload(properties={"delivery_info": {}, "reply_to": ["x"]}), "reply_to"),
            (payload(properties={"delivery_info": "x"}), "delivery_info"),
            (payload(body={}), "body"),
            (payload(body=5), "body"),
            (payload(**{"redisdelay-deliveries": "3"}), "redisdelay-deliveries"),
            (payload(**{"redisdelay-deliveries": True}), "redisdelay-deliveries"),
            (payload(**{"redisdelay-deliveries": 1.5}), "redisdelay-deliveries"),
        ],
    )
    def test_malformed(self, value: object, what: str) -> None:
        with pytest.raises(MalformedMessage, match=what) as caught:
            check(value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "step", "payload"),
    [
        (b'3:{"a": "b:c"}', 3, b'{"a": "b:c"}'),
        (b"0:", 0, b""),
        (b"{}", 0, b"{}"),
        (b"", 0, b""),
        (b":x", 0, b":x"),
        (b"-1:x", 0, b"-1:x"),
        (b"9" * 5000 + b":x", 0, b"x"),
    ],
)
def test_split_stored(stored: bytes, step: int, payload: bytes) -> None:
    assert split_stored(stored) == (step, payload)
