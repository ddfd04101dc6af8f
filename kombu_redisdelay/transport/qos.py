"""kombu's QoS over the broker: prefetch count, ack and reject."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from kombu.exceptions import MessageStateError
from kombu.transport import virtual

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.message import message_id, which
from kombu_redisdelay.broker.options import ISOLATED_FOR
from kombu_redisdelay.transport.tasks import (
    failure,
    forget_task,
    is_terminated,
    keep_from_beginning,
    name_of,
    tasks_that_ended_the_worker,
)

if TYPE_CHECKING:
    from kombu_redisdelay.transport.channel import Channel

logger = logging.getLogger(__name__)


class QoS(virtual.QoS):
    """The messages that a channel has delivered and that are not acked yet.

    The base class counts the messages in this process. The messages themselves are in the consumer's
    unacked hash in Redis. Acks may come from any thread, even after the channel was closed.
    """

    channel: Channel

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._queues: dict[str, str] = {}
        #: Tag of an isolated message -> when its isolation ends; seconds of the monotonic clock.
        self._isolated: dict[str, float] = {}
        #: Tags of messages that were already reported as lost. If their acks find nothing later, that is not
        #: reported again.
        self._lost: set[str] = set()
        #: Tag of a message whose task has failed for good, and that Celery is about to settle -> why.
        self.failures: dict[str, Failure] = {}
        #: What was delivered and not settled when the references were dropped.
        self._unsettled: WeakValueDictionary[str, virtual.Message] | None = None

    def hold(self, delivery_tag: str, queue: str, isolated: bool) -> None:
        """Note that a message of *queue* is about to be delivered, and that Redis holds it. Fanout messages
        are only counted in this process, because they come over PUB/SUB.

        Arguments:
            isolated: take no other message as long as this one is unacked, for :data:`ISOLATED_FOR` at most.
        """
        self._queues[delivery_tag] = queue
        if isolated:
            self._isolated[delivery_tag] = monotonic() + ISOLATED_FOR

    def report_isolated(self, queue: str, message: virtual.Message, lost: int) -> None:
        """Say that a *message* is isolated, because workers have died that held it."""
        logger.warning(
            "Isolated a message of queue %r, because %d worker(s) have died while they held it: this worker "
            "takes no other until it is done, for %d seconds at most%s",
            queue,
            lost,
            ISOLATED_FOR,
            which([name_of(message)], 1),
        )

    def holds(self, delivery_tag: str) -> bool:
        """Whether Redis holds a message that was delivered and is not settled yet."""
        return delivery_tag in self._queues

    @property
    def holds_any(self) -> bool:
        """Whether a message was delivered and is not settled yet."""
        return bool(self._queues)

    def can_consume(self) -> bool:
        if self._isolated and max(self._isolated.values()) > monotonic():
            return False
        if self.channel.intake.has_one_to_isolate:
            return False
        return bool(super().can_consume())

    def ack(self, delivery_tag: str) -> None:
        try:
            if delivery_tag in self._queues:
                self.write_ack(delivery_tag)
        finally:
            # Also if a time limit of gevent interrupts this: the consumer keeps the ack, and will send it.
            self._forget(delivery_tag)

    def write_ack(self, delivery_tag: str) -> None:
        """Write the ack of a message, which keeps its place among those that the channel may hold until
        :meth:`ack` is called, too."""
        queue = self._queues.pop(delivery_tag, None)
        if queue is None:
            return
        failure = self.failures.pop(delivery_tag, None) if self.failures else None
        if failure is None:
            self.channel.consumer.ack(queue, delivery_tag)
        else:
            self.channel.consumer.keep_failed(queue, delivery_tag, failure)

    def can_ack_at_once(self, delivery_tag: str) -> bool:
        """Whether :meth:`ack` does not have to wait for Redis now."""
        queue = self._queues.get(delivery_tag)
        return queue is None or self.channel.consumer.can_ack_at_once(queue)

    def defer_unknown(self, message: virtual.Message, task: str) -> None:
        """Schedule a message for the workers that know its *task*. It is settled then."""
        tag = str(message.delivery_tag)
        id = message_id({"headers": message.headers, "properties": message.properties})
        self.channel.consumer.defer_unknown(self._queues[tag], tag, id, task)
        self._forget(tag)
        message._state = "REQUEUED"

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        queue, consumer = self._queues.get(delivery_tag), self.channel.consumer
        if queue is None or (not requeue and delivery_tag in self.failures):
            self.ack(delivery_tag)
        elif not requeue:
            # What the task has raised is not known later.
            why = failure() if self.channel.options.dead_letter else ""
            self._settle(queue, delivery_tag, partial(consumer.discard, queue, delivery_tag, lambda: why))
        elif is_terminated():
            # The worker has killed the task, which has not failed.
            self._settle(queue, delivery_tag, partial(consumer.give_back, queue, delivery_tag))
        else:
            self._settle(queue, delivery_tag, partial(consumer.requeue, queue, delivery_tag))

    def _settle(self, queue: str, delivery_tag: str, settle: Callable[[], bool]) -> None:
        """Call *settle*, which returns whether the message was held. If the server refuses, the message keeps
        its place among those that the channel may hold until the server takes it."""

        def settle_and_forget() -> None:
            if delivery_tag in self._queues:
                if not settle():
                    self.lease_lost(queue, [delivery_tag])
                self._forget(delivery_tag)

        self.channel.intake.settle_in_time(settle_and_forget)

    def has_failed(self, message: virtual.Message) -> None:
        """Give back a message that a Celery worker could not handle. The delivery counts as failed. To be
        called while the exception is handled.

        Raises:
            ConnectionError: the connection failed. Then the message goes back when it is made anew.
        """
        tag = message.delivery_tag
        logger.exception(
            "A message of queue %r could not be handled%s. The worker goes on, and the delivery has failed.",
            self._queues.get(tag),
            which([name_of(message)], 1),
        )
        forget_task(message)
        self.fail(tag)
        self.reject(tag, requeue=True)

    def make_dead(self, message: virtual.Message, wrong: str) -> None:
        """Move a message that no worker can handle to the dead letters. One that was delivered without acks
        is only dropped.

        Arguments:
            wrong: what is wrong with it, in a line.
        """
        tag = message.delivery_tag
        queue = self._queues.get(tag)

        def make_dead() -> bool:
            was_unacked = queue is None or self.channel.consumer.make_dead(queue, tag, wrong)
            logger.error(
                "Moved a message of queue %r that no worker can handle%s to the dead letters: %s",
                queue,
                which([name_of(message)], 1),
                wrong,
            )
            return was_unacked

        if queue is None:
            make_dead()
            self._forget(tag)
        else:
            self._settle(queue, tag, make_dead)

    def requeue_later(self, delivery_tag: str, delay: float) -> None:
        """Schedule a message again, *delay* seconds from now.

        Raises:
            MessageStateError: the message needs no ack, so the broker does not hold it.
        """
        queue = self._queues.get(delivery_tag)
        if queue is None:
            if self.channel.closed or delivery_tag in self._lost:
                # It went back, as was logged.
                return
            raise MessageStateError(
                "The broker does not hold this message: it was delivered without acks (no_ack), or through a "
                "fanout exchange, or its queue was deleted"
            )
        self._settle(
            queue, delivery_tag, partial(self.channel.consumer.requeue, queue, delivery_tag, delay * 1000)
        )

    def fail(self, delivery_tag: str) -> None:
        """Note that the callback of a message has failed. If it has settled the message before, this is
        ignored."""
        queue = self._queues.get(delivery_tag)
        if queue is not None:
            self.channel.consumer.fail(queue, delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Give every message back.

        Returns:
            An empty list, because the base class expects a list of errors.
        """
        for tag in tasks_that_ended_the_worker(self._delivered):
            self.fail(tag)
        self.channel.give_back_all()
        self._queues.clear()
        self._isolated.clear()
        self.failures.clear()
        self._dirty.clear()
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Give every message back when the channel is closed, or when the interpreter exits."""
        self._on_collect.cancel()
        if self.channel.do_restore:
            if unacked := len(self._queues):
                # kombu's words: programs may search logs for them.
                logger.info("Restoring %d unacknowledged message(s)", unacked)
            # When the interpreter exits, a thread may still consume. It would take the messages again, so
            # stop consuming first. kombu's own basic_cancel would wait for that thread.
            for consumer_tag in list(self.channel._consumers):
                self.channel._basic_cancel(consumer_tag)
            self.restore_unacked()

    def give_back_unbegun(self) -> None:
        """Give back the messages whose task has not begun, in a Celery worker that stops. It never begins in
        this worker, even if Redis cannot be reached: then the messages go back when the channel is closed.

        The gate is shut, and the channel takes nothing more.
        """
        unsettled = {tag: self._delivered.get(tag) for tag in list(self._queues)}
        unbegun = {tag: message for tag, message in unsettled.items() if keep_from_beginning(message)}
        if not unbegun:
            return
        # kombu's words: programs may search logs for them.
        logger.info("Restoring %d unacknowledged message(s)", len(unbegun))
        if self.channel.give_back_all(unsettled.keys() - unbegun.keys(), is_end=False):
            for tag, message in unbegun.items():
                self._forget(tag)
                assert message is not None
                message._state = "REQUEUED"

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Recover the messages of lost consumers. kombu's poller calls this."""
        self.channel.look_after_queues()

    def lease_lost(self, queue: str, tags: Collection[str]) -> None:
        """Report messages that this consumer settled when it had lost them, and find the others that it
        has lost.

        Arguments:
            queue: the queue of the messages.
            tags: their delivery tags.
        """
        untold = set(tags) - self._lost
        self._lost.difference_update(tags)
        if not untold:
            return
        unsettled = [tag for tag, name in list(self._queues.items()) if name == queue]
        lost = self.channel.consumer.lost_tags(queue, unsettled) | untold
        self._lost |= lost - untold
        # Those that were acked too late may be unknown by now.
        names = [name_of(message) for tag, message in list(self._delivered.items()) if tag in lost]
        if self.channel.consumer.lease_may_have_ended(queue):
            logger.warning(
                "The lease of this consumer was lost: %d message(s) of queue %r that it held were given to "
                "other consumers, and may be handled twice%s. Was the process stopped, or Redis out of "
                "reach, for longer than visibility_timeout?",
                len(lost),
                queue,
                which(names, len(lost)),
            )
            metrics.lease_lost(queue, len(lost))
        else:
            logger.warning(
                "Keys have vanished from Redis: %d message(s) of queue %r that this consumer held are not "
                "there any more%s. Its lease has not ended, so no other consumer was given them. Was there a "
                "FLUSHDB, an eviction, an older dump? Or a failover that has lost the takes: then they are "
                "ready again, and may be handled twice.",
                len(lost),
                queue,
                which(names, len(lost)),
            )
        for tag in lost:
            self._forget(tag)

    def forget_queue(self, queue: str) -> None:
        """Forget the messages of a queue. It was deleted together with its unacked messages."""
        for tag in [tag for tag, name in list(self._queues.items()) if name == queue]:
            self._forget(tag)

    def release(self) -> WeakValueDictionary[str, virtual.Message]:
        """Drop the references to the delivered messages, to find out which messages are still in use.

        Returns:
            Delivery tag -> message, for the messages that other code still refers to. Messages that are
            settled later vanish from it, too.
        """
        self._flush()
        self._unsettled = unsettled = WeakValueDictionary(self._delivered)
        self._delivered.clear()
        return unsettled

    def _forget(self, delivery_tag: str) -> None:
        self._queues.pop(delivery_tag, None)
        # Each ack comes here, and these are nearly always empty.
        if self._isolated:
            self._isolated.pop(delivery_tag, None)
        if self.failures:
            self.failures.pop(delivery_tag, None)
        if self._unsettled is not None:
            self._unsettled.pop(delivery_tag, None)
        if delivery_tag in self._delivered:
            self._quick_ack(delivery_tag)
            transport = self.channel.connection
            if transport is not None:
                transport.cycle.room_was_made()
