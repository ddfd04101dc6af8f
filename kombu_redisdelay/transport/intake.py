"""The messages of a channel: from the broker, until they are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual
from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.delivery import Delivery, Request, Taken
from kombu_redisdelay.broker.server.server import SlotUnavailable
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.consumed_queues import ConsumedQueues
from kombu_redisdelay.transport.receive import Received, receive
from kombu_redisdelay.transport.refused import Asked, Call, Refused, served
from kombu_redisdelay.transport.slot_fetcher import LONGEST_PAUSE, PAUSE, SlotFetcher
from kombu_redisdelay.transport.tasks import is_exit
from kombu_redisdelay.transport.upstream import note_end_of_the_loop

if TYPE_CHECKING:
    from kombu_redisdelay.broker.maintenance import Maintenance
    from kombu_redisdelay.transport.channel import Channel

#: Seconds between two checks that the server has received the acks.
CONFIRM_AFTER = 1.0

#: A message that must be held alone waits until all others are settled, but at most for this many seconds.
ISOLATION_PATIENCE = 2.0


#: What a server may refuse.
SETTLING = Call("to ack, reject or give back messages")
MAINTAINING = Call("to maintain the queues")


def taking_of(fetcher: SlotFetcher) -> Call:
    """The takes of *fetcher*."""
    return Call("to hand out messages (EVALSHA, take.lua)", fetcher)


def waiting_of(fetcher: SlotFetcher) -> Call:
    """The waits of *fetcher*."""
    return Call("to wait for messages (BZPOPMIN)", fetcher, Asked.WAIT)


class Intake:
    """Takes messages from the broker for a channel, and delivers them. A fetcher asks for them: there is one
    for each slot of the queues, so there is one with a single Redis.

    Attributes:
        consumed: the queues that the channel consumes from.
        refused: what the servers refuse to the channel; ``None`` in a program that is no Celery worker.
        pool: that of Celery's worker, for whose tasks the messages are; ``None`` in another program.
    """

    refused: Refused | None = None
    pool: Any = None

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._is_served = self._has_waited = self._attends = False
        #: What a server has refused to settle, and is tried again.
        self._unsettled: list[Callable[[], object]] = []
        self.consumed = ConsumedQueues()
        self._taken: deque[Received] = deque()
        self._confirmed_at = monotonic()
        self._maintains_again_at = float("-inf")
        #: For each slot, the fetcher of its queues.
        self._fetchers: dict[int, SlotFetcher] = {}
        #: The fetchers that expect a reply with messages. After an error, it may have others.
        self._taking: set[SlotFetcher] = set()
        #: The queues that the fetchers were made for.
        self._in_fetchers: Sequence[str] = ()
        #: Those of them that are consumed from with acks.
        self._with_acks: Sequence[str] = ()

    def consume(self, queue: str, no_ack: bool, callback: Callable[[virtual.Message], Any]) -> None:
        self.consumed.add(queue, callback, no_ack, acked_at_once=self._without_acks(no_ack))

    def cancel(self, queue: str) -> list[Delivery]:
        """Stop delivering from *queue*. Returns the messages of it that were taken and not delivered."""
        self.consumed.remove(queue)
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
        waits_until = self._taken[0].waits_until
        return waits_until is None or not self._channel.qos.holds_any or monotonic() >= waits_until

    @property
    def has_one_to_isolate(self) -> bool:
        """Whether a message waits until no other message is held. It can only be the one taken last."""
        return bool(self._taken) and self._taken[-1].waits_until is not None

    @property
    def fetchers(self) -> Collection[SlotFetcher]:
        """The fetchers of the queues that the channel consumes from."""
        queues = self.consumed.queues
        if queues is not self._in_fetchers:
            self._divide(queues)
        return self._fetchers.values()

    @property
    def fetchers_in_order(self) -> Collection[SlotFetcher]:
        """The same, in the order in which they may ask."""
        fetchers = self.fetchers
        if len(fetchers) <= 1:
            return fetchers
        order = self._channel._queue_cycle.consume(len(self._in_fetchers))
        in_order = dict.fromkeys(self._fetchers[self._channel.store.slot(queue)] for queue in order)
        return [*in_order, *(fetcher for fetcher in fetchers if fetcher not in in_order)]

    @property
    def has_asked(self) -> bool:
        """Whether all fetchers wait for answers, and the mover was told so: there is nothing to ask."""
        for fetcher in self.fetchers:
            if not fetcher.is_waiting:
                return False
        return self._attends

    @property
    def expects_more(self) -> bool:
        """Whether more messages are ready, or it is not known whether there are any."""
        return any(fetcher.expects_more for fetcher in self.fetchers)

    @property
    def longest_wait(self) -> float:
        """Seconds after which each fetcher that waits has an answer, even if nothing comes."""
        timeout = self._channel.brpop_timeout
        return max((each.longest_wait(timeout) for each in self._fetchers.values()), default=0.0)

    def attend(self, seconds: float) -> None:
        """Tell the mover that the fetchers move what is due for this number of *seconds*. With 0, they do
        not."""
        mover = self._channel.mover
        self._attends = seconds > 0
        if mover is not None:
            mover.queues = self._with_acks
            mover.leave_it(seconds)

    def attend_nothing(self) -> None:
        """Tell the mover that messages are about to be delivered: the fetchers do nothing until that is done.
        In a solo worker, a delivery runs the task."""
        self._attends = False
        if self._channel.mover is not None:
            self._channel.mover.leave_it(0.0)

    def next_due(self) -> float | None:
        """Seconds until the next message is due, ``None`` if none is scheduled."""
        each = [due for fetcher in self._fetchers.values() if (due := fetcher.next_due()) is not None]
        return min(each, default=None)

    def take_due(self) -> float | None:
        """Take messages where some are due, or have come without a token. Returns the same as
        :meth:`next_due`."""
        for fetcher in self.fetchers:
            try:
                taken = fetcher.take_due(self.credit)
            except ResponseError as exc:
                self._bear(fetcher, exc)
            else:
                self._keep(fetcher, taken)
        return self.next_due()

    def take(self, fetcher: SlotFetcher) -> float | None:
        """Have *fetcher* take messages. Returns the seconds until the next message in its queues is due,
        ``None`` if none is scheduled."""
        try:
            taken = fetcher.take(self.credit)
        except ResponseError as exc:
            self._bear(fetcher, exc)
        else:
            self._keep(fetcher, taken)
        return fetcher.next_due()

    def client_of(self, fetcher: SlotFetcher) -> Any:
        """The client of redis-py whose connection is the poll connection of *fetcher*."""
        if fetcher.client is None:
            fetcher.client = self._channel.new_poll_client(fetcher.queues[0])
        return fetcher.client

    def ask(self, fetcher: SlotFetcher) -> None:
        """Have *fetcher* ask over its poll connection."""
        try:
            fetcher.ask(self.credit, self._channel.brpop_timeout)
        except ResponseError as exc:
            self._bear(fetcher, exc)
        if fetcher.is_taking:
            self._taking.add(fetcher)

    def answer(self, fetcher: SlotFetcher) -> float | None:
        """Have *fetcher* read the reply that came over its poll connection. Returns the same as
        :meth:`take`."""
        try:
            taken = fetcher.answer(self.credit)
        except ResponseError as exc:
            self._bear(fetcher, exc)
        else:
            if not self._has_waited and fetcher.has_waited:
                self._has_waited = True
                served(self._channel.connection.broker, Asked.WAIT)
            if self.refused is not None and self.refused.any and fetcher.has_waited:
                self.refused.is_served(waiting_of(fetcher))
            self._keep(fetcher, taken)
        return fetcher.next_due()

    def finish_taking(self) -> None:
        """Read all replies with messages that are on their way."""
        for fetcher in self._fetchers.values():
            if fetcher.is_taking:
                self.answer(fetcher)

    def close(self) -> None:
        """Close the poll connections. Replies that are still on their way are lost."""
        self._taking.clear()
        if self.refused is not None:
            self.refused.end()
        for fetcher in self._fetchers.values():
            fetcher.close()

    def after_fork(self) -> None:
        """Drop what belongs to the parent process."""
        self._taken.clear()
        self._taking.clear()
        self._unsettled.clear()
        self._fetchers.clear()
        self._in_fetchers = ()

    # -- room ------------------------------------------------------------------------------------------

    @property
    def is_told_by_application(self) -> bool:
        """Whether the application has replaced ``can_consume`` of the channel's QoS, to decide before each
        message. Celery does so for ``worker_disable_prefetch``."""
        return "can_consume" in vars(self._channel.qos)

    def credit(self) -> int:
        """The number of messages that may be asked for now."""
        qos, max_batch = self._channel.qos, self._channel.options.max_batch
        if not qos.can_consume():
            return 0
        reserved = sum(each.reserved for each in self._taking) if len(self._fetchers) > 1 else 0
        if self.is_told_by_application:
            return 0 if reserved else 1
        room: int | None = qos.can_consume_max_estimate()
        if room is None:
            return max_batch
        return max(0, min(max_batch, room - len(self._taken) - reserved))

    def is_patient(self, fetcher: SlotFetcher) -> bool:
        """Whether *fetcher* waits until there is room for more messages. A take of one message costs about as
        much as a take of ten. No place of a worker's pool is idle for it: less than half of what may be held
        is free, and the other half is enough for all places. Pools of greenlets come without an event loop:
        they take without a pause."""
        if not fetcher.expects_more or self.is_told_by_application:
            return False
        prefetch_count, room = self._channel.qos.prefetch_count, self.credit()
        processes = self.pool and self.pool.num_processes
        longest = LONGEST_PAUSE if processes and prefetch_count >= 2 * processes else PAUSE
        half = min(prefetch_count, self._channel.options.max_batch) / 2
        return room < half and fetcher.pauses(room, longest)

    def has_no_room(self, fetcher: SlotFetcher) -> bool:
        """Whether *fetcher* knows of more messages, and others have asked for all that may be held. Their
        replies come soon."""
        return fetcher.has_polled and any(each.is_taking for each in self._taking) and not self.credit()

    # -- delivering ------------------------------------------------------------------------------------

    def _keep(self, fetcher: SlotFetcher, taken: Taken | None) -> None:
        """Keep the messages that *fetcher* has taken, until they are delivered."""
        if not fetcher.is_taking:
            self._taking.discard(fetcher)
        if taken is None:
            return
        if not self._is_served:
            self._is_served = True
            served(self._channel.connection.broker)
        if self.refused is not None and self.refused.any:
            self.refused.is_served(taking_of(fetcher))
        channel, callbacks = self._channel, self.consumed.callbacks
        wanted = [delivery for delivery in taken.deliveries if delivery.queue in callbacks]
        if len(callbacks) > 1:
            for delivery in wanted:
                channel._queue_cycle.rotate(delivery.queue)
        self._taken += self._messages(wanted, taken.now_ms)
        # These queues were cancelled while the reply was on its way.
        unwanted = [delivery for delivery in taken.deliveries if delivery.queue not in callbacks]
        if unwanted:
            self.settle_in_time(partial(channel.consumer.put_back, unwanted))
            for queue in {delivery.queue for delivery in unwanted if delivery.needs_ack}:
                channel.consumer.membership.was_listed_late(queue)

    def get(self, queue: str, no_ack: bool) -> virtual.Message | None:
        """Take one message of *queue*, if there is one."""
        consumer = self._channel.consumer
        self.finish_taking()
        for index, waiting in enumerate(self._taken):
            if waiting.delivery.queue == queue:
                del self._taken[index]
                self._hold(waiting, no_ack)
                return waiting.message
        no_acks = [queue] if self._without_acks(no_ack) else ()
        request = Request([queue], 1, no_ack=no_acks, polls_again=False)
        while True:
            taken = consumer.take(request)
            if not taken.deliveries:
                return None
            # There is more than one if the reply to an earlier, larger take was lost.
            consumer.put_back(taken.deliveries[1:])
            for received in self._messages(taken.deliveries[:1], taken.now_ms):
                self._hold(received, no_ack)
                return received.message

    def deliver_one(self) -> None:
        """Hand the next message that was taken to its callback."""
        waiting, consumed = self._taken.popleft(), self.consumed
        delivery = waiting.delivery
        self._hold(waiting, delivery.queue in consumed.no_ack)
        try:
            consumed.callbacks[delivery.queue](waiting.message)
        except BaseException as exc:
            if self._channel.is_workers and note_end_of_the_loop(exc):
                raise
            # Every exception counts: also one that kombu takes for a lost connection, or that ends the
            # process.
            if is_exit(exc) or not self._channel.is_workers:
                # If it has only waited for a place in the pool, something else has asked for the end.
                if getattr(waiting.message, "is_let_in", True):
                    self._channel.qos.fail(delivery.tag)
                raise
            self._channel.qos.has_failed(waiting.message)

    def settle(self) -> None:
        """Once a second, confirm the acks, and give back what the application has left.

        Raises:
            ConnectionError: the connection failed.
        """
        consumer, now = self._channel._consumer, monotonic()
        if consumer is None or now - self._confirmed_at <= CONFIRM_AFTER:
            return
        self._confirmed_at = now
        # What waits for a slot is done another time.
        with suppress(SlotUnavailable), self._channel.store.server.hurrying():
            try:
                consumer.confirm_acks()
                consumer.membership.leave_cancelled()
                self.settle_rest()
            except ResponseError as exc:
                # The line keeps the acks, and sends them again.
                self._refusal(SETTLING, exc)
                return
            if self.refused is not None:
                self.refused.is_served(SETTLING)
                self._ask_without_room()
            # The application has caught the exception of the callback and goes on consuming. It will not ack
            # these messages.
            for tag in consumer.long_failed():
                self._channel.qos.reject(tag, requeue=True)
        self._channel.say_again()

    def _ask_without_room(self) -> None:
        """Find out whether the servers write again. Fetchers that have no room do not ask for messages."""
        assert self.refused is not None
        for fetcher in self._fetchers.values():
            call = taking_of(fetcher)
            if not self.refused.refuses_all(call) or fetcher.is_resting or fetcher.is_waiting:
                continue
            try:
                fetcher.ask_to_write()
            except ResponseError as exc:
                self._bear(fetcher, exc)
            else:
                self.refused.is_served(call)
                self.refused.is_served(waiting_of(fetcher))

    def settle_in_time(self, settle: Callable[[], object]) -> None:
        """Call *settle*, which settles messages. If the server refuses, it is called again each second, until
        the server takes it.

        Raises:
            ResponseError: the server refuses for good, or this is no worker.
        """
        try:
            settle()
        except ResponseError as exc:
            self._refusal(SETTLING, exc)
            self._unsettled.append(settle)

    def settle_rest(self) -> None:
        """Settle what a server has refused to settle. Any thread may call this when the channel is closed.

        Raises:
            RedisError: the server still refuses, or cannot be reached.
        """
        while self._unsettled:
            try:
                self._unsettled[0]()
            except ResponseError as exc:
                refusal = refusal_of(exc)
                if refusal is not None and not refusal.is_for_a_while:
                    # To try again would not help. The message goes back with the others.
                    del self._unsettled[0]
                raise
            del self._unsettled[0]

    def maintain(self, queues: Sequence[str], maintenance: Maintenance) -> bool:
        """Make the next round trip of *maintenance*. Returns whether it is time for another."""
        if monotonic() < self._maintains_again_at:
            return False
        done = maintenance.done
        try:
            is_time = maintenance.round_trip(queues)
        except ResponseError as exc:
            self._maintains_again_at = monotonic() + self._refusal(MAINTAINING, exc)
            return False
        if self.refused is not None and maintenance.done > done:
            self.refused.is_served(MAINTAINING)
        return is_time

    def _bear(self, fetcher: SlotFetcher, error: ResponseError) -> None:
        """Have *fetcher* rest, because a server has refused. To be called while *error* is handled.

        Raises:
            ResponseError: waiting does not help, or this is no worker.
        """
        self._taking.discard(fetcher)
        call = waiting_of(fetcher) if fetcher.was_refused_to_wait else taking_of(fetcher)
        fetcher.rest(self._refusal(call, error))

    def _refusal(self, call: Call, error: ResponseError) -> float:
        """As :meth:`Refused.bear`, in a worker."""
        transport = self._channel.connection
        # Nobody calls again for a channel that is closed.
        if transport is None or not transport.is_workers:
            raise error
        if self.refused is None:
            longest_pause = self._channel.options.lease_policy.longest_pause
            self.refused = Refused(transport.broker, longest_pause)
        return self.refused.bear(call, error)

    def check_silence(self, silence_limit: float) -> None:
        """Check that the servers answer. As :meth:`SlotFetcher.check_silence`."""
        for fetcher in self._fetchers.values():
            if fetcher.is_silent(silence_limit) and not self._is_refused(fetcher):
                fetcher.has_been_silent(silence_limit)

    def _is_refused(self, fetcher: SlotFetcher) -> bool:
        """Whether the server of *fetcher* is there, and refuses. While a script runs for long, Redis does not
        even end the waits of blocked clients."""
        try:
            with self._channel.store.server.hurrying():
                fetcher.ask_to_write()
        except ResponseError as exc:
            self._refusal(waiting_of(fetcher), exc)
            fetcher.is_excused()
            return True
        except (RedisError, OSError):
            pass
        return False

    def is_disconnected(self, connection: Any) -> None:
        """Note that *connection* was closed. It may be a poll connection."""
        for fetcher in self._fetchers.values():
            if fetcher.is_disconnected(connection):
                self._taking.discard(fetcher)

    def _divide(self, queues: Sequence[str]) -> None:
        """Give each queue its fetcher."""
        channel = self._channel
        in_slots: dict[int, list[str]] = {}
        for queue in queues:
            in_slots.setdefault(channel.store.slot(queue), []).append(queue)
        for slot in in_slots.keys() - self._fetchers.keys():
            takes = channel.consumer.takes_in(slot)
            self._fetchers[slot] = SlotFetcher(takes, self.consumed, channel._queue_cycle)
        self._in_fetchers = queues
        for slot, fetcher in list(self._fetchers.items()):
            some = in_slots.get(slot, ())
            fetcher.consume_from(queues if len(some) == len(queues) else tuple(some))
            if not some:
                if fetcher.is_taking:
                    # Its messages go back.
                    self.answer(fetcher)
                fetcher.close()
                del self._fetchers[slot]
        self._with_acks = tuple(queue for queue in queues if queue not in self.consumed.acked_at_once)

    def _messages(self, deliveries: Sequence[Delivery], now_ms: float) -> list[Received]:
        channel = self._channel
        message_of = partial(channel.Message, channel=channel)
        try:
            received = receive(deliveries, now_ms, channel.consumer, message_of, self.settle_in_time)
        except Exception:
            # Of a signal handler. Nobody has seen these messages.
            channel.consumer.put_back(deliveries)
            raise
        for index, (delivery, message, lost, _) in enumerate(received):
            if lost and delivery.needs_ack and 0 < channel.options.isolated_after <= lost:
                channel.qos.report_isolated(delivery.queue, message, lost)
                received[index] = received[index]._replace(waits_until=monotonic() + ISOLATION_PATIENCE)
        return received

    def _without_acks(self, no_ack: bool) -> bool:
        return no_ack or not self._channel.ack_emulation

    def _hold(self, received: Received, no_ack: bool) -> None:
        qos, (delivery, message, _, waits_until) = self._channel.qos, received
        if delivery.needs_ack and no_ack:
            # The message was taken for a consumer that acks, and is now delivered without an ack.
            self._channel.consumer.ack(delivery.queue, delivery.tag)
        elif delivery.needs_ack:
            qos.hold(delivery.tag, delivery.queue, isolated=waits_until is not None)
        if not no_ack:
            qos.append(message, delivery.tag)
