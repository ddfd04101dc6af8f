"""Reads the arguments of a Celery task from its message."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from kombu.compression import decompress
from kombu.serialization import loads

from kombu_redisdelay.operations.content import message_of
from kombu_redisdelay.operations.patterns import fits

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
        args, kwargs, _ = _decoded(payload)
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
        _, _, embedded = _decoded(payload)
    except Exception:
        # As above.
        return None
    return embedded if isinstance(embedded, dict) else None


def _decoded(payload: bytes) -> Any:
    message = message_of(payload)
    return loads(_body(message), message["content-type"], message["content-encoding"], accept=_ACCEPTED)


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
