"""Many messages published together, for ``Producer.batch`` of kombu 5.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu import exceptions

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.store import Call

if TYPE_CHECKING:
    from kombu_redisdelay.transport.channel import Channel


class Batch:
    """Holds back what is published, until all of it is sent and confirmed in one round trip. The methods
    that ``Producer.batch`` calls, and their names, are those of kombu's own batch.

    Arguments:
        max_size: messages that are held back at most.
    """

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        #: What to do, and what then if it was for bindings that are no more.
        self._calls: list[tuple[Call, Callable[[], None] | None]] = []
        #: kombu's, of messages to fanout exchanges: method of a client and its arguments.
        self._commands: list[tuple[str, tuple[Any, ...]]] = []
        #: Why it cannot go on, once it has failed.
        self._failure = ""

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        """Route a message, and hold it back.

        Raises:
            ValueError: it makes no sense. It is not in the batch then.
            BatchPublishError: the batch was full and could not be published, or could not be before.
        """
        self._check_usable()
        calls, commands = len(self._calls), len(self._commands)
        try:
            self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        except BaseException:
            # To all of its queues, or to none.
            del self._calls[calls:], self._commands[commands:]
            raise
        if len(self._calls) + len(self._commands) >= self._max_size:
            self.flush()

    def add_call(self, call: Call, if_not_bound: Callable[[], None] | None = None) -> None:
        """Hold *call* back.

        Arguments:
            if_not_bound: called if it turns out that it was not done, for bindings that are no more.
        """
        self._calls.append((call, if_not_bound))

    def add(self, name: str, *args: Any) -> None:
        """Hold a command back: kombu's, for fanout."""
        self._commands.append((name, args))

    def flush(self) -> None:
        """Publish what was held back.

        Raises:
            BatchPublishError: something went wrong. Any of it may have been published.
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
            # After the others: one that cannot be published keeps no other back.
            checked(replies)
        finally:
            del replies

    def discard(self) -> None:
        """Forget what was held back."""
        self._calls.clear()
        self._commands.clear()

    def close(self) -> None:
        """Be done. What was not flushed is forgotten."""
        self.discard()

    def _check_usable(self) -> None:
        if self._failure:
            raise exceptions.BatchPublishError(f"a batch that has failed cannot go on: {self._failure}")
