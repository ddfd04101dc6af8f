"""Messages that wait to be published together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.publish_calls import Call
from kombu_redisdelay.transport.keyed_message import KeyedMessage


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


def _size(arguments: Sequence[Any]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, (str, bytes)))
