"""Requeues a message that is to be delivered again later."""

from __future__ import annotations

from time import time
from typing import Any

from kombu.exceptions import MessageStateError
from kombu.message import Message

from kombu_redisdelay.broker.message import LATEST_MS
from kombu_redisdelay.public import public
from kombu_redisdelay.transport.channel import Channel


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
