"""Which of a consumer's messages hold a key until they are acked."""

from __future__ import annotations

from collections.abc import Iterable

from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.server.line import Ack
from kombu_redisdelay.broker.server.scripts import ACK_UNIQUE
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import field_until_ack


class UnackedKeys:
    """Knows them by their delivery tags, so that the ack of such a message frees its key.

    All other messages are acked without a script.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Delivery tag -> the key as it is in Redis.
        self._texts: dict[str, str] = {}

    def note(self, deliveries: Iterable[Delivery]) -> None:
        """Note what was taken."""
        for delivery in deliveries:
            if delivery.needs_ack and (field := field_until_ack(delivery.payload)) is not None:
                self._texts[delivery.tag] = field

    def ack(self, queue: str, consumer: str, tag: str, *, is_limited: bool) -> Ack | None:
        """The ack of a message that holds a key; ``None`` if it holds none.

        Arguments:
            is_limited: whether the queue has a limited concurrency.
        """
        field = self._texts.pop(tag, None)
        if field is None:
            return None
        keys = self._store.keys(queue)
        used, args = (keys.unacked(consumer), keys.wake), (tag, field, int(is_limited))
        return ACK_UNIQUE.as_ack(self._store.server, queue, tag, used, args)

    def forget(self, tag: str) -> None:
        """The message is not held any more."""
        self._texts.pop(tag, None)
