"""The actions of a consumer: take, ack, give back."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.delivery import Acks, Delivery, Request, Tags, Taken
from kombu_redisdelay.broker.failure import Failure, report_dropped, report_returned
from kombu_redisdelay.broker.finished import Finishing
from kombu_redisdelay.broker.keeping import Undeliverable, dead_lettering, failing
from kombu_redisdelay.broker.lease import Lease, Membership
from kombu_redisdelay.broker.members import size_to_move
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, finish, portions
from kombu_redisdelay.broker.processes import worker_of
from kombu_redisdelay.broker.recovery import HoldingConsumer, Recovery
from kombu_redisdelay.broker.server.line import AckMissed
from kombu_redisdelay.broker.server.scripts import PARK, try_each
from kombu_redisdelay.broker.server.wire import checked, clock_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.takes import Takes
from kombu_redisdelay.broker.unknown_tasks import deferring

logger = logging.getLogger(__name__)

#: Messages that one script puts back. In a fair queue that counts keys, each costs 20 us and more.
GIVEN_BACK_PER_CALL = 50


class Consumer:
    """A consumer of some of the queues in *store*.

    Arguments:
        store: its line carries the acks, so no other consumer may use it.
        name: made by :func:`kombu_redisdelay.broker.processes.new_consumer`.
        lease: kept until :meth:`stop`.
        lease_lost: called with a queue and the delivery tags of acks that found no message there.
        consumed: the queues that are asked for again and again. The caller changes them.

    Attributes:
        membership: the queues that it is a consumer of.
        finishing: keeps a line of each task that is finished; ``None`` if none are kept.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        lease: Lease,
        options: Options,
        lease_lost: AckMissed,
        consumed: Collection[str] = (),
    ) -> None:
        self.store = store
        self.name = name
        self._lease = lease
        self._options = options
        self.membership = Membership(store, name, lease, consumed)
        keep = options.kept_finished
        self.finishing = None if keep is None else Finishing(store, keep, name)
        self._recovery = Recovery(store, options)
        self._pid = os.getpid()
        #: Messages whose callback has failed: delivery tag -> queue, and when by the monotonic clock.
        self._failed: dict[str, tuple[str, float]] = {}
        store.server.tell_missed_acks(lease_lost)
        self._tags = Tags()
        #: By slot.
        self._takes: dict[int, Takes] = {}
        self._acks = Acks(store, self.name)

    @property
    def is_taking(self) -> bool:
        """Whether a take has no reply yet. It may not even have reached the server."""
        return any(takes.is_unanswered for takes in self._takes.values())

    @property
    def is_ours(self) -> bool:
        """Whether this process is the consumer, not a child that was forked from it."""
        return self._pid == os.getpid()

    @property
    def limited(self) -> Collection[str]:
        """The queues of which it knows that they, or their keys, have a limited concurrency. It changes."""
        return self._acks.limited

    def takes_in(self, slot: int) -> Takes:
        """What makes the requests to queues of this *slot*, the same for each call."""
        takes = self._takes.get(slot)
        if takes is None:
            takes = self._takes[slot] = Takes(
                *(self.store, self.name, self._options, self._tags, self.membership, self._acks)
            )
        return takes

    def take(self, request: Request) -> Taken:
        """As :meth:`Takes.take <kombu_redisdelay.broker.takes.Takes.take>`, whatever the slot is."""
        return self.takes_in(self.store.slot(request.queues[0])).take(request)

    def ack(self, queue: str, tag: str) -> None:
        """Forget a message for good. The ack has been written when this returns. If the message was not held
        any more, `lease_lost` is called later."""
        if self._failed:
            self._failed.pop(tag, None)
        self.store.server.ack(self._acks.of(queue, tag))

    def keep_failed(self, queue: str, tag: str, failure: Failure, copy: bytes = b"") -> None:
        """Ack a message whose task has failed for good, or could not be ended though it has returned, and
        keep it among the failed ones of its queue. As with :meth:`ack`, this has been written when it
        returns.

        Arguments:
            copy: of a message that was acked before its task ran: the message as it was stored.
        """
        keep = self._options.kept_failed
        if keep is None:
            raise ValueError("this consumer keeps no failed tasks")
        self._settled(tag)
        is_limited = self._acks.is_limited(queue)
        self.store.server.ack(failing(self.store, keep, self.name, queue, tag, failure, copy, is_limited))
        if failure.returned:
            metrics.returned(queue)
            report_returned(queue, failure)
        else:
            metrics.failed(queue)

    def can_ack_at_once(self, queue: str) -> bool:
        """Whether :meth:`ack` can write without waiting for the server, for another thread or for replies."""
        return self.store.server.is_at_hand(self.store.keys(queue).unacked(self.name))

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far."""
        self.store.server.confirm_acks()

    def requeue(self, queue: str, tag: str, delay_ms: float | None = None) -> bool:
        """Requeue a delivered message, which has failed. Returns ``False`` if it was not held any more.

        Arguments:
            delay_ms: when it may be delivered again, in ms from now. By default, that is as the option
                ``retry_wait`` says. If it need not wait, it goes to the tail of its ready list.
        """
        self._settled(tag)
        return bool(self._give_back(queue, [tag], "failed", delay_ms))

    def give_back(self, queue: str, tag: str) -> bool:
        """Give back a delivered message that has not failed. Returns ``False`` if it was not held any
        more."""
        self._settled(tag)
        return bool(self._give_back(queue, [tag], "returned"))

    def defer_unknown(self, queue: str, tag: str, message_id: str, task: str) -> None:
        """Schedule a delivered message for consumers that know its *task*, because this one does not. That is
        no failed delivery. As with an ack, the command has been written when this returns, and is sent again
        if the connection fails."""
        self._settled(tag)
        # Whatever goes wrong here must not count as a failure of the message.
        self.store.try_to_remember(queue)
        wait_ms = round((self._options.unknown_task_wait or 0) * 1000)
        self.store.server.ack(deferring(self.store, self.name, queue, tag, message_id, task, wait_ms))

    def fail(self, queue: str, tag: str) -> None:
        """Note that the callback of a message has failed. If the message is given back later, this delivery
        counts as failed. Nothing is sent."""
        self._failed[tag] = queue, monotonic()

    def long_failed(self) -> list[str]:
        """The delivery tags of messages that are still held one lease or more after their callback failed."""
        before = monotonic() - self._options.lease_policy.failed_kept
        return [tag for tag, (_, at) in list(self._failed.items()) if at <= before]

    def discard(self, queue: str, tag: str, failure: Callable[[], str] = str) -> bool:
        """Drop a rejected message, or make it a dead letter if the option ``dead_letter`` is set. Returns
        ``False`` if it was to become a dead letter and was not held any more.

        Arguments:
            failure: says why it was rejected, in a line; empty if that is unknown. Only called for a dead
                letter.
        """
        if not self._options.dead_letter:
            self.ack(queue, tag)
            return True
        worker, why = worker_of(self.name), failure()
        reason = f"rejected{f' by {worker}' if worker else ''}{f': {why}' if why else ''}"
        return self.make_dead(queue, tag, reason, counts=True)

    def make_dead(self, queue: str, tag: str, reason: str, counts: bool = False) -> bool:
        """Make a delivered message a dead letter. Returns ``False`` if it was not held any more.

        Arguments:
            reason: why, in a line.
            counts: whether this delivery counts. That of a message that cannot be handled does not.
        """
        stored = self.store.server.call("HGET", self.store.keys(queue).unacked(self.name), tag)
        payload = split_stored(stored or b"")[1]
        [was_unacked] = checked(
            self._keep_dead([Undeliverable(queue, tag, reason, payload, failed_now=counts)])
        )
        return bool(was_unacked)

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Put messages that never reached a callback back where they were taken from, unchanged."""
        by_queue: dict[str, list[Delivery]] = {}
        for delivery in reversed(list(deliveries)):
            if delivery.needs_ack:
                by_queue.setdefault(delivery.queue, []).append(delivery)
            else:
                self.store.run(self.store.put(delivery.queue, delivery.step, delivery.payload, "head"))
        for queue, unseen in by_queue.items():
            for some in portions(unseen, _size, GIVEN_BACK_PER_CALL, BYTES_PER_CALL):
                self._give_back(queue, [delivery.tag for delivery in some], "unseen")

    def park(self, parkings: Sequence[tuple[Delivery, str, float]]) -> list[Any]:
        """Schedule messages that were taken before they are due, in one round trip. Each is a delivery, the
        message's id and when it is due, in ms since the epoch. Returns for each message the reply, or a
        ``ResponseError`` if the server refused."""
        queues = dict.fromkeys(delivery.queue for delivery, _, _ in parkings)
        self.store.remember(*queues)
        calls = []
        for delivery, message_id, due_ms in parkings:
            k = self.store.keys(delivery.queue)
            args = PARK.arguments(
                tag=delivery.tag,
                id=message_id,
                expires_ms=self.store.expires_ms.get(delivery.queue, 0),
                due_ms=due_ms,
                task="",
                longest_ms=0,
                shortest_ms=0,
            )
            keys = (k.unacked(self.name), k.schedule, k.messages, k.wake, k.duplicates, k.unknown)
            calls.append((PARK, keys, args))
        replies = try_each(self.store.server, calls)
        self._acks.wake(queues)
        return replies

    def dead_letter(self, messages: Sequence[tuple[Delivery, str]]) -> list[Any]:
        """Move messages that cannot be delivered to the dead letters of their queues, in one round trip. Each
        is a delivery and the reason. Returns for each message whether it was held, or a ``ResponseError`` if
        the server refused."""
        return self._keep_dead(
            [
                Undeliverable(
                    *(delivery.queue, delivery.tag, " ".join(reason.split()), delivery.payload),
                    copy=b"" if delivery.needs_ack else b"%d:%s" % (delivery.step, delivery.payload),
                )
                for delivery, reason in messages
            ]
        )

    def lost_tags(self, queue: str, tags: Collection[str]) -> set[str]:
        """Those of *tags* that this consumer does not hold any more, because it lost its lease."""
        unacked = self.store.keys(queue).unacked(self.name)
        still_unacked = set(self.store.server.call("HKEYS", unacked))
        lost = {tag for tag in tags if tag.encode() not in still_unacked}
        for tag in lost:
            self._settled(tag)
        return lost

    def lease_may_have_ended(self, queue: str) -> bool:
        """Whether others may have been given what this consumer held of *queue*, since this was asked before.
        Otherwise, what it does not hold any more has vanished from Redis."""
        keys = self.store.keys(queue)
        now_ms = clock_ms(self.store.server.server_of(keys.consumers).call("TIME"))
        return self._lease.may_have_ended(keys, now_ms)

    def give_back_all(self, keep: Collection[str] = (), *, crashed: bool = False) -> bool:
        """Give back every message that is held, except the delivery tags in *keep*. A message whose callback
        has failed counts as a failed delivery; the others do not. Returns whether nothing is held any more.

        Arguments:
            crashed: whether an error has ended this consumer. If no callback is known to have failed, any of
                the messages may have caused the error. Then all count as failed deliveries, as with a
                consumer that is gone.
        """
        self._lease.tell()
        if self.finishing is not None:
            self.finishing.send()
        self.confirm_acks()
        reason = "lost" if crashed and not self._failed else "returned"
        for tag, (queue, _) in list(self._failed.items()):
            if tag not in keep:
                self.requeue(queue, tag)
        holders = [HoldingConsumer(queue, self.name, lease_counts=False) for queue in self.membership.queues]
        outcome = finish(self._recovery.give_back(holders, reason, keep))
        return all(returned.holds_none for returned in outcome.values())

    def forget_queue(self, queue: str) -> None:
        """Drop the messages that are held of a deleted queue, and stop being its consumer."""
        if self.membership.forget(queue):
            self._failed = {tag: failed for tag, failed in self._failed.items() if failed[0] != queue}

    def stop(self) -> None:
        """End the lease: the consumer leaves the queues of which it holds nothing. In the others the lease
        runs out, and until then what is held can still be acked. In a forked child this does nothing, because
        the lease is the parent's.
        """
        if self.is_ours:
            self._lease.stop(self.store.server)

    def disconnect(self) -> None:
        """Close the connections. The next command opens one again, and sends the unconfirmed acks first."""
        self.store.disconnect()

    def _give_back(self, queue: str, tags: Sequence[str], reason: str, delay_ms: float | None = None) -> int:
        """Returns how many of them were held."""
        settled, dead = self._recovery.give_back_tags(queue, self.name, tags, reason, delay_ms)
        if dead:
            self._acks.wake([queue])
        return settled

    def _settled(self, tag: str) -> None:
        """Forget what is known of a message that is settled without an ack."""
        self._failed.pop(tag, None)
        self._acks.forget(tag)

    def _keep_dead(self, messages: Sequence[Undeliverable]) -> list[Any]:
        """Returns for each whether it was held, or an error."""
        self.store.remember(*dict.fromkeys(message.queue for message in messages))
        limit, calls = self._options.dead_letter_limit, []
        for message in messages:
            self._settled(message.tag)
            is_limited = self._acks.is_limited(message.queue)
            calls.append(dead_lettering(self.store, limit, self.name, message, is_limited))
        outcomes = try_each(self.store.server, calls)
        for index, message in enumerate(messages):
            if not isinstance(outcomes[index], ResponseError):
                was_unacked, dropped = bool(outcomes[index]), max(0, outcomes[index] - 1)
                metrics.dead_lettered(message.queue, was_unacked)
                report_dropped(self._options, message.queue, dropped)
                outcomes[index] = was_unacked
        return outcomes


def _size(delivery: Delivery) -> int:
    return size_to_move(delivery.payload)
