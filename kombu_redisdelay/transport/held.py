"""Messages that are held back, and then published together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.scripts import SCHEDULE
from kombu_redisdelay.broker.store import Call

if TYPE_CHECKING:
    from kombu_redisdelay.transport.publishing import PublishingChannel

#: Publishes a message anew through a channel, because the bindings that it was routed by have changed.
Again = Callable[["PublishingChannel"], None]


class HeldCall(NamedTuple):
    """A call that publishes a message to *queue*.

    Attributes:
        id: of the message.
        again: what to do if the server did not run it; ``None`` if it runs in any case.
    """

    id: str
    queue: str
    call: Call
    again: Again | None = None


class Refused(NamedTuple):
    """A call that the server refused.

    Attributes:
        message: number of the message, which may have other calls.
        id: of the message.
    """

    message: int
    id: str
    error: ResponseError


class Held:
    """Messages on their way to queues, and to fanout exchanges."""

    def __init__(self) -> None:
        #: Each with the number of its message. A message may have several queues, and several may have one
        #: id.
        self._calls: list[tuple[int, HeldCall]] = []
        self._message = 0
        #: kombu's commands for fanout exchanges: the method of a client, and its arguments.
        self._commands: list[tuple[str, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._calls) + len(self._commands)

    def add_call(self, call: HeldCall) -> None:
        self._calls.append((self._message, call))

    def add(self, name: str, *args: Any) -> None:
        """Hold back a command for a fanout exchange. kombu calls this."""
        self._commands.append((name, args))

    def mark(self) -> tuple[int, int]:
        """Begin a message. Returns how far this is filled, for :meth:`return_to`."""
        self._message += 1
        return len(self._calls), len(self._commands)

    def return_to(self, mark: tuple[int, int]) -> None:
        """Forget what came after *mark*."""
        calls, commands = mark
        del self._calls[calls:], self._commands[commands:]

    def clear(self) -> None:
        self._calls.clear()
        self._commands.clear()

    def send(self, channel: PublishingChannel) -> list[Refused]:
        """Publish everything through *channel*, in one round trip, or in two if there is fanout. It holds
        nothing afterwards.

        Returns:
            What the server refused. The other messages are published.

        Raises:
            RedisError: the connection failed. Any of the messages may have been published.
        """
        calls, self._calls = self._calls, []
        commands, self._commands = self._commands, []
        replies: list[Any] = []
        if calls:
            scheduled = (held.queue for _, held in calls if held.call[0] is SCHEDULE)
            channel.store.remember(*dict.fromkeys(scheduled))
            replies = channel.store.run_all([held.call for _, held in calls])
            for (_, held), reply in zip(calls, replies, strict=True):
                if reply == 0 and held.again is not None:
                    held.again(channel)
        if commands:
            with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for name, args in commands:
                    getattr(pipe, name)(*args)
                pipe.execute()
        return [
            Refused(message, held.id, reply)
            for (message, held), reply in zip(calls, replies, strict=True)
            if isinstance(reply, ResponseError)
        ]
