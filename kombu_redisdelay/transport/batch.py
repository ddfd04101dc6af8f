"""Many messages published together, for ``Producer.batch`` of kombu 5.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu import exceptions

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.store import Call

if TYPE_CHECKING:
    from kombu_redisdelay.transport.publishing import PublishingChannel


class Batch:
    """Collects messages, and publishes and confirms them in one round trip. ``Producer.batch`` calls its
    methods; their names are those of kombu's own batch.

    Arguments:
        channel: the channel to publish through.
        max_size: the largest number of messages that it collects.
    """

    def __init__(self, channel: PublishingChannel, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        #: Each call, and the function to call if its bindings have changed.
        self._calls: list[tuple[Call, Callable[[], None] | None]] = []
        #: kombu's commands for fanout exchanges: the method of a client, and its arguments.
        self._commands: list[tuple[str, tuple[Any, ...]]] = []
        #: The error that the batch has failed with, empty if there was none. A failed batch cannot be used.
        self._failure = ""

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        """Route a message, and add it to the batch. A full batch is published.

        Raises:
            ValueError: the message is invalid. It is not in the batch.
            BatchPublishError: the batch was full and could not be published, or it has failed before.
        """
        self._check_usable()
        calls, commands = len(self._calls), len(self._commands)
        try:
            self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        except BaseException:
            # The message goes to all of its queues or to none.
            del self._calls[calls:], self._commands[commands:]
            raise
        if len(self._calls) + len(self._commands) >= self._max_size:
            self.flush()

    def add_call(self, call: Call, if_not_bound: Callable[[], None] | None = None) -> None:
        """Add *call* to the batch.

        Arguments:
            if_not_bound: called after publishing if the server did not run *call*, because the bindings have
                changed.
        """
        self._calls.append((call, if_not_bound))

    def add(self, name: str, *args: Any) -> None:
        """Add a command to the batch. kombu calls this for fanout."""
        self._commands.append((name, args))

    def flush(self) -> None:
        """Publish all messages of the batch.

        Raises:
            BatchPublishError: something went wrong. Any of the messages may have been published.
        """
        self._check_usable()
        try:
            self._flush()
        except BaseException as exc:
            self._failure = str(exc) or type(exc).__name__
            if isinstance(exc, Exception):
                raise exceptions.BatchPublishError(
                    f"a batch failed, and any of its messages may have been published: {exc}"
                ) from exc
            raise

    def _flush(self) -> None:
        calls, self._calls = self._calls, []
        commands, self._commands = self._commands, []
        replies: list[Any] = []
        if calls:
            replies = self.channel.store.run_all([call for call, _ in calls])
            for if_not_bound in [then for (_, then), done in zip(calls, replies, strict=True) if done == 0]:
                if if_not_bound is not None:
                    if_not_bound()
        if commands:
            with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for name, args in commands:
                    getattr(pipe, name)(*args)
                pipe.execute()
        try:
            # Check the replies last, so that one failed message does not stop the others.
            checked(replies)
        finally:
            del replies

    def discard(self) -> None:
        """Forget the messages that were not published."""
        self._calls.clear()
        self._commands.clear()

    def close(self) -> None:
        """Close the batch. Messages that were not flushed are forgotten."""
        self.discard()

    def _check_usable(self) -> None:
        if self._failure:
            raise exceptions.BatchPublishError(f"a batch that has failed cannot go on: {self._failure}")
