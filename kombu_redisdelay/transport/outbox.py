"""Who publishes messages together: fills an outbox, and has a channel send it.

These are a ``with batch(app)`` block, and ``Producer.batch`` of kombu 5.7.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from kombu import exceptions
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.outgoing import Outbox, Outgoing
from kombu_redisdelay.broker.server.wire import checked
from kombu_redisdelay.public import public
from kombu_redisdelay.transport.admission import QueueFull

#: How many messages are held back at most.
PORTION = 500

#: How many bytes of messages are held back at most, without the last one. A process needs three to four times
#: as much memory for them.
PORTION_BYTES = 4 * 1024 * 1024


class RefusedMessage(NamedTuple):
    """A message that the server refused for one of its queues. Others may have it."""

    message: Outgoing
    error: ResponseError


class Sender(Protocol):
    """The interface of a channel that sends an outbox."""

    @property
    def closed(self) -> bool: ...

    def add_to(
        self, outbox: Outbox, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Route *message*, and put it into *outbox*.

        Raises:
            ValueError: the message is invalid. It is not there.
        """

    def send(self, outbox: Outbox) -> list[RefusedMessage]:
        """Publish all of *outbox*, in one round trip, or in two if there is fanout.

        Returns:
            What the server refused. The other messages are published.

        Raises:
            QueueFull: a queue has no room for its messages. None of all is published.
            RedisError: the connection failed. Any of the messages may have been published.
        """


@public
class BatchPublishError(OperationalError):
    """A batch has ended early: messages were not published, or may not have been, or its progress callback
    has raised an exception. ``__cause__`` is the first error behind it.

    Attributes:
        published: how many messages of the batch were published.
        uncertain: ids of the messages that may have been published, because the connection was lost.
        unpublished: ids of the messages that were not published.
    """

    def __init__(
        self, reason: object, published: int, uncertain: Sequence[str] = (), unpublished: Sequence[str] = ()
    ) -> None:
        counts = {"published": published, "uncertain": len(uncertain), "unpublished": len(unpublished)}
        # "0 published" is told, too.
        told = [f"{count} {what}" for what, count in counts.items() if count or what == "published"]
        super().__init__(f"{reason} (messages of the batch: {', '.join(told)})")
        self.reason = str(reason)
        self.published = published
        self.uncertain = list(uncertain)
        self.unpublished = list(unpublished)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.published, self.uncertain, self.unpublished)


class Block:
    """Collects what is published by the thread, greenlet or asyncio task that has entered it.

    Arguments:
        connect: lends a channel to publish with, in a ``with`` block.
        broker: the broker of the messages. Others are published as if there was no block.
        progress: called with the number of messages that were published so far, each time that some were.
        outer: the block of another broker that this one is in.
        events: the exchange of Celery's events. They are published with the tasks that they tell of, and no
            number and no list of ids has them.

    Attributes:
        published: how many messages were published so far.
        tables: the bindings of exchanges, as they were when the block first needed them.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Sender]],
        broker: Connection,
        progress: Callable[[int], object] | None,
        outer: Block | None,
        events: str,
    ) -> None:
        self.outer = outer
        self._connect = connect
        self._broker = _address(broker)
        self._owner = _running()
        self._progress = progress
        self._events = events
        self._outbox = Outbox()
        #: The channel that has routed the latest messages.
        self._channel: Sender | None = None
        #: Why it cannot go on. Celery swallows some exceptions, such as those of its events.
        self._failure: BatchPublishError | None = None
        self.published = 0
        self.tables: dict[str, Any] = {}

    def __repr__(self) -> str:
        waiting = len(self._ids(self._outbox.messages))
        return f"<batch: {self.published} messages published, {waiting} held back>"

    def is_for(self, broker: Connection) -> bool:
        """Whether the caller has entered this block, and it is for *broker*."""
        return _running() == self._owner and _address(broker) == self._broker

    def holds(self, ids: Collection[str]) -> bool:
        """Whether a message with one of *ids* is held back."""
        return not set(self._ids(self._outbox.messages)).isdisjoint(ids)

    def publish(self, channel: Sender, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        """Route a message, by what *channel* knows, and hold it back.

        Raises:
            ValueError: the message is invalid. It is not held back.
            BatchPublishError: as :meth:`flush`, which is called when :data:`PORTION` messages are held back,
                or :data:`PORTION_BYTES`.
        """
        self._check_usable()
        self._channel = channel
        channel.add_to(self._outbox, message, exchange, routing_key)
        if len(self._outbox.messages) >= PORTION or self._outbox.size >= PORTION_BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish what is held back now. Whatever happens, it is not held back any more.

        Raises:
            BatchPublishError: not all of it was published, or may not have been, or the progress callback has
                raised an exception. The block cannot be used after that.
        """
        self._check_usable()
        if os.getpid() != self._owner[0]:
            # Forked in the block. The parent publishes this.
            return
        try:
            self._send()
        except BatchPublishError as exc:
            self._failure = exc
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send(self) -> None:
        outbox, self._outbox = self._outbox, Outbox()
        # A message that has to be routed anew needs the bindings of now.
        self.tables.clear()
        if not outbox.messages:
            return
        named = self._ids(outbox.messages)
        is_sending = False
        # What is told of these messages, such as results of those that were dropped, goes out at once.
        token = current.set(None)
        try:
            with self._connected() as channel:
                is_sending = True
                refused = channel.send(outbox)
        except Exception as exc:
            if is_sending and not isinstance(exc, QueueFull):
                raise BatchPublishError(exc, self.published, uncertain=named) from exc
            raise BatchPublishError(exc, self.published, unpublished=named) from exc
        finally:
            current.reset(token)
        unpublished = self._ids(dict.fromkeys(each.message for each in refused))
        self.published += len(named) - len(unpublished)
        if refused:
            first = refused[0].error
            raise BatchPublishError(first, self.published, unpublished=unpublished) from first
        if named:
            self._tell()

    def _connected(self) -> AbstractContextManager[Sender]:
        # The pool may have no other connection as long as a producer of it is in use.
        if self._channel is None or self._channel.closed:
            return self._connect()
        return nullcontext(self._channel)

    def _tell(self) -> None:
        if self._progress is None:
            return
        # What the callback publishes goes out at once.
        token = current.set(None)
        try:
            self._progress(self.published)
        except Exception as exc:
            # kombu would take some exceptions, KeyError for one, for a lost connection, and publish the last
            # message again.
            reason = f"the progress callback failed: {type(exc).__name__}: {exc}"
            raise BatchPublishError(reason, self.published) from exc
        finally:
            current.reset(token)

    def close(self) -> None:
        """Forget what is held back, and the error: it refers to the frames of the callers, and they to this
        block. Such a cycle keeps their locals until the garbage collector comes."""
        self._outbox = Outbox()
        self._failure = None

    def _ids(self, messages: Iterable[Outgoing]) -> list[str]:
        """The ids of *messages*, without those of events."""
        return [each.id for each in messages if each.destination[0] != self._events]


current: ContextVar[Block | None] = ContextVar("redisdelay_batch", default=None)


def blocks() -> Iterator[Block]:
    """The blocks around what runs, from the innermost on."""
    block = current.get()
    while block is not None:
        yield block
        block = block.outer


def block_for(broker: Connection) -> Block | None:
    """The block for *broker* that the caller has entered, if any."""
    block = current.get()
    while block is not None and not block.is_for(broker):
        block = block.outer
    return block


class ProducerBatch:
    """Collects messages, and publishes and confirms them in one round trip. ``Producer.batch`` calls its
    methods; their names are those of kombu's own batch.

    Arguments:
        channel: the channel to publish through.
        max_size: the largest number of messages that it collects.
    """

    def __init__(self, channel: Sender, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        self._outbox = Outbox()
        #: The error that the batch has failed with, empty if there was none. A failed batch cannot be used.
        self._failure = ""

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        """Route a message, and add it to the batch. A full batch is published.

        Raises:
            ValueError: the message is invalid. It is not in the batch.
            BatchPublishError: the batch was full and could not be published, or it has failed before.
        """
        self._check_usable()
        self.channel.add_to(self._outbox, message, **kwargs)
        if len(self._outbox) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """Publish all messages of the batch.

        Raises:
            BatchPublishError: something went wrong. Any of the messages may have been published, or none, if
                a queue is full.
        """
        self._check_usable()
        try:
            self._flush()
        except BaseException as exc:
            self._failure = str(exc) or type(exc).__name__
            if isinstance(exc, QueueFull):
                raise exceptions.BatchPublishError(
                    f"a batch was refused, and none of what it holds was published: {exc}"
                ) from exc
            if isinstance(exc, Exception):
                raise exceptions.BatchPublishError(
                    f"a batch failed, and any of its messages may have been published: {exc}"
                ) from exc
            raise

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, Outbox()
        refused = [refused.error for refused in self.channel.send(outbox)]
        try:
            checked(refused)
        finally:
            # The error refers to this frame, and the frame to the error.
            del refused

    def discard(self) -> None:
        """Forget the messages that were not published."""
        self._outbox = Outbox()

    def close(self) -> None:
        """Close the batch. Messages that were not flushed are forgotten."""
        self.discard()

    def _check_usable(self) -> None:
        if self._failure:
            raise exceptions.BatchPublishError(f"a batch that has failed cannot go on: {self._failure}")


def _running() -> tuple[Any, ...]:
    """The process, the thread, the greenlet and the asyncio task that run. The context variable alone does
    not tell them apart: what is started in a block inherits it."""
    greenlet = sys.modules.get("greenlet")
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return os.getpid(), get_ident(), greenlet and greenlet.getcurrent(), task


def _address(broker: Connection) -> tuple[Any, ...]:
    prefix = broker.transport_options.get("global_keyprefix") if broker.transport_options else None
    # The transport reads several URLs of one broker together, and then the connection tells what they say.
    _ = broker.transport
    server = broker.hostname, broker.port, broker.virtual_host, broker.userid, *broker.alt
    return broker.transport_cls, server, prefix
