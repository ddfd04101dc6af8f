"""Takes scheduled messages back for a consumer of their queue, and keeps what it removes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1

from kombu_redisdelay.broker.by_time import IDS_PER_CALL
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.server.scripts import CLAIM, WITHDRAW
from kombu_redisdelay.broker.store import Store

#: Seconds for which no other process does the same.
CLAIM_FOR = 10.0


class Withdrawal:
    """Removes scheduled messages from the queues in *store*. Each message is removed by one caller only,
    which gets its payload."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_ids(self, queue: str, ids: Sequence[str]) -> Iterator[bytes]:
        """Remove the messages of *queue* with these ids, and yield them. Most of the ids may be unknown."""
        keys = self._store.keys(queue)
        begin = 0
        while begin < len(ids):
            done, *removed = WITHDRAW(
                self._store.server,
                keys.scheduling,
                (BYTES_PER_CALL, MESSAGES_PER_CALL, *ids[begin : begin + IDS_PER_CALL]),
            )
            begin += done
            for stored in removed:
                yield split_stored(stored)[1]

    def matching(self, queue: str, matches: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Remove the messages of *queue* whose payload *matches*, and yield them. Reads all of them, page by
        page."""
        schedule = Schedule(self._store)
        found = (message for message in schedule.iter(queue, None, None) if matches(message.payload))
        for message in schedule.remove(queue, found):
            yield message.payload

    def claim(self, queue: str, what: str, who: str) -> bool:
        """Whether *who* is the only one to do *what* with *queue*, for :data:`CLAIM_FOR`."""
        digest = sha1(what.encode(), usedforsecurity=False).hexdigest()
        key = self._store.keys(queue).claim(digest)
        return bool(CLAIM(self._store.server, (key,), (who, round(CLAIM_FOR * 1000))))
