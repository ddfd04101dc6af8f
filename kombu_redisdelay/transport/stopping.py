"""Gives back at once what a Celery worker has received and not begun, when it is told to stop.

Celery keeps it until the running tasks have ended. Here, the order is:

1. A signal asks the worker to stop: the door to the pool is shut (:mod:`~kombu_redisdelay.transport.door`).
   Nothing is sent to Redis in the handler of the signal.
2. Celery leaves its loop, and closes its consumer. The prefork pool forgets what no process was given.
3. What cannot begin any more goes back. What has begun stays held, and is acked as always.
4. Celery waits for the running tasks, and closes the channel. If Redis has refused before, the rest goes back
   then.

Nothing of this happens when a connection is lost, or when a queue is cancelled and the worker goes on. Soft
shutdown (``worker_soft_shutdown_timeout``) waits in the handler, before all of this.
"""

from __future__ import annotations

from typing import Any

from kombu.common import ignore_errors

from kombu_redisdelay.broker.server.connections import begin_end
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.door import Door
from kombu_redisdelay.transport.pools import make_room
from kombu_redisdelay.transport.tasks import has_crashed


class Stop:
    """What happens when a worker is told to stop. It lasts as long as Celery's *consumer*.

    Arguments:
        door: of the same worker.
    """

    def __init__(self, consumer: Any, door: Door) -> None:
        from celery import signals

        self._consumer = consumer
        self._door = door
        # Celery calls it when the worker stops, and only then.
        self._on_close = consumer.blueprint.on_close
        consumer.blueprint.on_close = self._close
        # This reference is weak.
        signals.worker_shutting_down.connect(self._on_signal, sender=consumer.hostname)

    def _on_signal(self, **kwargs: Any) -> None:
        self._begin_nothing_more()

    def _begin_nothing_more(self) -> None:
        """Shut the door, and end what the loop waits for. A signal handler calls this."""
        if self._door.is_shut:
            return
        self._door.shut()
        begin_end()
        make_room(self._consumer.pool)
        if self._consumer.connection is not None:
            self._consumer.connection.transport.cycle.deliver_nothing_more()

    def _close(self) -> None:
        """In place of what Celery calls when it closes the consumer. There, the prefork pool forgets what no
        process was given."""
        self._begin_nothing_more()
        self._on_close()
        # After an error, all messages are judged together, when the channel is closed.
        if not has_crashed():
            self._give_back()

    def _give_back(self) -> None:
        tasks = self._consumer.task_consumer
        channel = getattr(tasks, "channel", None)
        if isinstance(channel, Channel) and not channel.closed and channel.do_restore:
            # Celery does this again, later.
            ignore_errors(self._consumer, tasks.cancel)
            channel.stop_taking()
            channel.qos.give_back_unbegun()
