"""Reads what the broker must know of a message: its id, when it is due, and how often it was delivered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import sha1
from math import isinf
from time import time
from typing import Any, TypeGuard
from uuid import UUID

from dateutil.parser import isoparse

from kombu_redisdelay.broker.members import (
    BEYOND,
    DIGITS,
    DUE,
    NO_MEMBERS,
    RARE,
    Members,
    take_out,
    wrong_member,
)
from kombu_redisdelay.words import printable

#: Header of plain kombu messages: milliseconds until the message is due. The name and the unit are those
#: of RabbitMQ's delayed message exchange.
DELAY_HEADER = "x-delay"

#: Header of Celery's task messages (protocol 2): ISO 8601.
ETA_HEADER = "eta"

#: Header of Celery's task messages: ISO 8601.
EXPIRES_HEADER = "expires"

#: Header that says what a publish does if a message with the same id is scheduled: one of the three below.
CONFLICT_HEADER = "x-delay-on-conflict"

#: Both are delivered. The default.
KEEP = "keep"
#: The new message takes the place of the scheduled one.
REPLACE = "replace"
#: The scheduled message stays, and the new one is dropped.
IGNORE = "ignore"

#: Header set on redelivered messages: the number of earlier deliveries, as RabbitMQ's quorum queues do.
DELIVERY_COUNT_HEADER = "x-delivery-count"

#: When a failed task was requeued last, in ISO 8601. Celery carries it on when it retries the task.
REQUEUED_HEADER = "x-requeued"

#: Header set on redelivered messages, as kombu's own transport does.
REDELIVERED_HEADER = "redelivered"

#: The two strings that a brief tells, each as it is in JSON.
_TASK, _ID = (re.compile(rb'"%s": ("(?:[^"\\]|\\.)*")' % name) for name in (b"task", b"id"))

#: The types of what kombu reads as text. It may be missing.
_TEXT = frozenset({str, type(None)})

#: The types of names. kombu takes numbers, too.
_NAME = frozenset({str, type(None), int, float, bool})

#: Messages that one line of the log names.
MOST_NAMED = 5

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)

#: The end of the year 9999, beyond which there is no datetime.
LATEST_MS = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _MS


class MalformedMessage(Exception):
    """Something from Redis that cannot be delivered, because it is not a message."""


@dataclass(frozen=True, slots=True)
class Due:
    """When a message is due: the later of an instant and a delay from now, both by the server's clock.

    Attributes:
        at_ms: milliseconds since the epoch, with a fraction, 0 for no instant.
        delay_ms: milliseconds from the moment of publication, with a fraction, 0 for no delay.
    """

    at_ms: float = 0
    delay_ms: float = 0


def due(message: Mapping[str, Any]) -> Due | None:
    """When *message*, a kombu message as a dictionary, is due; ``None`` for at once.

    Raises:
        ValueError: ``x-delay``, or the ``eta`` or ``expires`` of a Celery task, makes no sense, so that no
            worker could run it. The error names the header and the value.
    """
    headers = message["headers"] or {}
    at_ms = eta_ms(headers)
    # Most messages have none.
    has_expiry = EXPIRES_HEADER in headers and headers[EXPIRES_HEADER] and "task" in headers
    if has_expiry and expires_ms(headers) is None:
        raise _unreadable(EXPIRES_HEADER, headers)
    delay_ms = _delay_ms(headers)
    return Due(at_ms, delay_ms) if at_ms or delay_ms else None


def deliverable_ms(when: Due | None) -> float:
    """The earliest time of delivery for a message that is published now, ms since the epoch by this machine's
    clock."""
    now_ms = time() * 1000
    return now_ms if when is None else max(when.at_ms, now_ms + when.delay_ms)


def eta_ms(headers: Mapping[str, Any]) -> float:
    """The ``eta`` among *headers* in ms since the epoch, with a fraction; 0 if there is none.

    A naive time is in UTC, as Celery's worker reads it.

    Raises:
        ValueError: the message is a Celery task and its ``eta`` is not an ISO 8601 date and time that Celery
            can read. ``eta`` in any other message is the application's own header, and may mean anything.
    """
    eta = headers.get(ETA_HEADER)
    if not eta:
        return 0
    try:
        return max(0, _moment_ms(eta))
    except (ValueError, TypeError, OverflowError) as exc:
        if "task" not in headers:
            return 0
        raise _unreadable(ETA_HEADER, headers) from exc


def expires_ms(headers: Mapping[str, Any]) -> float | None:
    """When the Celery task with these *headers* expires, ms since the epoch; ``None`` if it does not, or if
    Celery could not read when. A naive time is in UTC, as Celery's worker reads it."""
    expires = headers.get(EXPIRES_HEADER)
    if not expires or "task" not in headers:
        return None
    try:
        return _moment_ms(expires)
    except (ValueError, TypeError, OverflowError):
        return None


def _unreadable(name: str, headers: Mapping[str, Any]) -> ValueError:
    return ValueError(
        f"header {name!r} must be an ISO 8601 date and time, whose offset from UTC has no seconds, not "
        f"{headers[name]!r}"
    )


def _moment_ms(moment: object) -> float:
    if not isinstance(moment, (str, datetime)):
        raise TypeError
    return to_ms(moment if isinstance(moment, datetime) else _parse(moment))


def _parse(moment: str) -> datetime:
    # Python reads what Celery writes in a tenth of the time. But it also reads what Celery cannot, such as an
    # offset with seconds.
    has_offset = moment[-6:-5] in ("+", "-") and moment[-3:-2] == ":" and moment[-2:-1] < "6"
    is_usual = has_offset and moment[10:11] == "T"
    try:
        return datetime.fromisoformat(moment) if is_usual else isoparse(moment)
    except ValueError:
        # It reads no hour 24.
        return isoparse(moment)


def _delay_ms(headers: Mapping[str, Any]) -> float:
    delay = headers.get(DELAY_HEADER)
    if delay is None:
        return 0
    longest = LATEST_MS - time() * 1000
    # NaN is in no range.
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= longest:
        raise ValueError(
            f"header {DELAY_HEADER!r} must be a number of milliseconds, not negative and not beyond the "
            f"year 9999, not {delay!r}"
        )
    # The str() of a subclass of float may not be a number.
    return float(delay)


def message_id(message: Mapping[str, Any]) -> str:
    """The id by which the application knows *message*: the task id, else the message id, else the correlation
    id, else the delivery tag that kombu gave it when it was published."""
    headers, properties = message["headers"] or {}, message["properties"]
    id = str(
        headers.get("id")
        or properties.get("message_id")
        or properties.get("correlation_id")
        or properties["delivery_tag"]
    )
    return stored_id(id)


def ids_to_schedule(unnamed: Sequence[bytes]) -> dict[bytes, str]:
    """For pairs of a delivery tag and a message, as it is stored: tag -> the id to schedule the message
    under. That is the tag for what has no id, or is not a message."""
    pairs = zip(unnamed[::2], unnamed[1::2], strict=True)
    # Another program may have written the tag.
    return {
        tag: _published_id(split_stored(stored)[1], tag.decode(errors="replace") or "?")
        for tag, stored in pairs
    }


def _published_id(payload: bytes, otherwise: str) -> str:
    try:
        message = check(json.loads(payload, object_hook=_without_uuid))
        properties = message["properties"]
        properties["delivery_tag"] = properties.get("delivery_tag") or otherwise
        return message_id(message)
    except Exception:
        # Foreign bytes may make the decoder raise any exception.
        return otherwise


def id_or_digest(payload: bytes) -> str:
    """The id of a message; the SHA-1 of its bytes if it has none, or is not a message."""
    return _published_id(payload, sha1(payload, usedforsecurity=False).hexdigest())


def _without_uuid(value: dict[str, Any]) -> Any:
    """A UUID, as kombu writes it, as a text."""
    return str(UUID(**value["__value__"])) if value.get("__type__") == "uuid" else value


def stored_id(id: str) -> str:
    """*id* as it is in Redis. JSON can hold halves of a surrogate pair, which Redis could not keep."""
    return id if id.isascii() else id.encode(errors="backslashreplace").decode()


def split_stored(stored: bytes) -> tuple[int, bytes]:
    """The priority step and the payload of a message *stored* in our hashes (lua/include/stored.lua)."""
    if stored[1:2] == b":" and b"0" <= stored[:1] <= b"9":
        # Nearly all.
        return stored[0] - 48, stored[2:]
    step, colon, payload = stored.partition(b":")
    if not colon or not step.isdigit():
        return 0, stored
    # A longer number is not a step of ours, and int() may refuse it.
    return int(step) if len(step) < 10 else 0, payload


def on_conflict(message: Mapping[str, Any]) -> str:
    """What *message* asks for if another message with its id is scheduled: ``KEEP``, ``REPLACE`` or
    ``IGNORE``.

    Raises:
        ValueError: it asks for something else. The error names the header and the value.
    """
    wanted = (message["headers"] or {}).get(CONFLICT_HEADER, KEEP)
    if wanted not in (KEEP, REPLACE, IGNORE):
        raise ValueError(
            f"header {CONFLICT_HEADER!r} must be {KEEP!r}, {REPLACE!r} or {IGNORE!r}, not {wanted!r}"
        )
    return str(wanted)


def mark_delivery(payload: dict[str, Any]) -> Members:
    """Turn the scripts' count of deliveries in a taken message *payload* into what consumers look at:
    ``delivery_info["redelivered"]`` and the headers ``redelivered`` and ``x-delivery-count``. Members and
    headers for the broker are removed. Returns the members."""
    headers = payload["headers"]
    # This header was for one publish. A task that retries publishes the headers that it was delivered with.
    # It must not replace a message that was scheduled meanwhile, nor be dropped because of it.
    headers.pop(CONFLICT_HEADER, None)
    # It must not wait that long again, either.
    headers.pop(DELAY_HEADER, None)
    members = take_out(payload)
    if members.deliveries:
        headers[DELIVERY_COUNT_HEADER] = members.deliveries
        headers[REDELIVERED_HEADER] = True
        payload["properties"]["delivery_info"]["redelivered"] = True
    else:
        # A task that retries publishes the headers that it was delivered with. This is the old count.
        if headers.pop(DELIVERY_COUNT_HEADER, None) is not None:
            headers.pop(REDELIVERED_HEADER, None)
    return members


def opened(payload: object) -> tuple[dict[str, Any], float, Members]:
    """Read a message that was taken. Returns the decoded *payload* as consumers get it
    (:func:`mark_delivery`), when it was due in ms since the epoch (0 for at once), and its members.

    Raises:
        MalformedMessage: it is not a message.
    """
    if _is_usual(payload):
        message, headers = payload, payload["headers"]
        at_ms = _delivered_ms(headers) if headers.get(ETA_HEADER) else 0
        return message, at_ms, Members(0, 0, message.pop(DUE)) if DUE in message else NO_MEMBERS
    message = check(payload)
    return message, _delivered_ms(message["headers"]), mark_delivery(message)


def _delivered_ms(headers: Mapping[str, Any]) -> float:
    try:
        return eta_ms(headers)
    except ValueError:
        # The publisher did not check it. It is delivered at once: Celery's worker reports what is wrong.
        return 0


def _is_usual(payload: Any) -> TypeGuard[dict[str, Any]]:
    """Whether *payload* is a message like nearly all: :func:`check` finds nothing in it, and there is nothing
    to take out of it but :data:`DUE`. Each message goes through this, so it calls next to nothing."""
    try:
        properties, headers = payload["properties"], payload["headers"]
        info, priority = properties["delivery_info"], properties["priority"]
        return (
            type(payload) is type(properties) is type(headers) is type(info) is dict
            and type(payload["body"]) is str
            and type(payload["content-type"]) is str
            and type(payload["content-encoding"]) is str
            and type(info["exchange"]) is str
            and type(info["routing_key"]) is str
            and (type(priority) is int or priority is None)
            and ("correlation_id" not in properties or type(properties["correlation_id"]) in _TEXT)
            and ("reply_to" not in properties or type(properties["reply_to"]) in _TEXT)
            and "consumer_tag" not in info
            # What another publish, or an earlier delivery, has left.
            and CONFLICT_HEADER not in headers
            and DELAY_HEADER not in headers
            and DELIVERY_COUNT_HEADER not in headers
            and RARE.isdisjoint(payload)
            and (DUE not in payload or (type(payload[DUE]) is int and 0 <= payload[DUE] < BEYOND))
        )
    except (KeyError, TypeError):
        return False


def _is_priority(value: object) -> bool:
    # kombu takes text for a number, or for no priority, as it does with NaN.
    return value is None or isinstance(value, (int, str)) or (isinstance(value, float) and not isinf(value))


def check(payload: object) -> dict[str, Any]:
    """Return the decoded *payload* if it has the shape of a kombu message.

    Raises:
        MalformedMessage: it has another shape. The error says in one line what is wrong.
    """
    if not isinstance(payload, dict):
        what = "null" if payload is None else type(payload).__name__
        raise MalformedMessage(f"a JSON {what}, not an object")
    # As kombu does. PHP writes an empty object as an empty list.
    if not payload.get("headers"):
        payload["headers"] = {}
    for name in ("properties", "headers"):
        if not isinstance(payload.get(name), dict):
            raise MalformedMessage(f"{name!r} is missing or not an object")
    properties = payload["properties"]
    delivery_info = properties.get("delivery_info")
    if not delivery_info:
        delivery_info = properties["delivery_info"] = {}
    if not isinstance(delivery_info, dict):
        raise MalformedMessage("'delivery_info' is not an object")
    if not isinstance(payload.get("body"), str):
        raise MalformedMessage("'body' is missing or not a string")
    for name in ("content-type", "content-encoding"):
        if type(payload.get(name)) not in _TEXT and payload[name]:
            raise MalformedMessage(f"{name!r} is not a string")
    for name in ("correlation_id", "reply_to"):
        if type(properties.get(name)) not in _NAME and properties[name]:
            raise MalformedMessage(f"{name!r} is not a string")
    for name in ("exchange", "routing_key", "consumer_tag"):
        # What is empty names nothing. But kombu looks for the last one in a set.
        wrong = type(delivery_info.get(name)) not in _NAME
        if wrong and (delivery_info[name] or name == "consumer_tag"):
            raise MalformedMessage(f"{name!r} is not a string")
    priority = properties.get("priority")
    if type(priority) is not int and priority and not _is_priority(priority):
        raise MalformedMessage("'priority' is not a number")
    member = wrong_member(payload)
    if member is not None:
        raise MalformedMessage(f"{member!r} is not a whole number of at most {DIGITS} digits")
    return payload


def task_and_id(brief: bytes) -> str:
    """Return ``task[id]``, as Celery's log has it, of the message whose *brief* this is
    (lua/include/brief.lua). The result is empty if the brief tells no id."""
    task, id = (_text(pattern.search(brief)) for pattern in (_TASK, _ID))
    return f"{task}[{id}]" if id else ""


def _text(match: re.Match[bytes] | None) -> str:
    try:
        return "" if match is None else str(json.loads(match[1]))
    except ValueError:
        return ""


def which(names: Iterable[str], count: int) -> str:
    """Return what a log line about *count* messages adds to the number: a colon and the *names* of some.
    Empty names are left out, and the result is empty if there are no others."""
    known = [printable(name) for name in names if name][:MOST_NAMED]
    if not known:
        return ""
    return f": {', '.join(known)}" + (f" and {count - len(known)} more" if count > len(known) else "")


def to_ms(moment: datetime) -> float:
    """*moment* in ms since the epoch. A naive time is in UTC, as Celery's worker reads it."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) / _MS


def from_ms(ms: float) -> datetime:
    """*ms* since the epoch as a time in UTC, to the microsecond. A time before 1970 or after the year 9999
    becomes the nearest time between."""
    return _EPOCH + min(max(0, ms), LATEST_MS) * _MS
