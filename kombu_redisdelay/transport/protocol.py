"""Finds a part of a message that has a wrong type by Celery's task protocol, version 1 or 2.

Celery does not check the types (``unchecked_types`` of :mod:`~kombu_redisdelay.transport.upstream`).
It fails where it needs the part: in the callback, but also when its pool has
room, or in a result or a timer of the pool, long after the callback has returned. Some of these errors end
the worker, and others make it forget the message. So every part with which Celery fails is refused here. An
odd part that Celery accepts is left alone: it works with ``redis://``, too. Where another language has its
own way to write a part, such as a number as a text, Celery is given what is meant. Pickle keeps tuples, and
classes of an application that are derived from these types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any, NamedTuple

from dateutil.parser import isoparse
from kombu.transport import virtual

#: What is a list in JSON.
_LIST = (list, tuple)

#: Seconds. Celery adds a time limit to a time, and may fail with a larger number.
LONGEST_LIMIT = 1e12


def is_usual(message: virtual.Message) -> bool:
    """Whether a *message* is as Celery writes nearly all: nothing is wrong with it, and its id is ASCII. What
    any other one is, the functions below find out."""
    headers = message.headers
    # Each message goes through this: it calls nothing of ours.
    for name, types, usual in _USUAL:
        value = headers[name] if name in headers else None  # noqa: SIM401
        if type(value) not in types and (usual is None or value != usual):
            return False
    try:
        id, body = headers["id"], message.payload
    except Exception:
        return False
    if not (type(id) is str and id and id.isascii()):
        return False
    if not (type(body) in _LIST and len(body) == 3):
        return False
    args, kwargs, embedded = body
    return (
        type(args) in _LIST and type(kwargs) is dict and type(embedded) is dict and not any(embedded.values())
    )


def wrong_part(message: virtual.Message) -> str | None:
    """What is wrong with a *message* that Celery's worker is about to handle, in a line that names the part;
    ``None`` if it can be handled, or if Celery itself finds what is wrong.

    The body is decoded. kombu keeps the result for Celery, which would decode it next. Parts that are not as
    Celery needs them, but mean something, are replaced by what they mean.
    """
    headers = message.headers
    is_version_2 = "task" in headers
    if is_version_2:
        wrong = _HEADERS.wrong_one(headers)
        if wrong is not None:
            return wrong
    try:
        body = message.payload
    except Exception:
        # Celery tells what cannot be decoded.
        return None
    if is_version_2 and isinstance(body, (str, bytes)) and not message.content_type:
        return "content-type is missing, so the body was not decoded"
    if is_version_2 and not (isinstance(body, dict) and "args" in body):
        return _wrong_list(body)
    # In version 1, and in a mixture of both, the body describes the task.
    if not isinstance(body, dict) or not (is_version_2 or "task" in body):
        # It is no task.
        return None
    return (_MIXED_BODY if is_version_2 else _BODY).wrong_one(body)


def task_with_odd_id(message: virtual.Message) -> str | None:
    """The task of a *message*, in which :func:`wrong_part` finds nothing, if it has an id under which no
    result can be kept; else ``None``. Without a result, Celery runs it all the same."""
    of_task = message.headers
    if "task" not in of_task:
        try:
            of_task = message.payload
        except Exception:
            # Celery tells what cannot be decoded.
            return None
        if not isinstance(of_task, dict) or "task" not in of_task:
            return None
    id, task = of_task["id"], of_task["task"]
    # A lone surrogate has no bytes.
    is_odd = not (isinstance(id, str) and id and (id.isascii() or id.encode(errors="ignore").decode() == id))
    return task if is_odd else None


def _wrong_list(body: Any) -> str | None:
    """As :func:`wrong_part`, for the body of version 2."""
    if not isinstance(body, _LIST) or len(body) != 3:
        return "body is not a list of arguments, keyword arguments, and what else belongs to the task"
    args, kwargs, embedded = body
    if not isinstance(args, _LIST):
        return "body's arguments are not a list"
    if not isinstance(kwargs, dict):
        return "body's keyword arguments are not an object"
    if not embedded:
        return None
    if not isinstance(embedded, dict):
        return "body's third part is not an object"
    return _EMBEDDED.wrong_one(embedded)


# -- the parts -------------------------------------------------------------------------------------------


#: What has no meaning.
_NOTHING = object()


class _Part(NamedTuple):
    """A part of a message.

    Attributes:
        words: what it must be.
        types: its value is right if it has one of these types.
        is_right: whether another value is right, too.
        meant: what Celery is to get in place of one that is not; :data:`_NOTHING` if it means nothing.
        usual: a value that nearly all messages have, and that is right.
    """

    words: str
    types: frozenset[type]
    is_right: Callable[[Any], bool]
    meant: Callable[[Any], Any]
    usual: Any = None


class _Parts:
    """Parts in the same place.

    Arguments:
        where: the name of the place in a reason.
        needs: those of them that must be there. The others may be missing.
    """

    def __init__(self, where: str, parts: Mapping[str, _Part], needs: Collection[str] = ()) -> None:
        self._where = where
        self._parts = parts
        self._needs = needs

    def wrong_one(self, values: dict[str, Any]) -> str | None:
        """What is wrong with one of *values*, in a line; ``None`` if all are right, or are now."""
        for name in self._needs:
            if name not in values:
                return f"{self._where} {name!r} is missing"
        for name, part in self._parts.items():
            value = values.get(name)
            if type(value) not in part.types and not part.is_right(value):
                meant = part.meant(value)
                if meant is _NOTHING:
                    return f"{self._where} {name!r} is not {part.words}"
                values[name] = meant
        return None


def _part(
    words: str,
    *types: type,
    also: Callable[[Any], bool] = lambda value: False,
    meant: Callable[[Any], Any] = lambda value: _NOTHING,
    usual: Any = None,
) -> _Part:
    """A part that may be missing."""

    def is_right(value: Any) -> bool:
        return isinstance(value, types) or also(value)

    return _Part(words, frozenset((*types, type(None))), is_right, meant, usual)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_moment(value: Any) -> bool:
    # Celery itself reports a text that is no time, except the empty one.
    return isinstance(value, datetime) or (isinstance(value, str) and value != "")


def _is_eta(value: Any) -> bool:
    # In some time zone, these years end before they have begun. Celery would drop the message.
    return _is_moment(value) and _year(value) not in ("0001", "9999")


def _year(moment: Any) -> str:
    return f"{moment.year:04}" if isinstance(moment, datetime) else str(moment)[:4]


def _meant_eta(value: Any) -> Any:
    """In the first year are the zero time of Go and Python's ``datetime.min``: at once."""
    if _year(value) == "0001":
        with suppress(ValueError, TypeError):
            if isinstance(value, datetime) or isoparse(value):
                return None
    return _NOTHING


def _meant_number(value: Any) -> Any:
    if not value:
        return 0
    if isinstance(value, str):
        for kind in (int, float):
            with suppress(ValueError):
                # NaN is in no range.
                return number if abs(number := kind(value)) < inf else _NOTHING
    return _NOTHING


def _meant_limits(value: Any) -> Any:
    if not isinstance(value, _LIST):
        return _NOTHING
    limits = [_meant_number(each) if isinstance(each, str) else each for each in value]
    return limits if _are_limits(limits) else _NOTHING


def _meant_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) else _NOTHING


def _are_limits(value: Any) -> bool:
    return not value or (isinstance(value, _LIST) and len(value) == 2 and all(map(_is_limit, value)))


def _is_limit(value: Any) -> bool:
    # NaN is in no range.
    return value is None or (isinstance(value, (int, float)) and abs(value) < LONGEST_LIMIT)


def _is_absent(value: Any) -> bool:
    return not value


def _list_of(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What says whether a value is such a list, or absent."""
    return lambda value: not value or (isinstance(value, _LIST) and all(map(is_right, value)))


def _is_signature(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("task"), str)


#: Ids of Celery are strings. Without a result backend it takes numbers, too.
_ID = _part("a string", str, int, float)
_GROUP = _part("a string", str, int, float, also=_is_absent)
_TEXT = _part("a string", str)
_TASK = _Part("a string", frozenset({str}), _is_text, lambda value: _NOTHING)
_OBJECT = _part("an object", dict, also=_is_absent)
_SIGNATURES = _part("a list of signatures of tasks", also=_list_of(_is_signature))

_OF_TASK = {
    "task": _TEXT,
    "id": _ID,
    "eta": _part("a time", also=_is_eta, meant=_meant_eta),
    "expires": _part("a time", also=_is_moment),
    "timelimit": _part("two numbers of seconds", also=_are_limits, meant=_meant_limits, usual=[None, None]),
    "retries": _part("a number", int, float, bool, meant=_meant_number),
    "group": _GROUP,
}

_OF_EMBEDDED = {
    "callbacks": _SIGNATURES,
    "errbacks": _SIGNATURES,
    "chain": _SIGNATURES,
    "chord": _part("a signature of a task", also=lambda value: not value or _is_signature(value)),
}

_OF_BODY = {
    **_OF_TASK,
    **_OF_EMBEDDED,
    "taskset": _GROUP,
    "args": _part("a list", *_LIST, also=_is_absent),
    "kwargs": _OBJECT,
}

_OF_HEADERS = {
    **_OF_TASK,
    "task": _TASK,
    "shadow": _part("a string", str, also=_is_absent, meant=_meant_text),
    "stamped_headers": _part("a list of strings", also=_list_of(_is_text)),
    "stamps": _OBJECT,
}

#: What :func:`is_usual` looks at.
_USUAL = [(name, part.types, part.usual) for name, part in _OF_HEADERS.items()]

_HEADERS = _Parts("header", _OF_HEADERS, needs=("id",))
_EMBEDDED = _Parts("body's", _OF_EMBEDDED)
_BODY = _Parts("body's", {**_OF_BODY, "task": _TASK}, needs=("id",))
_MIXED_BODY = _Parts("body's", _OF_BODY)
