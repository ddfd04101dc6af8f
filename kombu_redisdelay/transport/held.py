"""Messages that are held back, and then published together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        again: what to do if the server did not run it; ``None`` if it runs in any case.
    """

    queue: str
    call: Call
    again: Again | None = None


class Refused(NamedTuple):
    """A call that the server refused.

    Attributes:
        message: number of the message among those that were held, from 0. It may have other calls.
    """

    message: int
    error: ResponseError


class Held:
    """Messages on their way to queues, and to fanout exchanges.

    Attributes:
        size: bytes of the messages, about. One that goes to two queues counts twice.
    """

    def __init__(self) -> None:
        #: Each with the number of its message, which may have several queues.
        self._calls: list[tuple[int, HeldCall]] = []
        self._messages = 0
        #: kombu's commands for fanout exchanges: the method of a client, and its arguments.
        self._commands: list[tuple[str, tuple[Any, ...]]] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._calls) + len(self._commands)

    def add_message(self, channel: PublishingChannel, message: dict[str, Any], **kwargs: Any) -> None:
        """Route *message*, by what *channel* knows, and hold it back.

        Raises:
            ValueError: the message is invalid. It is not held back.
        """
        calls, commands, size = len(self._calls), len(self._commands), self.size
        try:
            channel.basic_publish(message, _publish_batch=self, **kwargs)
        except BaseException:
            # The message goes to all of its queues or to none.
            del self._calls[calls:], self._commands[commands:]
            self.size = size
            raise
        self._messages += 1

    def add_call(self, call: HeldCall) -> None:
        """Hold back a call for the message that is being added."""
        self._calls.append((self._messages, call))
        self.size += _size(call.call[2])

    def add(self, name: str, *args: Any) -> None:
        """Hold back a command for a fanout exchange. kombu calls this."""
        self._commands.append((name, args))
        self.size += _size(args)

    def clear(self) -> None:
        self._calls.clear()
        self._commands.clear()
        self._messages = self.size = 0

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
        self._messages = self.size = 0
        replies: list[Any] = []
        if calls:
            scheduled = (held.queue for _, held in calls if held.call[0] is SCHEDULE)
            channel.store.remember(*dict.fromkeys(scheduled))
            replies = channel.store.run_all([held.call for _, held in calls])
            channel.note_use(dict.fromkeys(held.queue for _, held in calls))
            for (_, held), reply in zip(calls, replies, strict=True):
                if reply == 0 and held.again is not None:
                    held.again(channel)
        if commands:
            with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for name, args in commands:
                    getattr(pipe, name)(*args)
                pipe.execute()
        return [
            Refused(message, reply)
            for (message, _), reply in zip(calls, replies, strict=True)
            if isinstance(reply, ResponseError)
        ]


def _size(arguments: Sequence[Any]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, (str, bytes)))
