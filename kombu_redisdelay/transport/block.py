"""What a thread publishes in a ``with batch(app)`` block: it is held back, and then published together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any

from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay.broker.message import message_id
from kombu_redisdelay.transport.held import Held

if TYPE_CHECKING:
    from kombu_redisdelay.transport.publishing import PublishingChannel

#: How many messages are held back at most.
PORTION = 500


class BatchPublishError(OperationalError):
    """Not all messages of a batch were published, or nobody knows whether they were.

    Attributes:
        published: how many messages of the batch were published.
        uncertain: ids of the messages that may have been published, because the connection was lost.
        unpublished: ids of the messages that were not published.
    """

    def __init__(
        self, reason: object, published: int, uncertain: Sequence[str] = (), unpublished: Sequence[str] = ()
    ) -> None:
        super().__init__(
            f"{reason} ({published} message(s) of the batch were published, {len(uncertain)} may have been, "
            f"{len(unpublished)} were not)"
        )
        self.published = published
        self.uncertain = list(uncertain)
        self.unpublished = list(unpublished)


class Block:
    """Holds back what is published, by whoever has entered it.

    Arguments:
        connect: lends a channel to publish with, in a ``with`` block.
        broker: the broker of the messages. Others are published as if there was no block.
        progress: called with the number of messages that were published so far, each time that some were.

    Attributes:
        published: how many messages were published so far.
        tables: the bindings of exchanges, as they were when the block first needed them.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[PublishingChannel]],
        broker: Connection,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._connect = connect
        self._broker = _address(broker)
        self._owner = _running()
        self._progress = progress
        self._held = Held()
        #: Ids of the messages that are held back.
        self._ids: list[str] = []
        self.published = 0
        self.tables: dict[str, Any] = {}

    def is_for(self, broker: Connection) -> bool:
        """Whether the caller has entered this block, and it is for *broker*."""
        return _running() == self._owner and _address(broker) == self._broker

    def holds(self, ids: Iterator[str]) -> bool:
        """Whether a message with one of *ids* is held back."""
        return not set(self._ids).isdisjoint(ids)

    def publish(self, channel: PublishingChannel, message: dict[str, Any], **kwargs: Any) -> None:
        """Route a message, by what *channel* knows, and hold it back.

        Raises:
            ValueError: the message is invalid. It is not held back.
            BatchPublishError: as :meth:`flush`, which is called when :data:`PORTION` messages are held back.
        """
        mark = self._held.mark()
        try:
            channel.basic_publish(message, _publish_batch=self._held, **kwargs)
        except BaseException:
            # The message goes to all of its queues or to none.
            self._held.return_to(mark)
            raise
        self._ids.append(message_id(message))
        if len(self._ids) >= PORTION:
            self._send(nullcontext(channel))

    def flush(self) -> None:
        """Publish what is held back now. Whatever happens, it is not held back any more.

        Raises:
            BatchPublishError: not all of it was published, or nobody knows.
        """
        self._send(self._connect())

    def _send(self, connecting: AbstractContextManager[PublishingChannel]) -> None:
        ids, self._ids = self._ids, []
        held, self._held = self._held, Held()
        # A message that has to be routed anew needs the bindings of now.
        self.tables.clear()
        if not ids:
            return
        connected = False
        try:
            with connecting as channel:
                connected = True
                refused = held.send(channel)
        except (RedisError, OSError, OperationalError) as exc:
            if connected:
                raise BatchPublishError(exc, self.published, uncertain=ids) from exc
            raise BatchPublishError(exc, self.published, unpublished=ids) from exc
        unpublished = list(dict.fromkeys(id for id, _ in refused))
        self.published += len(ids) - len(unpublished)
        if refused:
            raise BatchPublishError(refused[0][1], self.published, unpublished=unpublished)
        if self._progress is not None:
            self._progress(self.published)

    def discard(self) -> None:
        """Forget what is held back."""
        self._held.clear()
        self._ids.clear()


current: ContextVar[Block | None] = ContextVar("redisdelay_batch", default=None)


def block_for(broker: Connection) -> Block | None:
    """The block for *broker* that the caller has entered, if any."""
    block = current.get()
    return block if block is not None and block.is_for(broker) else None


def _running() -> tuple[Any, ...]:
    """The thread, the greenlet and the asyncio task that run. The context variable alone does not tell them
    apart: tasks and greenlets that are started in a block inherit it."""
    greenlet = sys.modules.get("greenlet")
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return get_ident(), greenlet and greenlet.getcurrent(), task


def _address(broker: Connection) -> tuple[Any, ...]:
    return broker.transport_cls, broker.hostname, broker.port, broker.virtual_host, broker.userid
