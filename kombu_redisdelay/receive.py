"""From what was taken to a kombu message, or to where it belongs if it is none or is not due."""

from __future__ import annotations

import logging
from json import JSONDecoder
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual
from kombu.utils.json import object_hook

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.consumer import Delivery
from kombu_redisdelay.message import (
    DELIVERY_COUNT_HEADER,
    MalformedMessage,
    check,
    eta_ms,
    mark_delivery,
    message_id,
)

if TYPE_CHECKING:
    from kombu_redisdelay.channel import Channel

logger = logging.getLogger(__name__)

#: As kombu decodes JSON, which makes a new decoder each time.
_decoder = JSONDecoder(object_hook=object_hook)


def receive(channel: Channel, delivery: Delivery, now_ms: int) -> virtual.Message | None:
    """The message of *delivery*, to be delivered on *channel*; ``None`` if it went elsewhere.

    Arguments:
        now_ms: the server's clock when it was taken, ms since the epoch.
    """
    try:
        payload = _decode(delivery)
        at_ms = _eta_ms(payload["headers"])
        if at_ms > now_ms and delivery.acked:
            suffix = payload["properties"].setdefault("delivery_tag", delivery.tag)
            channel.consumer.park(delivery, message_id(payload), str(suffix), at_ms)
            return None
        mark_delivery(payload)
        payload["properties"]["delivery_tag"] = delivery.tag
        message = _to_message(channel, payload)
    except MalformedMessage as exc:
        channel.consumer.dead_letter(delivery, str(exc))
        logger.error(
            "Moved an entry of queue %r that is not a message to the dead letters: %s", delivery.queue, exc
        )
        return None
    # What comes back after its time has been late for other reasons.
    was_scheduled = 0 < at_ms <= now_ms and DELIVERY_COUNT_HEADER not in message.headers
    metrics.delivered(delivery.queue, (now_ms - at_ms) / 1000 if was_scheduled else None)
    return message


def _decode(delivery: Delivery) -> dict[str, Any]:
    try:
        payload = _decoder.decode(delivery.payload.decode())
    except Exception as exc:
        # Whatever foreign bytes make a decoder raise, they are not a message.
        raise MalformedMessage(f"not JSON: {exc}") from exc
    return check(payload)


def _to_message(channel: Channel, payload: dict[str, Any]) -> virtual.Message:
    try:
        return channel.Message(payload, channel=channel)
    except Exception as exc:
        # Its body is in an unknown or a broken encoding.
        raise MalformedMessage(f"body cannot be decoded: {exc!r}") from exc


def _eta_ms(headers: dict[str, Any]) -> int:
    try:
        return eta_ms(headers)
    except ValueError:
        # Published by somebody who did not check it; Celery's worker will say what is wrong.
        return 0
