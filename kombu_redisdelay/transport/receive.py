"""Makes kombu messages of what was taken. Puts entries elsewhere that are not messages or not due yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from json import JSONDecoder
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from kombu.transport import virtual
from kombu.utils.json import dumps, object_hook
from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.fair_keys import KEY_HEADER, WEIGHT_HEADER, fair_key_of
from kombu_redisdelay.broker.members import Members, put_in
from kombu_redisdelay.broker.message import (
    DELIVERY_COUNT_HEADER,
    MalformedMessage,
    check,
    message_id,
    opened,
)
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.words import cut, in_a_line, printable

#: What is to be moved: a delivery, and what is known of it.
_Moving = TypeVar("_Moving", bound=tuple[Any, ...])

logger = logging.getLogger(__name__)

#: Makes a kombu message from a decoded payload.
MessageOf = Callable[[dict[str, Any]], virtual.Message]

#: Decodes as kombu does. kombu makes a new decoder for each message, which costs time.
_decoder = JSONDecoder(object_hook=object_hook)

#: The same for a text in which kombu's hook, which is called for each object, would find nothing. Returns
#: what it has read, and where that ends.
_read_value: Callable[[str, int], tuple[Any, int]] = JSONDecoder().scan_once  # type: ignore[attr-defined]

#: What the hook looks for, and what may be an escaped letter of it.
_TYPED, _ESCAPED = "__type__", "\\u"

#: The values of ``body_encoding``.
ENCODINGS = frozenset(virtual.Channel.codecs)

#: What the JSON of a body begins with. Base64 has none of these.
_JSON_BEGINS = ("[", "{")

#: How many tasks a process remembers to have warned of, because their keys are wrong.
MOST_WARNED = 1000

#: Queue and task.
_warned: set[tuple[str, str]] = set()


class _Decoder:
    """The part of a channel that is needed to make a message."""

    codecs = virtual.Channel.codecs
    decode_body = virtual.Channel.decode_body


_decode_only = partial(virtual.Message, channel=_Decoder())


class _NotDue(Exception):
    """A message was taken before it is due.

    Arguments:
        message_id: the id to schedule it under.
        due_ms: when it is due, ms since the epoch.
    """

    def __init__(self, message_id: str, due_ms: float) -> None:
        super().__init__()
        self.message_id = message_id
        self.due_ms = due_ms


class StoredAs(NamedTuple):
    """How Redis had a message.

    Attributes:
        members: what is ours in it.
        taken_ms: when it was taken by the server's clock, ms since the epoch.
        taken_at: the same by the monotonic clock of this process, in seconds.
    """

    queue: str
    step: int
    members: Members
    taken_ms: float
    taken_at: float


class Received(NamedTuple):
    """A message that was taken and can be delivered.

    Attributes:
        lost: how many consumers have ended that held it, and may have held others.
        waits_until: ``None`` for most messages. For a message to isolate: when to stop waiting, and
            to deliver it although others are unacked; seconds of the monotonic clock.
    """

    delivery: Delivery
    message: virtual.Message
    lost: int
    waits_until: float | None = None


def receive(
    deliveries: Iterable[Delivery],
    now_ms: float,
    consumer: Consumer,
    message_of: MessageOf,
    in_time: Callable[[Callable[[], object]], object],
) -> list[Received]:
    """Return those of *deliveries* that can be delivered.

    Messages that are not due yet are scheduled again, all in one round trip. Entries that are not messages
    go to the dead letters, also in one round trip. On a slow connection, one for each entry would block the
    event loop for seconds.

    Arguments:
        now_ms: the server's time when they were taken, ms since the epoch.
        consumer: the consumer that has taken them.
        message_of: makes a message from a decoded payload.
        in_time: calls a function that settles messages. If the server refuses for a while, it calls it again
            later, or raises ``ResponseError``.
    """
    received: list[Received] = []
    early: list[tuple[Delivery, str, float]] = []
    malformed: list[tuple[Delivery, str]] = []
    counts: dict[str, int] = {}
    now = monotonic()
    for delivery in deliveries:
        try:
            received.append(_receive(delivery, now_ms, now, message_of))
            queue = delivery.queue
            counts[queue] = counts[queue] + 1 if queue in counts else 1
        except _NotDue as exc:
            early.append((delivery, exc.message_id, exc.due_ms))
        except Exception as exc:
            if _can_be_read(delivery, message_of):
                # It was not about the message. A signal handler may raise at any place, as that of Celery's
                # soft time limit does in a task that takes a message.
                raise exc.__cause__ or exc from None
            if isinstance(exc, MalformedMessage):
                malformed.append((delivery, printable(cut(str(exc)))))
            else:
                # An unforeseen error. The other messages of this take must be delivered.
                logger.exception("An entry of queue %r cannot be read", delivery.queue)
                malformed.append((delivery, f"it cannot be read: {in_a_line(exc)}"))
    for queue, count in counts.items():
        metrics.delivered(queue, count)
    if early:
        _move(early, consumer.park, in_time, lambda *_: None)
    if malformed:
        _move(malformed, consumer.dead_letter, in_time, _tell_of_malformed)
    return received


def _move(
    some: Sequence[_Moving],
    move: Callable[[Sequence[_Moving]], Sequence[object]],
    in_time: Callable[[Callable[[], object]], object],
    tell: Callable[..., object],
) -> None:
    """Move *some* messages, in one round trip.

    Arguments:
        move: moves them. Returns a reply for each.
        tell: called with each that was moved.
    """
    left = list(some)

    def try_to_move() -> None:
        refused: dict[int, ResponseError] = {}
        for index, reply in enumerate(move(left)):
            if not isinstance(reply, ResponseError):
                tell(*left[index])
            elif (refusal := refusal_of(reply)) is not None and refusal.is_for_a_while:
                refused[index] = reply
            else:
                _report_failure(left[index][0], reply)
        left[:] = [left[index] for index in refused]
        for error in refused.values():
            raise error

    try:
        in_time(try_to_move)
    except ResponseError as exc:
        for delivery, *_ in left:
            _report_failure(delivery, exc)


def _tell_of_malformed(delivery: Delivery, reason: str) -> None:
    logger.error(
        "Moved an entry of queue %r that is not a message to the dead letters: %s", delivery.queue, reason
    )


def _report_failure(delivery: Delivery, error: ResponseError) -> None:
    """Log that an entry could not be moved."""
    # Nothing is raised here: other messages were taken together with this entry, and must be delivered. The
    # entry stays unacked, so it is neither lost nor taken again and again. When this consumer ends, another
    # one will try.
    what = printable(str(error))
    logger.error("Could not move an entry of queue %r to where it belongs: %s", delivery.queue, what)


def _receive(delivery: Delivery, now_ms: float, now: float, message_of: MessageOf) -> Received:
    payload, at_ms, members = opened(_decoded(delivery.payload))
    if at_ms > now_ms and delivery.needs_ack:
        properties = payload["properties"]
        properties["delivery_tag"] = properties.get("delivery_tag") or delivery.tag
        raise _NotDue(message_id(payload), at_ms)
    if members.key is None and (KEY_HEADER in payload["headers"] or WEIGHT_HEADER in payload["headers"]):
        _warn_of_key(payload["headers"], delivery.queue)
    payload["properties"]["delivery_tag"] = delivery.tag
    message: Any = _to_message(payload, message_of)
    # A message that is redelivered is late for other reasons than the schedule, and so is one that no worker
    # knew.
    was_scheduled = 0 < at_ms <= now_ms and DELIVERY_COUNT_HEADER not in message.headers
    if members.unknown_ms is not None:
        message.unknown_for, was_scheduled = max(0.0, now_ms - members.unknown_ms) / 1000, False
    if delivery.needs_ack:
        message.stored_as = StoredAs(delivery.queue, delivery.step, members, now_ms, now)
    if was_scheduled:
        metrics.late(delivery.queue, (now_ms - at_ms) / 1000)
    return Received(delivery, message, members.lost)


def _can_be_read(delivery: Delivery, message_of: MessageOf) -> bool:
    try:
        payload, _, _ = opened(_decoded(delivery.payload))
        payload["properties"]["delivery_tag"] = delivery.tag
        _to_message(payload, message_of)
    except Exception:
        return False
    return True


def _warn_of_key(headers: dict[str, Any], queue: str) -> None:
    """Say so, once for each task, if another program has written a key or weight that is none."""
    try:
        fair_key_of(headers)
    except Exception as exc:
        # Foreign headers may make it raise any exception.
        about = queue, cut(str(headers.get("task")))
        if about in _warned:
            return
        if len(_warned) >= MOST_WARNED:
            _warned.clear()
        _warned.add(about)
        logger.warning(
            "A message of queue %r has a wrong key or weight, which counts as none: %s", queue, in_a_line(exc)
        )


def unknown_for(message: virtual.Message) -> float:
    """For how many seconds a delivered message had waited for a worker that knows its task."""
    return float(getattr(message, "unknown_for", 0.0))


def stored_again(message: Any) -> bytes:
    """A delivered message as it was stored in Redis, with its priority step. Its delivery tag is another
    one."""
    stored = message.stored_as
    return f"{stored.step}:{dumps(put_in(message._raw, stored.members))}".encode()


def message_in_schedule(payload: bytes) -> virtual.Message:
    """The message *payload*, which was not taken. It has no channel, so it cannot be acked.

    Raises:
        MalformedMessage: it is not a message.
    """
    decoded, _, _ = opened(_decoded(payload))
    decoded["properties"].setdefault("delivery_tag", "")
    message = _to_message(decoded, _decode_only)
    message.channel = None
    return message


def check_fanout(channel_name: str, data: bytes) -> bool:
    """Return whether what came over a PUB/SUB channel is a message. Say in the log if it is none: the caller
    drops it, because there is no place where it could be kept."""
    try:
        check(_decoded(data))
    except MalformedMessage as exc:
        reason = printable(cut(str(exc)))
        logger.error(
            "Dropped what came over the PUB/SUB channel %r and is not a message: %s", channel_name, reason
        )
        return False
    return True


def _decoded(data: bytes) -> Any:
    try:
        text = data.decode()
        value, end = None, -1
        if not (_TYPED in text or _ESCAPED in text):
            try:
                value, end = _read_value(text, 0)
            except StopIteration:
                # The decoder says what is wrong.
                end = -1
        # Space before and behind the value is left to the decoder, too.
        return value if end == len(text) else _decoder.decode(text)
    except Exception as exc:
        # Foreign bytes may make the decoder raise any exception.
        raise MalformedMessage(f"not JSON: {exc}") from exc


def _to_message(payload: dict[str, Any], message_of: MessageOf) -> virtual.Message:
    encoding = payload["properties"].get("body_encoding")
    # ``lax_base64`` of kombu.
    if encoding == "base64" and payload["body"].startswith(_JSON_BEGINS):
        raise MalformedMessage("body is not in Base64, as 'body_encoding' says: it is plain JSON")
    try:
        message = message_of(payload)
        if message.errors:
            # kombu does not raise the error. It keeps it in the message.
            _, error, _ = message.errors[0]
            raise error or ValueError
    except Exception as exc:
        if encoding and not (isinstance(encoding, str) and encoding in ENCODINGS):
            raise MalformedMessage(f"body_encoding {encoding!r} is none that kombu knows") from exc
        raise MalformedMessage(f"body cannot be decoded from {encoding!r}: {exc}") from exc
    return message
