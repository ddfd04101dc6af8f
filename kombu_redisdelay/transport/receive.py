"""From what was taken to a kombu message, or to where it belongs if it is none or is not due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from json import JSONDecoder
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import object_hook
from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.message import (
    DELIVERY_COUNT_HEADER,
    MalformedMessage,
    check,
    eta_ms,
    mark_delivery,
    message_id,
)
from kombu_redisdelay.broker.printable import printable

logger = logging.getLogger(__name__)

#: Makes a message of a channel out of what was decoded.
MessageOf = Callable[[dict[str, Any]], virtual.Message]

#: As kombu decodes JSON, which makes a new decoder each time.
_decoder = JSONDecoder(object_hook=object_hook)

#: Characters that a reason has at most: it may quote a part of the entry, and that may be large.
LONGEST_REASON = 200


class _NotDue(Exception):
    """A message was taken before its time: its id, and when it is due."""

    def __init__(self, message_id: str, due_ms: float) -> None:
        super().__init__()
        self.message_id = message_id
        self.due_ms = due_ms


def receive(
    deliveries: Iterable[Delivery], now_ms: float, consumer: Consumer, message_of: MessageOf
) -> list[tuple[Delivery, virtual.Message]]:
    """The messages of *deliveries* that are to be delivered. The others go where they belong, all in one
    round trip: on a slow line, one for each would keep the event loop for seconds.

    Arguments:
        now_ms: the server's clock when they were taken, ms since the epoch.
        consumer: who has taken them.
    """
    received: list[tuple[Delivery, virtual.Message]] = []
    early: list[tuple[Delivery, str, float]] = []
    malformed: list[tuple[Delivery, str]] = []
    for delivery in deliveries:
        try:
            received.append((delivery, _receive(delivery, now_ms, message_of)))
        except _NotDue as exc:
            early.append((delivery, exc.message_id, exc.due_ms))
        except MalformedMessage as exc:
            malformed.append((delivery, printable(str(exc)[:LONGEST_REASON])))
    if early:
        for (delivery, _, _), reply in zip(early, consumer.park_all(early), strict=True):
            _report_failure(delivery, reply)
    if malformed:
        replies = consumer.dead_letter_all(malformed)
        for (delivery, reason), reply in zip(malformed, replies, strict=True):
            if not _report_failure(delivery, reply):
                logger.error(
                    "Moved an entry of queue %r that is not a message to the dead letters: %s",
                    delivery.queue,
                    reason,
                )
    return received


def _report_failure(delivery: Delivery, reply: object) -> bool:
    """Say so if an entry could not be moved. Returns whether that is so."""
    if not isinstance(reply, ResponseError):
        return False
    # Not for whoever waits for messages: others were taken with it. It stays unacked, so it is not lost, and
    # is not taken again and again; when this consumer ends, somebody else will try.
    what = printable(str(reply))
    logger.error("Could not move an entry of queue %r to where it belongs: %s", delivery.queue, what)
    return True


def _receive(delivery: Delivery, now_ms: float, message_of: MessageOf) -> virtual.Message:
    payload = _decode(delivery.payload)
    at_ms = _eta_ms(payload["headers"])
    if at_ms > now_ms and delivery.acked:
        properties = payload["properties"]
        properties["delivery_tag"] = properties.get("delivery_tag") or delivery.tag
        raise _NotDue(message_id(payload), at_ms)
    mark_delivery(payload)
    payload["properties"]["delivery_tag"] = delivery.tag
    message = _to_message(payload, message_of)
    # What comes back after its time has been late for other reasons.
    was_scheduled = 0 < at_ms <= now_ms and DELIVERY_COUNT_HEADER not in message.headers
    metrics.delivered(delivery.queue, (now_ms - at_ms) / 1000 if was_scheduled else None)
    return message


def is_message(channel_name: str, data: bytes) -> bool:
    """Whether what came over a PUB/SUB channel is a message. If it is none, the log says so: there is no
    place where it could be kept."""
    try:
        _decode(data)
    except MalformedMessage as exc:
        reason = printable(str(exc)[:LONGEST_REASON])
        logger.error(
            "Dropped what came over the PUB/SUB channel %r and is not a message: %s", channel_name, reason
        )
        return False
    return True


def _decode(data: bytes) -> dict[str, Any]:
    try:
        payload = _decoder.decode(data.decode())
    except Exception as exc:
        # Whatever foreign bytes make a decoder raise, they are not a message.
        raise MalformedMessage(f"not JSON: {exc}") from exc
    return check(payload)


def _to_message(payload: dict[str, Any], message_of: MessageOf) -> virtual.Message:
    try:
        message = message_of(payload)
        if message.errors:
            # kombu keeps what went wrong for whoever looks at the message.
            _, error, _ = message.errors[0]
            raise error or ValueError
    except Exception as exc:
        encoding = payload["properties"].get("body_encoding")
        raise MalformedMessage(f"body cannot be decoded from {encoding!r}: {exc}") from exc
    return message


def _eta_ms(headers: dict[str, Any]) -> float:
    try:
        return eta_ms(headers)
    except ValueError:
        # Published by somebody who did not check it; Celery's worker will say what is wrong.
        return 0
