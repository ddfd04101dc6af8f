"""What a stored message says of itself, and how to change when it says that it is due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from kombu.utils.json import loads

from kombu_redisdelay.broker.message import DELAY_HEADER, ETA_HEADER, check, message_id
from kombu_redisdelay.broker.times import from_ms


@dataclass(frozen=True, slots=True)
class Content:
    """See :class:`~kombu_redisdelay.operations.delayed.DelayedMessage` for the attributes."""

    id: str
    task: str | None = None
    args: str = ""
    kwargs: str = ""
    priority: int = 0
    headers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: bytes, otherwise: str) -> Content:
        """What is in *payload*, as it is in Redis.

        Arguments:
            otherwise: the id if there is none in it, or it is not a message.
        """
        try:
            message = check(loads(payload))
        except Exception:
            # Whatever foreign bytes make a decoder raise. Who looks at a queue wants to see these, too.
            return cls(otherwise)
        headers, properties = message["headers"], message["properties"]
        properties["delivery_tag"] = properties.get("delivery_tag") or otherwise
        task, priority = headers.get("task"), properties.get("priority")
        return cls(
            message_id(message),
            task if isinstance(task, str) else None,
            str(headers.get("argsrepr") or ""),
            str(headers.get("kwargsrepr") or ""),
            priority if isinstance(priority, int) else 0,
            headers,
        )


def with_due(payload: bytes, due_ms: float, now_ms: float) -> bytes:
    """*payload* with the headers that say when it is due set to *due_ms*, by a clock that shows *now_ms*."""
    return _with_headers(payload, from_ms(due_ms).isoformat(), ceil(due_ms - now_ms))


def without_due(payload: bytes) -> bytes:
    """*payload* with the headers that say when it is due set to: at once."""
    return _with_headers(payload, None, 0)


def _with_headers(payload: bytes, eta: str | None, delay_ms: int) -> bytes:
    # Not kombu's JSON, which makes objects of some of it.
    try:
        message = json.loads(payload)
        headers = message["headers"]
        if headers.get(ETA_HEADER):
            headers[ETA_HEADER] = eta
        if headers.get(DELAY_HEADER):
            headers[DELAY_HEADER] = delay_ms
    except (ValueError, TypeError, KeyError, AttributeError):
        # Not a message, and says nothing of when it is due.
        return payload
    return json.dumps(message).encode()
