"""Handles messages that a Celery worker cannot run, if its broker is one of ours.

Celery rejects or acks such a message, and it is gone. Here, a task that the worker does not know is left to
workers that know it, which may be newer. A message that no worker can read becomes a dead letter, with the
reason.

Celery's consumer has a method for each case, the same in Celery 5.5 to 5.7. They are wrapped on the class, so
that a consumer of an application that overrides one decides for itself. They run in the main process of the
worker, whatever its pool is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.receive import unknown_for
from kombu_redisdelay.words import cut, in_a_line, printable

logger = logging.getLogger(__name__)

#: Seconds between two lines of the log about the same task.
SAID_EVERY = 60.0

#: How many tasks are remembered for that.
MOST_SAID = 100

#: Task -> when the log said last that this worker does not know it.
_said: dict[str, float] = {}


def _qos(message: Any) -> Any:
    """The QoS that delivered the message, if it is ours and the broker holds the message. It does not hold a
    message that came without acks, or over a fanout exchange."""
    channel = getattr(message, "channel", None)
    if isinstance(channel, Channel) and channel.qos.holds(message.delivery_tag):
        return channel.qos
    return None


def _on_unknown_task(original: Callable[..., Any], self: Any, body: Any, message: Any, exc: Exception) -> Any:
    """In place of Celery's: leave the message to others."""
    qos = _qos(message)
    wait = None if qos is None else qos.channel.options.unknown_task_wait
    if wait is None:
        return original(self, body, message, exc)
    name = str(exc.args[0])
    task = printable(cut(name))
    if unknown_for(message) >= wait:
        reason = f"no worker knows the task {task}"
        return _dead_letter(qos, message, reason, original, self, body, message, exc)
    qos.defer_unknown(message, name)
    _say(task, wait)
    return None


def _say(task: str, wait: float) -> None:
    now = monotonic()
    if now - _said.get(task, float("-inf")) < SAID_EVERY:
        return
    if len(_said) >= MOST_SAID:
        _said.clear()
    _said[task] = now
    logger.warning(
        "This worker does not know the task %r. Its messages are left to workers that do, for %s s each; "
        "then they become dead letters. Is the module of the task imported, and is the code of this worker "
        "as new as that of the producer?",
        task,
        format(wait, "g"),
    )


def _replaced(
    verdict: Callable[..., tuple[Any, str]], original: Callable[..., Any], self: Any, *args: Any
) -> Any:
    """In place of *original*, which gets rid of a message: keep it as a dead letter.

    Arguments:
        verdict: returns the message and the reason, from what *original* is called with.
    """
    message, why = verdict(*args)
    qos = _qos(message)
    if qos is None:
        return original(self, *args)
    return _dead_letter(qos, message, why, original, self, *args)


def _dead_letter(qos: Any, message: Any, reason: str, original: Callable[..., Any], *args: Any) -> Any:
    """Make the message a dead letter, and then let Celery do what it does with it. Celery may fail before it
    gets rid of it: it cannot even write a report of some messages. When it does, nothing is held any more."""
    qos.make_dead(message, reason)
    if qos.holds(message.delivery_tag):
        # Redis refuses now. To ack the message meanwhile would be to lose it.
        return None
    return original(*args)


def _decode_error(message: Any, exc: BaseException) -> tuple[Any, str]:
    is_plain = not message.properties.get("body_encoding")
    why = " ('body_encoding' is missing, so the body was taken as it is)" if is_plain else ""
    return message, f"cannot be decoded: {in_a_line(exc)}{why}"


def _invalid_task(body: Any, message: Any, exc: BaseException) -> tuple[Any, str]:
    return message, f"not a valid task: {in_a_line(exc)}"


def _unknown_message(body: Any, message: Any) -> tuple[Any, str]:
    return message, "not a task of Celery: neither the headers nor the body name one"


#: Method of Celery's consumer -> what is done in its place.
UNUSABLE: Mapping[str, Callable[..., Any]] = {
    "on_decode_error": partial(_replaced, _decode_error),
    "on_invalid_task": partial(_replaced, _invalid_task),
    "on_unknown_message": partial(_replaced, _unknown_message),
    "on_unknown_task": _on_unknown_task,
}
