"""Entries that are no message: what hypothesis makes of the things that end up in a queue by mistake."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

MESSAGE: dict[str, Any] = {
    "body": "W1tdLCB7fSwge31d",
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {"task": "t", "id": "i"},
    "properties": {"body_encoding": "base64", "delivery_tag": "d", "delivery_info": {"exchange": ""}},
}

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)

#: Numbers that no priority is made of.
_INFINITE = (float("inf"), float("-inf"))

#: Any JSON value.
values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

containers = values.filter(lambda value: isinstance(value, (list, dict)))

#: In many places, what is empty counts as nothing.
_empty: st.SearchStrategy[Any] = st.sampled_from([[], {}])

no_objects = values.filter(lambda value: not isinstance(value, dict))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in MESSAGE.items() if key != name}


def with_properties(**changes: Any) -> dict[str, Any]:
    return {**MESSAGE, "properties": {**MESSAGE["properties"], **changes}}


def with_headers(**changes: Any) -> dict[str, Any]:
    return {**MESSAGE, "headers": {**MESSAGE["headers"], **changes}}


#: JSON of another shape than a message.
misshapen: st.SearchStrategy[Any] = st.one_of(
    no_objects,
    values.filter(lambda value: isinstance(value, dict) and "properties" not in value),
    st.just(without("properties")),
    no_objects.map(lambda value: {**MESSAGE, "properties": value}),
    no_objects.filter(bool).map(lambda value: {**MESSAGE, "headers": value}),
    no_objects.filter(bool).map(lambda value: with_properties(delivery_info=value)),
    st.just(without("body")),
    values.filter(lambda value: not isinstance(value, str)).map(lambda value: {**MESSAGE, "body": value}),
    st.builds(
        lambda name, value: {**MESSAGE, name: value},
        st.sampled_from(["content-type", "content-encoding"]),
        values.filter(lambda value: not isinstance(value, str) and value),
    ),
    st.builds(
        lambda name, value: with_properties(**{name: value}),
        st.sampled_from(["priority", "reply_to", "correlation_id"]),
        containers.filter(bool),
    ),
    st.sampled_from(_INFINITE).map(lambda value: with_properties(priority=value)),
    st.builds(
        lambda name, value: with_properties(delivery_info={name: value}),
        st.sampled_from(["exchange", "routing_key", "consumer_tag"]),
        containers.filter(bool),
    ),
    _empty.map(lambda value: with_properties(delivery_info={"consumer_tag": value})),
    values.filter(lambda value: value and value != "base64").map(
        lambda value: with_properties(body_encoding=value)
    ),
    # One character more than a multiple of four is no base64, however leniently it is read.
    st.from_regex(r"(?:[A-Za-z0-9+/]{4})*[A-Za-z0-9+/]", fullmatch=True).map(
        lambda body: {**MESSAGE, "body": body}
    ),
    st.characters(categories=["Cs"]).map(lambda half: {**MESSAGE, "body": half}),
    st.text(min_size=1, max_size=20).map(lambda name: with_headers(compression=f"no {name}")),
    values.filter(lambda value: not isinstance(value, int) or isinstance(value, bool)).map(
        lambda value: {**MESSAGE, "redisdelay-deliveries": value}
    ),
)


def _written(value: Any, indent: int | None, spaces: bool) -> bytes:
    """*value* as one of the encoders in the world would write it."""
    return json.dumps(value, indent=indent, separators=None if spaces else (",", ":")).encode()


json_of_another_shape = st.builds(_written, misshapen, st.sampled_from([None, 1]), st.booleans())

_message = json.dumps(MESSAGE).encode()

#: Whole messages that were cut off, or that bytes got into which are not UTF-8.
damaged = st.one_of(
    st.integers(0, len(_message) - 1).map(lambda length: _message[:length]),
    st.builds(
        lambda at, byte: _message[:at] + bytes([byte]) + _message[at:],
        st.integers(0, len(_message)),
        st.integers(0x80, 0xFF),
    ),
    st.sampled_from([b"\xef\xbb\xbf", b"\x00", b"{", b","]).map(lambda junk: junk + _message),
    st.sampled_from([b"\x00", b"}", b"5", _message]).map(lambda junk: _message + junk),
)

nested = st.builds(
    lambda opening, depth: opening * depth, st.sampled_from([b"[", b'{"a":', b'[{"a":']), st.just(10_000)
)


#: What `stored.lua` takes for the priority step in front of a message that is kept in a hash.
_STEP = re.compile(rb"\d+:")

#: Bytes that are no message, whoever reads them.
entries = st.one_of(
    st.just(b""), st.binary(max_size=200), json_of_another_shape, damaged, st.text().map(str.encode)
).filter(lambda entry: not _STEP.match(entry))

_names = st.one_of(_scalars, values, st.characters(categories=["Cs"]))
_moments = st.sampled_from(["2099-01-01T00:00:00+00:00", "2099-01-01", "0001-01-01T00:00:00+23:59", "soon"])

#: Messages that can be delivered, however strange what stands in them is.
strange = st.builds(
    lambda headers, properties: {**MESSAGE, "headers": headers, "properties": properties},
    st.fixed_dictionaries({}, optional={"id": _names, "eta": _names | _moments, "task": _names, "x": values}),
    st.fixed_dictionaries(
        {},
        optional={
            "delivery_tag": _names,
            "message_id": _names,
            "correlation_id": _scalars | _empty,
            "priority": _scalars.filter(lambda value: value not in _INFINITE) | _empty,
            "reply_to": _scalars | _empty,
            "delivery_info": _empty | st.fixed_dictionaries({"exchange": _empty, "routing_key": _empty}),
            "body_encoding": st.just("base64"),
        },
    ),
).map(lambda message: json.dumps(message).encode())
