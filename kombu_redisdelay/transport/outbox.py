"""Messages that wait to be published together: an outbox, and those who fill one.

These are a ``with batch(app)`` block, and ``Producer.batch`` of kombu 5.7.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from kombu import exceptions
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.message import message_id
from kombu_redisdelay.broker.publish_calls import Call
from kombu_redisdelay.broker.server.wire import checked
from kombu_redisdelay.public import public
from kombu_redisdelay.transport.admission import QueueFull
from kombu_redisdelay.transport.keyed_message import KeyedMessage

#: How many messages are held back at most.
PORTION = 500

#: How many bytes of messages are held back at most, without the last one. A process needs two to three times
#: as much memory for them.
PORTION_BYTES = 4 * 1024 * 1024


class Routed(NamedTuple):
    """A message, and the exchange and the routing key that it was routed by."""

    message: dict[str, Any]
    exchange: str
    routing_key: str


class OutboxCall(NamedTuple):
    """A call that publishes a message to *queue*. The connection that sends it may know nothing of the queue:
    all that it needs is here.

    Attributes:
        routed: what is to be routed again if the bindings have changed, and the server did not run the call
            for that reason; ``None`` if it runs in any case.
        keyed: the message, if it has a key.
        most: how many messages the queue may have, if it may refuse this one.
        is_to_note: whether the queue is noted as one in use.
    """

    queue: str
    call: Call
    routed: Routed | None = None
    keyed: KeyedMessage | None = None
    most: int | None = None
    is_to_note: bool = False


class Refused(NamedTuple):
    """A call that the server refused.

    Attributes:
        message: number of the message among those of the outbox, from 0. It may have other calls.
    """

    message: int
    error: ResponseError


class Outbox:
    """Messages on their way to queues, and to fanout exchanges. A channel puts them here, and sends them.

    Attributes:
        calls: those that publish to queues, each with the number of its message.
        commands: kombu's commands for fanout exchanges: the method of a client, and its arguments.
        size: bytes of the messages, about. One that goes to two queues counts twice.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, OutboxCall]] = []
        self.commands: list[tuple[str, tuple[Any, ...]]] = []
        self.size = 0
        self._messages = 0

    def __len__(self) -> int:
        return len(self.calls) + len(self.commands)

    @contextmanager
    def one_message(self) -> Iterator[None]:
        """What is added in the ``with`` block is of one message, which goes to all of its queues or to
        none: after an exception, nothing is added."""
        calls, commands, size = len(self.calls), len(self.commands), self.size
        try:
            yield
        except BaseException:
            del self.calls[calls:], self.commands[commands:]
            self.size = size
            raise
        self._messages += 1

    def add_call(self, call: OutboxCall) -> None:
        self.calls.append((self._messages, call))
        self.size += _size(call.call[2])

    def add(self, name: str, *args: Any) -> None:
        """Add a command for a fanout exchange. kombu calls this."""
        self.commands.append((name, args))
        self.size += _size(args)

    def clear(self) -> None:
        self.calls.clear()
        self.commands.clear()
        self._messages = self.size = 0


class Sender(Protocol):
    """The interface of a channel that sends an outbox."""

    @property
    def closed(self) -> bool: ...

    def add_to(self, outbox: Outbox, message: dict[str, Any], **kwargs: Any) -> None:
        """Route *message*, and put it into *outbox*.

        Raises:
            ValueError: the message is invalid. It is not there.
        """

    def send(self, outbox: Outbox) -> list[Refused]:
        """Publish all of *outbox*, in one round trip, or in two if there is fanout. It is empty afterwards.

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
        #: Ids of the messages that are held back, ``None`` for an event.
        self._ids: list[str | None] = []
        #: The channel that has routed the latest messages.
        self._channel: Sender | None = None
        #: Why it cannot go on. Celery swallows some exceptions, such as those of its events.
        self._failure: BatchPublishError | None = None
        self.published = 0
        self.tables: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<batch: {self.published} messages published, {len(_named(self._ids))} held back>"

    def is_for(self, broker: Connection) -> bool:
        """Whether the caller has entered this block, and it is for *broker*."""
        return _running() == self._owner and _address(broker) == self._broker

    def holds(self, ids: Collection[str]) -> bool:
        """Whether a message with one of *ids* is held back."""
        return not set(self._ids).isdisjoint(ids)

    def publish(self, channel: Sender, message: dict[str, Any], *, exchange: str, **kwargs: Any) -> None:
        """Route a message, by what *channel* knows, and hold it back.

        Raises:
            ValueError: the message is invalid. It is not held back.
            BatchPublishError: as :meth:`flush`, which is called when :data:`PORTION` messages are held back,
                or :data:`PORTION_BYTES`.
        """
        self._check_usable()
        self._channel = channel
        channel.add_to(self._outbox, message, exchange=exchange, **kwargs)
        self._ids.append(None if exchange == self._events else message_id(message))
        if len(self._ids) >= PORTION or self._outbox.size >= PORTION_BYTES:
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
        ids, self._ids = self._ids, []
        outbox, self._outbox = self._outbox, Outbox()
        # A message that has to be routed anew needs the bindings of now.
        self.tables.clear()
        if not ids:
            return
        named = _named(ids)
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
        unpublished = _named(ids[message] for message in dict.fromkeys(each.message for each in refused))
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
        self._outbox.clear()
        self._ids.clear()
        self._failure = None


def _named(ids: Iterable[str | None]) -> list[str]:
    """*ids* without those of events."""
    return [id for id in ids if id is not None]


current: ContextVar[Block | None] = ContextVar("redisdelay_batch", default=None)


def blocks() -> Iterator[Block]:
    """The blocks around what runs, from the innermost on."""
    block = current.get()
    while block is not None:
        yield block
        block = block.outer


def block_for(broker: Connection) -> Block | None:
    """The block for *broker* that the caller has entered, if any."""
    return next((block for block in blocks() if block.is_for(broker)), None)


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
        refused = [refused.error for refused in self.channel.send(self._outbox)]
        try:
            checked(refused)
        finally:
            # The error refers to this frame, and the frame to the error.
            del refused

    def discard(self) -> None:
        """Forget the messages that were not published."""
        self._outbox.clear()

    def close(self) -> None:
        """Close the batch. Messages that were not flushed are forgotten."""
        self.discard()

    def _check_usable(self) -> None:
        if self._failure:
            raise exceptions.BatchPublishError(f"a batch that has failed cannot go on: {self._failure}")


def _size(arguments: Sequence[Any]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, (str, bytes)))


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
