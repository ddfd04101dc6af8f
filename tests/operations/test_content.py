"""What a stored message says of itself."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from kombu.utils.json import dumps

from kombu_redisdelay.operations.content import Content

_ID = UUID("747980a6-f22b-4a79-b3e9-fc6cf7ed85c2")


_MESSAGE = {"body": "", "headers": {"task": "shop.close_order"}, "properties": {}}


def _payload(**headers: Any) -> str:
    return str(dumps({"body": "", "headers": headers, "properties": {"delivery_tag": "tag"}}))


def _hidden(text: str) -> str:
    """The same JSON, written in another way."""
    return text.replace("__type__", "\\u005f_type__")


@pytest.mark.parametrize("payload", [_payload(id=_ID), _hidden(_payload(id=_ID))])
def test_values_that_json_does_not_have(payload: str) -> None:
    assert Content.of(payload.encode(), "").headers == {"id": _ID}


@pytest.mark.parametrize(
    "payload",
    [
        b'{"__type__": "nothing", "__value__": 1}',
        b'{"headers": {"a": {"__type__": "nothing", "__value__": 1}}, "properties": {}}',
        json.dumps(_MESSAGE).encode("utf-16"),
        json.dumps(_MESSAGE).encode("utf-8-sig"),
        json.dumps(_MESSAGE).encode() + b"{}",
        b"",
        b"\xff",
    ],
)
def test_what_kombu_cannot_read_is_no_message(payload: bytes) -> None:
    assert Content.of(payload, "otherwise") == Content("otherwise")
