"""Reads properties, headers and arguments of a stored message, and changes its due time in the headers."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from kombu import serialization
from kombu.compression import decompress
from kombu.utils.json import loads

from kombu_redisdelay.broker import fair_keys, unique
from kombu_redisdelay.broker.members import DELIVERIES, UNIQUE, UNKNOWN
from kombu_redisdelay.broker.message import (
    DELAY_HEADER,
    ETA_HEADER,
    check,
    eta_ms,
    expires_ms,
    from_ms,
    message_id,
)
from kombu_redisdelay.operations.typed import fits


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a stored message. For the other attributes, see
    :class:`~kombu_redisdelay.operations.message.MessageInfo`.

    Attributes:
        failures: how many deliveries of it have failed.
        unknown_ms: since when it waits for a worker that knows its task, ms since the epoch; ``None`` if it
            does not.
        unique: its unique key (:class:`~kombu_redisdelay.Unique`).
        key: by which it takes turns in a fair queue; empty if it has none.
        tag: the delivery tag that it was published with. No two messages have the same; ``None`` if it has
            none.
    """

    id: str
    task: str | None = None
    args: str = ""
    kwargs: str = ""
    priority: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    unknown_ms: int | None = None
    tag: str | None = None
    unique: str | None = None
    key: str = ""

    @classmethod
    def of(cls, payload: bytes, otherwise: str) -> Content:
        """Read the content of *payload*.

        Arguments:
            payload: the message as it is stored in Redis.
            otherwise: the id to use if the payload has none, or is not a message.
        """
        try:
            message = message_of(payload)
        except Exception:
            # Foreign bytes may make the decoder raise any exception. Such an entry must still be shown.
            return cls(otherwise)
        headers, properties = message["headers"], message["properties"]
        tag = properties.get("delivery_tag")
        properties["delivery_tag"] = tag or otherwise
        task, priority = headers.get("task"), properties.get("priority")
        return cls(
            message_id(message),
            task if isinstance(task, str) else None,
            str(headers.get("argsrepr") or ""),
            str(headers.get("kwargsrepr") or ""),
            priority if isinstance(priority, int) else 0,
            headers,
            message.get(DELIVERIES, 0),
            message.get(UNKNOWN),
            str(tag) if tag else None,
            _unique_key(message.get(UNIQUE)),
            fair_keys.read_key(message).key,
        )


def _unique_key(member: Any) -> str | None:
    """The unique key in a member of a message, which another program may have written."""
    is_ours = isinstance(member, list) and len(member) == 3 and isinstance(member[2], str)
    return unique.read(member[2]) if is_ours else None


def message_of(payload: bytes) -> dict[str, Any]:
    """The message that *payload* is. It raises any exception if *payload* is none."""
    return check(_decoded(payload))


def properties_of(payload: bytes) -> Mapping[str, Any]:
    """The properties of the message that *payload* is; empty if it is none."""
    try:
        properties: Mapping[str, Any] = message_of(payload)["properties"]
    except Exception:
        # Foreign bytes may make the decoder raise any exception.
        return {}
    return properties


def _decoded(payload: bytes) -> Any:
    """What kombu makes of *payload*. kombu looks in each JSON object for values that JSON does not have. That
    takes time. Such values have a member of this name, unless an escape hides the name."""
    if b"__type__" in payload or b"\\u" in payload:
        return loads(payload)
    return json.loads(payload.decode())


def is_task(name: str | None, pattern: str | None) -> bool:
    """Whether a message with the task *name* is one of those that *pattern* picks, in which ``*``, ``?`` and
    ``[...]`` are wildcards. ``None`` as the pattern picks all, also what is not a task."""
    return pattern is None or (name is not None and fits(name, pattern))


def has_expired(content: Content, now_ms: float) -> bool:
    """Whether a worker would discard the task because it is late.

    Arguments:
        now_ms: the server's clock, ms since the epoch.
    """
    at_ms = expires_ms(content.headers)
    return at_ms is not None and now_ms > at_ms


#: The headers by which Celery says what a task belongs to.
_RELATED = ("group", "parent_id", "root_id")


def is_related(id: str, headers: Mapping[str, Any], related: str | None) -> bool:
    """Whether *related* is the id of a message, or that of its group, its parent or its root. ``None`` picks
    all."""
    return related is None or id == related or any(headers.get(name) == related for name in _RELATED)


def with_due(payload: bytes, due_ms: float, now_ms: float) -> bytes:
    """Return *payload* with another due time in its headers.

    Arguments:
        due_ms: the new due time, ms since the epoch.
        now_ms: the present time, ms since the epoch; ``x-delay`` counts from it.
    """
    return _with_headers(payload, from_ms(due_ms).isoformat(), ceil(due_ms - now_ms))


def without_due(payload: bytes) -> bytes:
    """Return *payload* with headers that make it due at once."""
    return _with_headers(payload, None, 0)


def with_eta(payload: bytes, due_ms: float) -> bytes:
    """Return *payload*, if it is a Celery task, with the header by which a worker itself waits until
    *due_ms*, ms since the epoch."""
    try:
        message = json.loads(payload)
        headers = message["headers"]
        if "task" not in headers or abs(eta_ms(headers) - due_ms) < 1:
            return payload
        headers[ETA_HEADER] = from_ms(due_ms).isoformat()
        return json.dumps(message).encode()
    except Exception:
        # As below.
        return payload


def _with_headers(payload: bytes, eta: str | None, delay_ms: int) -> bytes:
    # The standard library's JSON: kombu's would turn some values into objects.
    try:
        message = json.loads(payload)
        headers = message["headers"]
        if headers.get(ETA_HEADER):
            headers[ETA_HEADER] = eta
        if headers.get(DELAY_HEADER):
            headers[DELAY_HEADER] = delay_ms
        return json.dumps(message).encode()
    except Exception:
        # Foreign bytes may make the decoder raise any exception. They have no due time to change.
        return payload


#: What is decoded. Decoding pickle may run any code.
_ACCEPTED = frozenset(("application/json",))

#: Positional and keyword arguments.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def arguments_of(payload: bytes) -> Arguments | None:
    """The arguments of a task, ``None`` if its body cannot be decoded.

    Arguments:
        payload: a message of version 2 of Celery's protocol, as it is stored.
    """
    try:
        args, kwargs, _ = _decoded_body(payload)
        # Some nest too deeply for Python to write them. They cannot be shown or compared.
        str((args, kwargs)), _as_json((args, kwargs))
    except Exception:
        # Foreign bytes may make the decoders raise any exception.
        return None
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def embedded_in(payload: bytes) -> Mapping[str, Any] | None:
    """What else the body of a task says: its callbacks, the rest of its chain, its chord. ``None`` if it
    cannot be decoded."""
    try:
        _, _, embedded = _decoded_body(payload)
    except Exception:
        # As above.
        return None
    return embedded if isinstance(embedded, dict) else None


def _decoded_body(payload: bytes) -> Any:
    message = message_of(payload)
    return serialization.loads(
        _body(message), message["content-type"], message["content-encoding"], accept=_ACCEPTED
    )


def _body(message: Mapping[str, Any]) -> Any:
    body, compression = message["body"], message["headers"].get("compression")
    if message["properties"].get("body_encoding") == "base64":
        body = b64decode(body)
    return decompress(body, compression) if compression else body


def has_argument(arguments: Arguments, wanted: str) -> bool:
    """Whether *wanted* is one of the arguments.

    Arguments:
        wanted: a value, such as ``42``, or a keyword argument, such as ``order_id=42``. Values are written as
            ``str`` or JSON writes them, and ``*``, ``?`` and ``[...]`` are wildcards.
    """
    args, kwargs = arguments
    name, is_named, value = wanted.partition("=")
    return any(_is(each, wanted) for each in (*args, *kwargs.values())) or bool(
        is_named and name in kwargs and _is(kwargs[name], value)
    )


def _is(value: Any, wanted: str) -> bool:
    return any(text == wanted or fits(text, wanted) for text in {str(value), _as_json(value)})


def _as_json(value: Any) -> str:
    # kombu's JSON has dates and other objects, which are compared as texts.
    return json.dumps(value, ensure_ascii=False, default=str)
