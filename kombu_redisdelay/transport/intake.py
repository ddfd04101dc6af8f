"""How a channel gets its messages: when it asks, for how many messages, and over which connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport import virtual
from kombu.utils.scheduling import priority_cycle
from redis.exceptions import ConnectionError, ResponseError

from kombu_redisdelay.broker.delivery import Delivery, Request, Taken
from kombu_redisdelay.broker.message import DELIVERY_COUNT_HEADER
from kombu_redisdelay.broker.server.line import REST, is_open, re_authenticate
from kombu_redisdelay.broker.server.wire import pack
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE
from kombu_redisdelay.transport.hot import HotQueues
from kombu_redisdelay.transport.receive import receive

if TYPE_CHECKING:
    from kombu_redisdelay.transport.channel import Channel

#: Seconds between two checks that the server has received the acks.
CONFIRM_AFTER = 1.0

#: A message that must be held alone waits until all others are settled, but at most for this many seconds.
ALONE_PATIENCE = 2.0

#: Seconds to wait after a request, if the next one would be for less than half of what may be held.
PAUSE = 0.001

#: If a token comes within so many seconds, it may have been there before.
AT_ONCE = 0.002


class Waiting(NamedTuple):
    """A message that was taken and waits to be delivered.

    Attributes:
        alone_at: ``None`` for most messages. For a message that must be held alone: when to stop waiting, and
            to deliver it although others are held; seconds of the monotonic clock.
    """

    delivery: Delivery
    message: virtual.Message
    alone_at: float | None


class Intake:
    """Takes messages from the broker for a channel, and delivers them.

    There are two ways to ask, each over its own connection. :meth:`take` waits for the reply. :meth:`ask`
    sends a request over the poll connection and returns at once. It asks for messages or, if none are
    expected, for a wake-up. The poller tells when :meth:`answer` can read the reply.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._callbacks: dict[str, Callable[[virtual.Message], Any]] = {}
        self._no_ack_queues: set[str] = set()
        self._taken: deque[Waiting] = deque()
        #: Whether to ask for messages instead of a wake-up. True if more messages are ready, or if it is not
        #: known whether there are any.
        self.expects_more = True
        #: The request that was sent over the poll connection, ``None`` if it was for a wake-up.
        self._asked_for: Request | None = None
        self._confirmed_at = monotonic()
        self._was_overdue = False
        self._requested_at = float("-inf")
        self._rested_since = float("-inf")
        self._hot = HotQueues(self._callbacks)

    def consume(self, queue: str, no_ack: bool, callback: Callable[[virtual.Message], Any]) -> None:
        self._callbacks[queue] = callback
        self._no_ack_queues.discard(queue)
        if no_ack:
            self._no_ack_queues.add(queue)
        self._hot.look_soon()
        self.expects_more = True

    def cancel(self, queue: str) -> list[Delivery]:
        """Stop delivering from *queue*. Returns the messages of it that were taken and not delivered."""
        self._callbacks.pop(queue, None)
        self._no_ack_queues.discard(queue)
        self._hot.forget(queue)
        return self.forget_queue(queue)

    def forget_queue(self, queue: str) -> list[Delivery]:
        """Drop the messages of *queue* that wait to be delivered, and return them."""
        taken = [waiting.delivery for waiting in self._taken if waiting.delivery.queue == queue]
        self._taken = deque(waiting for waiting in self._taken if waiting.delivery.queue != queue)
        return taken

    def cancel_all(self) -> list[Delivery]:
        """Drop all messages that wait to be delivered, and return them."""
        taken = [waiting.delivery for waiting in self._taken]
        self._taken.clear()
        return taken

    def count(self, queue: str) -> int:
        """The number of messages of *queue* that were taken and not delivered yet."""
        return sum(waiting.delivery.queue == queue for waiting in self._taken)

    # -- taking ----------------------------------------------------------------------------------------

    @property
    def can_deliver(self) -> bool:
        """Whether a message can be delivered now."""
        if not self._taken:
            return False
        alone_at = self._taken[0].alone_at
        return alone_at is None or not self._channel.qos.holds_any or monotonic() >= alone_at

    @property
    def has_one_to_be_alone(self) -> bool:
        """Whether a message waits until no other message is held. It can only be the one taken last."""
        return bool(self._taken) and self._taken[-1].alone_at is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is expected over the poll connection."""
        return bool(self._channel._in_poll)

    @property
    def is_taking(self) -> bool:
        """Whether a reply with messages is expected over the poll connection."""
        return self.is_waiting and self._asked_for is not None

    @property
    def is_patient(self) -> bool:
        """Whether to wait until there is room for more messages, for :data:`PAUSE` at most. A take of one
        message costs about as much as a take of ten."""
        qos = self._channel.qos
        if not self.expects_more or "can_consume" in vars(qos):
            return False
        half = min(qos.prefetch_count, self._channel.options.max_batch) / 2
        return self._credit() < half and monotonic() - self._requested_at < PAUSE

    def take(self, also_woken: bool = True) -> float | None:
        """Take as many messages as the prefetch count leaves room for.

        Arguments:
            also_woken: whether to take from queues that nobody knows to be hot, if they were woken.

        Returns:
            Seconds until the next message is due, ``None`` if none is scheduled.
        """
        if self.is_taking:
            return self.answer()
        request = self._request(also_woken)
        if not request.queues:
            return None
        return self._receive(request, self._channel.consumer.take(request))

    def ask(self, connection: Any, timeout: float) -> None:
        """Ask for messages or for a wake-up over the poll connection.

        Arguments:
            connection: the poll connection.
            timeout: seconds after which the server answers even without a wake-up token.
        """
        self._asked_for = self._request() if self.expects_more else None
        if self._asked_for is not None:
            command = self._channel.consumer.ask_for(self._asked_for)
        else:
            command = self._channel.consumer.wait_for(self._channel.active_queues, timeout)
        connection.send_packed_command((pack(*command),))
        self._was_overdue = False

    def see_that_poll_is_open(self) -> None:
        """Close the poll connection if the server has closed it while no reply was expected. The next wait
        opens it again."""
        connection = self._channel.client.connection
        if connection is None or self.is_waiting or monotonic() - self._rested_since < REST:
            return
        if not is_open(connection):
            connection.disconnect()

    def answer(self) -> float | None:
        """Read the reply that came over the poll connection. If it is a wake-up, take messages.

        Returns:
            Seconds until the next message is due, ``None`` if none is scheduled or nothing was taken.
        """
        channel, request = self._channel, self._asked_for
        connection = channel.client.connection
        reply = None
        try:
            reply = connection.read_response()
        except ResponseError:
            if request is None:
                raise
            # The take is made again below. It succeeds, or raises an error that says more.
        except channel.connection_errors:
            connection.disconnect()
            raise
        finally:
            channel._in_poll = None
            self._rested_since = monotonic()
        re_authenticate(connection)
        if request is not None and reply is not None:
            return self._receive(request, channel.consumer.taken(request, reply))
        if request is None and reply is not None:
            return self._take_what_woke_us(reply)
        if request is None and not self._finds_something():
            return self._hot.next_due()
        return self.take()

    def get(self, queue: str, no_ack: bool) -> virtual.Message | None:
        """Take one message of *queue*, if there is one."""
        consumer = self._channel.consumer
        if self.is_taking:
            self.answer()
        for index, waiting in enumerate(self._taken):
            if waiting.delivery.queue == queue:
                del self._taken[index]
                self._hold(waiting, no_ack)
                return waiting.message
        request = Request([queue], 1, no_ack=[queue] if self._without_acks(no_ack) else ())
        while True:
            taken = consumer.take(request)
            if not taken.deliveries:
                return None
            # There is more than one if the reply to an earlier, larger take was lost.
            consumer.put_back(taken.deliveries[1:])
            for delivery, message in self._messages(taken.deliveries[:1], taken.now_ms):
                self._hold(self._waiting(delivery, message), no_ack)
                return message

    def deliver_one(self) -> None:
        """Hand the next message that was taken to its callback."""
        waiting = self._taken.popleft()
        delivery = waiting.delivery
        self._hold(waiting, delivery.queue in self._no_ack_queues)
        try:
            self._callbacks[delivery.queue](waiting.message)
        except BaseException:
            # Every exception counts: also one that kombu takes for a lost connection, or that ends the
            # process.
            if delivery.needs_ack:
                self._channel.consumer.fail(delivery.queue, delivery.tag)
            raise

    def settle(self) -> None:
        """Once a second, confirm the acks, and give back what the application has left.

        Raises:
            ConnectionError: the connection failed.
        """
        consumer, now = self._channel._consumer, monotonic()
        if consumer is None or now - self._confirmed_at <= CONFIRM_AFTER:
            return
        self._confirmed_at = now
        consumer.confirm_acks()
        consumer.leave_cancelled()
        # The application has caught the exception of the callback and goes on consuming. It will not ack
        # these messages.
        for tag in consumer.long_failed():
            self._channel.qos.reject(tag, requeue=True)

    def check_silence(self, timeout: float, silence_limit: float) -> None:
        """Check that the server answers over the poll connection.

        Arguments:
            timeout: seconds within which the server has to answer over the poll connection.
            silence_limit: seconds that the answer may come late before the connection counts as lost.

        Raises:
            ConnectionError: the server has been silent for too long.
        """
        if not self.is_waiting:
            return
        overdue = monotonic() - self._channel._brpop_sent_at > timeout + silence_limit
        if overdue and self._was_overdue:
            # This is the second check in a row, with a poll in between. The poll would have read a reply that
            # was only waiting to be read.
            self._channel.client.connection.disconnect()
            raise ConnectionError(f"no reply from Redis for {silence_limit:g} seconds")
        self._was_overdue = overdue

    def _take_what_woke_us(self, reply: Any) -> float | None:
        queue = self._channel.consumer.woken(reply)
        self._hot.woken(queue)
        # If a token was there at once, others may have been there, too: among them, the order counts.
        was_there = monotonic() - self._channel._brpop_sent_at < AT_ONCE
        return self.take(also_woken=was_there or queue not in self._callbacks)

    def _finds_something(self) -> bool:
        """Look at all queues. Returns whether there is something to take now."""
        queues, consumer = self._channel.active_queues, self._channel.consumer
        if not queues:
            return False
        glance = consumer.glance(queues)
        self._hot.glanced(glance)
        if glance.any_ready and len(queues) > QUEUES_PER_TAKE:
            self._hot.looked(consumer.look(queues))
        return glance.any_ready or self._hot.has_any

    def _request(self, also_woken: bool = True) -> Request:
        self._requested_at = monotonic()
        queues, queue_cycle = self._channel.active_queues, self._channel._queue_cycle
        if self._hot.needs_look(queues):
            self._hot.looked(self._channel.consumer.look(queues))
        order = queue_cycle.consume(len(queues))
        in_turn = not isinstance(queue_cycle, priority_cycle)
        credit = self._credit()
        hot, others_wait = self._hot.choose(order)
        # In turn, those come first that wait already. A look finds the woken ones within a second.
        is_full = in_turn and others_wait
        return Request(
            queues if in_turn else order,
            credit,
            in_turn,
            no_ack=frozenset(self._no_ack_queues) if self._channel.ack_emulation else queues,
            hot=hot,
            also_woken=also_woken and credit > 0 and not is_full,
        )

    def _receive(self, request: Request, taken: Taken) -> float | None:
        channel = self._channel
        self._hot.taken(request.hot or (), taken)
        # With a limit of 0 this is true, because then it is not known whether there is more.
        self.expects_more = len(taken.deliveries) >= request.limit or bool(self._hot)
        wanted = [delivery for delivery in taken.deliveries if delivery.queue in self._callbacks]
        for delivery in wanted:
            channel._queue_cycle.rotate(delivery.queue)
        self._taken += [self._waiting(*received) for received in self._messages(wanted, taken.now_ms)]
        # These queues were cancelled while the reply was on its way.
        unwanted = [delivery for delivery in taken.deliveries if delivery.queue not in self._callbacks]
        channel.consumer.put_back(unwanted)
        return self._hot.next_due()

    def _messages(
        self, deliveries: Sequence[Delivery], now_ms: float
    ) -> list[tuple[Delivery, virtual.Message]]:
        channel = self._channel
        return receive(deliveries, now_ms, channel.consumer, partial(channel.Message, channel=channel))

    def _credit(self) -> int:
        """The number of messages that may be taken now."""
        qos, max_batch = self._channel.qos, self._channel.options.max_batch
        if not qos.can_consume():
            return 0
        if "can_consume" in vars(qos):
            # The application has replaced `can_consume`, to decide before each message. Celery does so for
            # worker_disable_prefetch.
            return 1
        room: int | None = qos.can_consume_max_estimate()
        if room is None:
            return max_batch
        return max(0, min(max_batch, room - len(self._taken)))

    def _without_acks(self, no_ack: bool) -> bool:
        return no_ack or not self._channel.ack_emulation

    def _waiting(self, delivery: Delivery, message: virtual.Message) -> Waiting:
        failures = message.headers.get(DELIVERY_COUNT_HEADER, 0)
        is_suspect = delivery.needs_ack and failures >= self._channel.options.alone_after
        return Waiting(delivery, message, monotonic() + ALONE_PATIENCE if is_suspect else None)

    def _hold(self, waiting: Waiting, no_ack: bool) -> None:
        qos, (delivery, message, alone_at) = self._channel.qos, waiting
        if delivery.needs_ack and no_ack:
            # The message was taken for a consumer that acks, and is now delivered without an ack.
            self._channel.consumer.ack(delivery.queue, delivery.tag)
        elif delivery.needs_ack:
            qos.hold(delivery.tag, delivery.queue, alone=alone_at is not None)
        if not no_ack:
            qos.append(message, delivery.tag)
