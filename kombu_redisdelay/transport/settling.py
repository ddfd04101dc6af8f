"""Settles messages: acks and rejects where Celery calls them, in every pool, and requeues with a delay.

Celery leaves acks and rejects to the loop of its consumer (``Consumer.call_soon``: ``deferred_acks`` of
:mod:`~kombu_redisdelay.transport.upstream`). Without an event loop, they are done when the poll of the loop
has ended, before Celery 5.7; with one, when the callback has returned, which is after the task in a ``solo``
worker. Until then, a task that was acked early runs while its message is still unacked, and would run again
if the worker was killed; and a message that was acked late keeps its place.

A task's own greenlet or thread does not wait for Redis: if an ack cannot be written at once, it is left to
the loop, whose poll ends for it. So is a reject of a greenlet: its reply takes time, and a time limit must
not interrupt it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import time
from typing import Any

from kombu.exceptions import MessageStateError
from kombu.message import Message
from kombu.transport import virtual
from vine import promise

from kombu_redisdelay.broker.message import LATEST_MS
from kombu_redisdelay.public import public
from kombu_redisdelay.transport.channel import Channel

logger = logging.getLogger(__name__)

#: Acks or rejects a message: a method of it.
Settle = Callable[..., Any]


def settle_where_called(request: Any, message: Any, consumer: Any) -> None:
    """Have Celery's *request* of a *message* do so.

    Arguments:
        consumer: that of Celery.
    """
    for settle, method, ours in (
        (request.on_ack, message.ack_log_error, _ack),
        (request.on_reject, message.reject_log_error, _reject),
    ):
        # promise(Consumer.call_soon, (message.ack_log_error,)). What has another shape is left alone.
        if isinstance(settle, promise) and settle.args == (method,):
            settle.fun = partial(ours, consumer, message)


@public
def requeue(message: Message, delay: float) -> None:
    """Schedule a delivered *message* again, in one step: it is delivered again after *delay*.

    This delivery counts as failed, as with ``message.requeue()``. So the header ``x-delivery-count`` of the
    next delivery is higher by one, and a message that has failed ``delivery_limit`` times becomes a dead
    letter instead. The message stays in its queue, with its id, its priority and its headers. It is settled
    afterwards, and makes room in the prefetch count. May be called in any thread.

    If the lease of the consumer was lost meanwhile, another consumer has the message. Then nothing changes,
    and the log says so, as with ``message.reject()``.

    Arguments:
        message: a message of a ``redisdelay://`` broker that was delivered and is not settled yet.
        delay: seconds from now, by the server's clock; not negative, and not beyond the year 9999.

    Raises:
        TypeError: *message* is not a message of this transport.
        ValueError: *delay* has a wrong type or is out of range.
        kombu.exceptions.MessageStateError: *message* was acked, rejected or requeued already, or the broker
            does not hold it: it was delivered without acks (``no_ack``), or through a fanout exchange.
        redis.exceptions.RedisError: the connection failed, or the server refused.
    """
    channel: Any = getattr(message, "channel", None)
    if not isinstance(channel, Channel):
        raise TypeError(f"not a message of a redisdelay:// broker: {type(message).__name__}")
    longest = LATEST_MS / 1000 - time()
    # NaN is in no range.
    is_number = isinstance(delay, (int, float)) and not isinstance(delay, bool)
    if not is_number or not 0 <= delay <= longest:
        raise ValueError(
            f"delay must be a number of seconds, not negative and not beyond the year 9999, not {delay!r}"
        )
    if message.acknowledged:
        raise MessageStateError(f"Message already acknowledged with state: {message._state}")
    channel.qos.requeue_later(message.delivery_tag, float(delay))
    message._state = "REQUEUED"


def _ack(consumer: Any, message: virtual.Message, ack: Settle, *args: Any) -> None:
    is_loop = _is_loop(message)
    if is_loop and consumer.hub is not None:
        # Celery changes its prefetch count in the loop, too. There would be room for one message too many if
        # the place of this one was free before that.
        _now(message, message.channel.qos.write_ack, message.delivery_tag)
        consumer.call_soon(_now, message, ack, *args)
        return
    is_now = False
    try:
        is_now = is_loop or message.channel.qos.can_ack_at_once(message.delivery_tag)
    finally:
        # Also if a time limit of gevent interrupts this.
        if not is_now:
            _later(consumer, message, ack, *args)
    if is_now:
        _now(message, ack, *args)


def _reject(consumer: Any, message: virtual.Message, reject: Settle, *args: Any) -> None:
    may_be_now = consumer.hub is not None
    if _is_loop(message) or (may_be_now and message.channel.qos.can_ack_at_once(message.delivery_tag)):
        _now(message, reject, *args)
    else:
        _later(consumer, message, reject, *args)


def _is_loop(message: virtual.Message) -> bool:
    """Whether this is the thread or greenlet of the loop."""
    transport = message.channel.connection
    return transport is not None and bool(transport.cycle.is_mine)


def _now(message: virtual.Message, settle: Settle, *args: Any) -> None:
    if message.acknowledged:
        return
    try:
        settle(*args)
    except Exception:
        # The promise would keep it for itself.
        logger.exception("Could not settle message %s", message.delivery_tag)


def _later(consumer: Any, message: Any, settle: Settle, *args: Any) -> None:
    # Celery counts the task as done. While it connects again, its loop does not turn.
    message.is_settling = True
    consumer.call_soon(_now, message, settle, *args)
    transport = message.channel.connection
    if transport is not None:
        transport.cycle.interrupt()
