"""The places in queues of which consumers may hold a limited number of messages."""

from __future__ import annotations

from collections.abc import Iterable

from kombu_redisdelay.broker.delivery import Request, Taken
from kombu_redisdelay.broker.server.scripts import ACK
from kombu_redisdelay.broker.server.wire import Command
from kombu_redisdelay.broker.store import Store


class Places:
    """Knows in which of the queues of a consumer the concurrency is limited. When a message of these is not
    held any more, another one may be taken, and somebody has to be woken for it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._limited: set[str] = set()

    def note(self, request: Request, taken: Taken) -> None:
        """Note what the reply to *request* has said."""
        if taken.with_places or self._limited:
            self._limited.difference_update(request.queues if request.hot is None else request.hot)
            self._limited.update(taken.with_places)

    def ack(self, queue: str, unacked: str, tag: str) -> Command:
        """The command that acks a message, and wakes somebody if that is needed. Its reply is the number of
        messages that were held."""
        if queue not in self._limited:
            return ("HDEL", unacked, tag)
        # By its text: it needs one reply, and a server that does not know the script would refuse it.
        return ("EVAL", ACK.text, 2, unacked, self._store.keys(queue).wake, tag)

    def leave(self, queues: Iterable[str]) -> None:
        """Wake somebody for each of *queues* that is limited: messages of it are not held any more."""
        self._store.wake(*self._limited.intersection(queues))
