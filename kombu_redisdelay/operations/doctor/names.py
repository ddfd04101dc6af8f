"""Finds the names of the queues, exchanges and channels that an app uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from kombu_redisdelay.operations.access import Access

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a queue.

    Attributes:
        text: the name itself.
        pattern: the pattern for the ACL. It covers this queue and all queues with similar names.
    """

    text: str
    pattern: str


@dataclass(slots=True)
class Names:
    """The names that an app uses.

    Attributes:
        queues: the queues that hold messages.
        fanout_queues: the queues that hold no messages, because PUB/SUB keeps none. kombu counts and deletes
            their messages all the same.
        exchanges: the exchanges that queues are bound to.
        published: PUB/SUB channel that the app publishes to -> the pattern for the ACL.
        subscribed: the patterns that the app subscribes to. The ACL compares them letter by letter.
    """

    queues: list[Name] = field(default_factory=list)
    fanout_queues: list[Name] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)
    published: dict[str, str] = field(default_factory=dict)
    subscribed: list[str] = field(default_factory=list)


def names_of(access: Access, selected: Sequence[str]) -> Names:
    """Return the names that the app behind *access* uses.

    Arguments:
        selected: names of queues; if empty, the queues of the app. The names that workers use for events
            and, unless it is disabled, for remote control are always included.
    """
    found = Names()
    declared: dict[str, Any] = {} if access.app is None else dict(access.app.amqp.queues)
    for name in selected or declared:
        queue = declared.get(name)
        if queue is None:
            found.queues.append(_name(name))
            continue
        exchanges = [queue.exchange, *(binding.exchange for binding in queue.bindings or ())]
        is_fanout = queue.exchange.type == "fanout"
        (found.fanout_queues if is_fanout else found.queues).append(_name(queue.name))
        found.exchanges += [exchange.name for exchange in exchanges if exchange.name]
        if is_fanout:
            topic = access.topic(queue.exchange.name, queue.routing_key)
            found.published[topic] = topic
            found.subscribed.append(topic)
    if access.app is not None:
        _add_events(found, access)
        if access.app.conf.worker_enable_remote_control:
            _add_remote_control(found, access)
    return found


def _add_remote_control(found: Names, access: Access) -> None:
    mailbox = access.app.control.mailbox
    exchange, reply_exchange = mailbox.exchange.name, mailbox.reply_exchange.name
    # The name of a worker's queue begins with the name of the worker. The reply queue of a program that asks
    # begins with a UUID, and ends in the same way.
    pattern = f"*.{exchange}"
    found.fanout_queues.append(Name(mailbox.get_queue("celery@doctor").name, pattern))
    found.queues.append(Name(f"{uuid4()}.{reply_exchange}", pattern))
    found.exchanges += [exchange, reply_exchange]
    topic = access.topic(exchange, "")
    found.published[topic] = topic
    found.subscribed.append(topic)


def _add_events(found: Names, access: Access) -> None:
    conf, topic = access.app.conf, access.topic
    found.fanout_queues.append(_name(f"{conf.event_queue_prefix}.{uuid4()}"))
    found.exchanges.append(conf.event_exchange)
    every = topic(conf.event_exchange, "*")
    found.published[topic(conf.event_exchange, "worker.heartbeat")] = every
    # Workers subscribe to the events of other workers, monitors subscribe to all events.
    found.subscribed += dict.fromkeys((every, topic(conf.event_exchange, "worker.*")))


def _name(queue: str) -> Name:
    return Name(queue, _UUID.sub("*", queue))
