"""Moves the tasks of a Celery app from RabbitMQ to another broker: those that are ready, and those that wait
in the queues of RabbitMQ's delayed delivery (Celery 5.5 and newer, with quorum queues).

    python from_rabbitmq.py shop.celery:app amqp://guest@localhost// redisdelay://localhost:6379/0 [QUEUE...]

It moves the queues that the app declares, and those that are named: AMQP has no list of queues. Stop the
workers first: what they hold goes back to its queue, countdown tasks too. A task is acked after it was
published, so one is there twice if this is killed between the two. Then run it again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from celery import Celery
from celery.contrib.migrate import migrate_tasks, republish
from celery.utils.imports import symbol_by_name
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.transport.native_delayed_delivery import MAX_NUMBER_OF_BITS_TO_USE, level_name

#: Seconds without a message after which a queue counts as empty.
SILENCE = 2.0


def move(app: Celery, source: str, destination: str, undeclared: Sequence[str] = ()) -> int:
    """Move the tasks of all queues of *app*, and of others, from one broker URL to another. Returns how many
    there were."""
    by_key = {queue.routing_key: name for name, queue in app.amqp.queues.items()}
    delayed = [level_name(level) for level in range(MAX_NUMBER_OF_BITS_TO_USE)]
    count = 0
    with Connection(source) as old, Connection(destination) as new:
        # What is due meanwhile goes from the delayed ones to the others.
        for name in with_messages(old, [*delayed, *app.amqp.queues, *undeclared]):
            publish = partial(publish_delayed, by_key) if name in delayed else partial(publish_ready, name)
            state = migrate_tasks(
                old,
                new,
                app=app,
                migrate=publish,
                # The app need not know the arguments of the queue.
                consume_from=[Queue(name, no_declare=True)],
                timeout=SILENCE,
                ack_messages=True,
            )
            count += state.count
    return count


def with_messages(connection: Connection, names: list[str]) -> Iterator[str]:
    for name in names:
        channel = connection.channel()
        try:
            messages = channel.queue_declare(name, passive=True).message_count
        except connection.channel_errors:
            # RabbitMQ has closed the channel.
            continue
        channel.close()
        if messages:
            yield name


def publish_ready(name: str, producer: Any, body: Any, message: Any, **_: Any) -> None:
    """Publish to the queue of the same *name*. If the task has an ``eta``, its header says so."""
    republish(producer, message, exchange="", routing_key=name)


def publish_delayed(by_key: dict[str, str], producer: Any, body: Any, message: Any, **_: Any) -> None:
    """Publish to the queue that the message will be delivered to."""
    # The time comes first, a digit for each of its bits: 0.0.1.celery
    routing_key = message.delivery_info["routing_key"].split(".", MAX_NUMBER_OF_BITS_TO_USE)[-1]
    republish(producer, message, exchange="", routing_key=by_key.get(routing_key, routing_key))


if __name__ == "__main__":
    name, source, destination, *undeclared = sys.argv[1:]
    # As for the command celery, the app may be in the current directory.
    sys.path.insert(0, "")
    print(f"Moved {move(symbol_by_name(name), source, destination, undeclared)} tasks.")
