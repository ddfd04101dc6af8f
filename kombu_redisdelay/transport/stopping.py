"""Gives back at once what a Celery worker has received and not begun, when it is told to stop.

Celery would keep it until the running tasks have ended. Here, the order is:

1. A signal asks the worker to stop: the door to the pool is shut (:mod:`~kombu_redisdelay.transport.door`).
   Nothing is sent to Redis in the handler of the signal.
2. Celery leaves its loop, and closes its consumer. The prefork pool forgets what no process was given.
3. What cannot begin any more goes back. What has begun stays held, and is acked as always.
4. Celery waits for the running tasks, and closes the channel. If Redis has refused before, the rest goes back
   then.

Soft shutdown (``worker_soft_shutdown_timeout``) waits in the handler, before all of this. When a connection
is lost, or when a queue is cancelled while the worker goes on, nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from kombu.common import ignore_errors

from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.door import Door
from kombu_redisdelay.transport.pools import add_a_place


def give_back_at_once(consumer: Any, door: Door) -> None:
    """Have Celery's *consumer* do so. To be called once.

    Arguments:
        door: of the same worker.
    """
    from celery import signals

    blueprint = consumer.blueprint
    blueprint.on_close = _giving_back(blueprint.on_close, consumer, door)

    def on_signal(**kwargs: Any) -> None:
        _begin_nothing_more(consumer, door)

    # Celery refers to it weakly.
    blueprint.on_signal = on_signal
    signals.worker_shutting_down.connect(on_signal, sender=consumer.hostname)


def _begin_nothing_more(consumer: Any, door: Door) -> None:
    """Shut the *door*, and end what the loop of the *consumer* waits for. A signal handler calls this, so
    nothing is sent."""
    if door.is_shut:
        return
    door.shut()
    add_a_place(consumer.pool)
    if consumer.connection is not None:
        consumer.connection.transport.cycle.deliver_nothing_more()


def _giving_back(on_close: Callable[[], Any], consumer: Any, door: Door) -> Callable[[], Any]:
    """In place of what Celery calls when it closes a consumer, because the worker stops. There, the prefork
    pool forgets what no process was given."""

    @wraps(on_close)
    def extended() -> None:
        _begin_nothing_more(consumer, door)
        on_close()
        channel = getattr(consumer.task_consumer, "channel", None)
        if isinstance(channel, Channel) and not channel.closed:
            # Celery does it again, later.
            ignore_errors(consumer, consumer.task_consumer.cancel)
            channel.stop_taking()
            channel.qos.give_back_unbegun()

    return extended
