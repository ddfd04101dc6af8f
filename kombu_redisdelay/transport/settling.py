"""Does Celery's acks and rejects where Celery calls them, in every pool.

Celery leaves them to the loop of its consumer (``Consumer.call_soon``). Without an event loop,
they are done when the poll of the loop has ended; with one, when the callback has returned, which is after
the task in a ``solo`` worker. Until then, a task that was acked early runs while its message is still
unacked, and would run again if the worker was killed; and a message that was acked late keeps its place.

A task's own greenlet or thread does not wait for Redis: if an ack cannot be written at once, it is left to
the loop, whose poll ends for it. So is a reject of a greenlet: its reply takes time, and a time limit must
not interrupt it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.transport import virtual
from vine import promise

from kombu_redisdelay.transport.channel import Channel

logger = logging.getLogger(__name__)

#: Acks or rejects a message: a method of it.
Settle = Callable[..., Any]


def settle_where_called() -> None:
    """Do so for every task that Celery receives over a channel of ours. Calling it again changes nothing."""
    signals: Any = sys.modules.get("celery.signals")
    if signals is not None:
        signals.task_received.connect(_on_task_received, dispatch_uid=__name__)


def _on_task_received(sender: Any = None, request: Any = None, **kwargs: Any) -> None:
    message: Any = getattr(request, "message", None)
    if not isinstance(getattr(message, "channel", None), Channel):
        return
    # Not its property: each task comes here. Not the request either: it refers to the message.
    message.received_as = request._task
    for settle, method, ours in (
        (request.on_ack, message.ack_log_error, _ack),
        (request.on_reject, message.reject_log_error, _reject),
    ):
        # promise(Consumer.call_soon, (message.ack_log_error,)). What has another shape is left alone.
        if isinstance(settle, promise) and settle.args == (method,):
            settle.fun = partial(ours, sender, message)


def _ack(consumer: Any, message: virtual.Message, ack: Settle, *args: Any) -> None:
    if _is_postponed(message, partial(_ack, consumer, message, ack, *args)):
        return
    if _is_loop(message) and consumer.hub is not None:
        # Celery changes its prefetch count in the loop, too. There would be room for one message too many if
        # the place of this one was free before that.
        _try(message, partial(message.channel.qos.write_ack, message.delivery_tag))
        consumer.call_soon(_now, consumer, message, ack, *args)
        return
    try:
        is_now = _is_loop(message) or message.channel.qos.can_ack_at_once(message.delivery_tag)
    except BaseException:
        # A time limit of gevent.
        _later(consumer, message, ack, *args)
        raise
    (_now if is_now else _later)(consumer, message, ack, *args)


def _reject(consumer: Any, message: virtual.Message, reject: Settle, *args: Any) -> None:
    if _is_postponed(message, partial(_reject, consumer, message, reject, *args)):
        return
    is_now = _is_loop(message) or (
        consumer.hub is not None and message.channel.qos.can_ack_at_once(message.delivery_tag)
    )
    (_now if is_now else _later)(consumer, message, reject, *args)


def _is_postponed(message: Any, settle: Settle) -> bool:
    """Whether it is not known yet if the task has failed. Then this is done when it is known
    (:mod:`kombu_redisdelay.transport.failures`)."""
    postponed = getattr(message, "postponed", None)
    if postponed is None:
        return False
    postponed.append(settle)
    return True


def _is_loop(message: virtual.Message) -> bool:
    """Whether this is the thread or greenlet of the loop."""
    transport = message.channel.connection
    return transport is not None and bool(transport.cycle.is_mine)


def _now(consumer: Any, message: virtual.Message, settle: Settle, *args: Any) -> None:
    if not message.acknowledged:
        _try(message, partial(settle, *args))


def _try(message: virtual.Message, settle: Settle) -> None:
    try:
        settle()
    except Exception:
        # The promise would keep it for itself.
        logger.exception("Could not settle message %s", message.delivery_tag)


def _later(consumer: Any, message: Any, settle: Settle, *args: Any) -> None:
    # Celery counts the task as done. While it connects again, its loop does not turn.
    message.is_settling = True
    consumer.call_soon(_now, consumer, message, settle, *args)
    transport = message.channel.connection
    if transport is not None:
        transport.cycle.interrupt()
