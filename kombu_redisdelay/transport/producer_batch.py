"""Many messages published together, for ``Producer.batch`` of kombu 5.7."""

from __future__ import annotations

from typing import Any

from kombu import exceptions

from kombu_redisdelay.broker.server.wire import checked
from kombu_redisdelay.transport.bounds import QueueFull
from kombu_redisdelay.transport.outbox import Outbox, Sender


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
