"""The queues that a channel consumes from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from kombu.transport import virtual


class ConsumedQueues:
    """The queues that a channel consumes from, and how. The channel writes it; fetchers read it.

    Attributes:
        callbacks: queue -> what gets its messages.
        queues: those of them that are asked for, in the order in which consuming began. The others are bound
            to fanout exchanges.
        no_ack: those whose messages are delivered without acks.
        acked_at_once: those whose messages count as acked when they are taken. It is replaced, never changed:
            a request goes on with what it was made for.
        known_tasks: the names of the tasks that the worker knows; ``None`` if it is no worker of Celery, or
            discards what it does not know.
    """

    def __init__(self) -> None:
        self.callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self.queues: Sequence[str] = ()
        self.no_ack: set[str] = set()
        self.acked_at_once: frozenset[str] = frozenset()
        self.known_tasks: Collection[str] | None = None

    def add(
        self, queue: str, callback: Callable[[virtual.Message], Any], no_ack: bool, acked_at_once: bool
    ) -> None:
        """Consume from *queue*.

        Arguments:
            no_ack: whether its messages are delivered without acks.
            acked_at_once: whether its messages count as acked when they are taken.
        """
        self.callbacks[queue] = callback
        (self.no_ack.add if no_ack else self.no_ack.discard)(queue)
        self.acked_at_once = self.acked_at_once | {queue} if acked_at_once else self.acked_at_once - {queue}

    def remove(self, queue: str) -> None:
        """Do not consume from *queue* any more."""
        self.callbacks.pop(queue, None)
        self.no_ack.discard(queue)
        self.acked_at_once -= {queue}
