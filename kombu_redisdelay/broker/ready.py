"""What an operator does with ready messages: look at them, remove them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.scripts import REMOVE_READY
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.walk import walk


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready message.

    Attributes:
        step: its priority step.
        place: how many messages of the queue are taken before it.
        is_sure: as :attr:`Entry.is_sure <kombu_redisdelay.broker.walk.Entry.is_sure>`.
    """

    queue: str
    step: int
    place: int
    payload: bytes
    is_sure: bool


class ReadyLists:
    """The ready messages in *store*, queue by queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count(self, queues: Sequence[str]) -> int:
        commands = (("LLEN", key) for queue in queues for key in self._store.ready_keys(queue))
        return sum(checked(self._store.server.call_all(*commands)))

    def iter(self, queue: str, texts: Sequence[str] = (), skip: int = 0) -> Iterator[Ready]:
        """The messages of *queue* in the order in which they are taken, read page by page. See
        :func:`~kombu_redisdelay.broker.walk.walk` for what may be included twice.

        Arguments:
            texts: only messages that contain one of these texts.
            skip: how many to pass over first.
        """
        server, keys = self._store.server, self._store.ready_keys(queue)
        lengths = checked(server.call_all(*(("LLEN", key) for key in keys))) if skip else [0] * len(keys)
        for index, step in enumerate(self._store.steps):
            skipped = min(skip, lengths[index])
            skip -= skipped
            for entry in walk(server, keys[: index + 1], texts, skip=skipped):
                yield Ready(queue, step, entry.taken_before, entry.data, entry.is_sure)

    def remove(self, message: Ready) -> bool:
        """Remove a message. Redis looks for it from the end that was nearer. Returns ``False`` if it is not
        ready any more, or has been delivered meanwhile and came back."""
        server, keys = self._store.server, self._store.ready_keys(message.queue)
        index = self._store.steps.index(message.step)
        lengths = checked(server.call_all(*(("LLEN", key) for key in keys[: index + 1])))
        place, length = message.place - sum(lengths[:-1]), lengths[-1]
        from_end = -1 if 2 * place < length else 1
        wake_key = self._store.keys(message.queue).wake
        return bool(REMOVE_READY(server, (keys[index], wake_key), (from_end, message.payload)))
