"""A consumer without Celery: what fails is tried again after 1, 5, 10, 30 and 60 minutes, and becomes a dead
letter then."""

from __future__ import annotations

import logging
from typing import Any

from kombu import Connection, Consumer, Queue
from kombu.message import Message

from kombu_redisdelay import requeue

#: Seconds before the second delivery, the third, and so on.
DELAYS = (60, 5 * 60, 10 * 60, 30 * 60, 60 * 60)


def handle(body: Any) -> None:
    print(f"handled {body}")


def on_message(body: Any, message: Message) -> None:
    failures = message.headers.get("x-delivery-count", 0)
    try:
        handle(body)
    except Exception:
        logging.exception("failure %d", failures + 1)
        # After as many failures as delivery_limit says, it becomes a dead letter instead.
        requeue(message, delay=DELAYS[min(failures, len(DELAYS) - 1)])
    else:
        message.ack()


def consume(url: str = "redisdelay://localhost:6379/0") -> None:
    options = {"delivery_limit": len(DELAYS) + 1}
    with (
        Connection(url, transport_options=options) as connection,
        Consumer(connection, [Queue("orders")], callbacks=[on_message]),
    ):
        while True:
            connection.drain_events()


if __name__ == "__main__":
    consume()
