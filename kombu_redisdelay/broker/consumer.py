"""What a consumer does: take, ack, give back, recover what others left behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.acks import Acks
from kombu_redisdelay.broker.client import open_connection
from kombu_redisdelay.broker.delivery import Delivery, Request, Taken
from kombu_redisdelay.broker.identity import is_certainly_gone
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.scripts import (
    CONSUMERS,
    DEAD_LETTER,
    GIVE_BACK,
    PARK,
    RECOVER,
    SWEEP,
    TAKE,
    explained,
)
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.watch import Watch
from kombu_redisdelay.broker.wire import Argument, Command, clock_ms, first_score
from kombu_redisdelay.message import split_stored
from kombu_redisdelay.options import MAX_BATCH_LIMIT, Options

logger = logging.getLogger(__name__)

#: One script looks at no more than this, so that it never keeps Redis from its other clients for long.
MESSAGES_PER_SWEEP = 100

#: Per cent of a lease: with less than that to go, it should have been renewed, and is worth watching.
UNRENEWED = 60


class Consumer:
    """A consumer of some of the queues in *store*.

    Arguments:
        name: as :func:`kombu_redisdelay.broker.identity.new_consumer` makes it.
        lease: kept for as long as the consumer is open.
        lease_lost: called with a queue and the tags of acks that found nothing there.
        watch: of the other consumers.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        lease: Lease,
        options: Options,
        watch: Watch,
        lease_lost: Callable[[str, Sequence[str]], None],
    ) -> None:
        self.store = store
        self.name = name
        self._lease = lease
        self._watch = watch
        self._options = options
        self._pid = os.getpid()
        self._next_tag = 1
        self._queues: set[str] = set()
        self._acks = Acks(open_connection(store.client.connection_pool), lease_lost)
        #: What has no reply yet, or lost it.
        self._unanswered: Request | None = None

    @property
    def is_taking(self) -> bool:
        """Whether a take has no reply: the server may be yet to see it."""
        return self._unanswered is not None

    @property
    def is_ours(self) -> bool:
        """Whether this process is the consumer, not a child that was forked from it."""
        return self._pid == os.getpid()

    def take(self, request: Request) -> Taken:
        """Take messages, after moving what is due to the ready lists."""
        return self.taken(request, TAKE(self._acks, *self._begin(request)))

    def has_reason_to_take(self, queues: Sequence[str], soon: float) -> bool:
        """Whether something in *queues* is ready, or will be due within *soon* seconds, or expires if nobody
        takes from it. For who was not woken for a while: a token may be lost, or the clock set. Costs a
        fraction of a take."""
        store = self.store
        if any(queue in store.expires_ms for queue in queues):
            return True
        ready = [key for queue in queues for key in store.ready_keys(queue)]
        schedules = [store.keys(queue).schedule for queue in queues]
        first = [("ZRANGE", schedule, 0, 0, "WITHSCORES") for schedule in schedules]
        replies = store.client.call_all(("TIME",), ("EXISTS", *ready), *first)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise explained(reply, store.client, schedules)
        now, any_ready, *rows = replies
        soon_ms = clock_ms(now) + soon * 1000
        return bool(any_ready) or any(due is not None and due <= soon_ms for due in map(first_score, rows))

    def ask_for(self, request: Request) -> Command:
        """Begin to :meth:`take`, without waiting for the reply.

        Returns:
            The command to send, over any connection. :meth:`taken` must get the reply before anything else
            is taken. If that is an error, :meth:`take` says which.
        """
        return TAKE.command(*self._begin(request))

    def taken(self, request: Request, reply: Any) -> Taken:
        """What the *reply* to the *request* has brought."""
        self._unanswered = None
        queues, no_ack = request.queues, request.no_ack
        now_us, next_due_us, missing, only_migrated, indices, *messages = reply
        if missing:
            logger.error("Skipped %d scheduled id(s) of queues %s that had no message", missing, queues)
        deliveries = []
        # The script numbers the messages from the same tag in the same order. The counter moves on only
        # here, so that a take whose reply was lost is told from the next one.
        for index, stored in zip(indices.split(), messages, strict=True):
            queue = queues[int(index) - 1]
            step, payload = split_stored(stored)
            deliveries.append(Delivery(str(self._next_tag), queue, step, payload, queue not in no_ack))
            self._next_tag += 1
        if only_migrated:
            return self.taken(request, TAKE(self._acks, *self._begin(request, migrate=0)))
        next_due = None if next_due_us < 0 else next_due_us / 1_000_000
        return Taken(deliveries, now_us / 1000, next_due)

    def ack(self, queue: str, tag: str) -> None:
        """Forget a message for good. Written when this returns; `lease_lost` is called later if it was
        not held any more."""
        self._acks.add(queue, self.store.keys(queue).unacked(self.name), tag)

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far."""
        self._acks.confirm()

    def requeue(self, queue: str, tag: str) -> bool:
        """Give a message that was delivered back to the tail of its ready list. False if it was not held
        any more."""
        return bool(self._give_back(queue, [tag], "tail", "failed"))

    def discard(self, queue: str, tag: str) -> bool:
        """Be done with a message that was rejected: drop it, or keep it as a dead letter, as the options
        say. False if it was not held any more."""
        if not self._options.dead_letter:
            self.ack(queue, tag)
            return True
        return self._dead_letter(queue, tag, "rejected", b"", delivered=True)

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Give messages that never reached a callback back to where they were taken from, as they were."""
        held: dict[str, list[Delivery]] = {}
        for delivery in reversed(list(deliveries)):
            if delivery.acked:
                held.setdefault(delivery.queue, []).append(delivery)
            else:
                self.store.run(self.store.put(delivery.queue, delivery.step, delivery.payload, "head"))
        for queue, unseen in held.items():
            for some in portions(unseen, _size, MESSAGES_PER_CALL, BYTES_PER_CALL):
                self._give_back(queue, [delivery.tag for delivery in some], "head", "unseen")

    def park(self, delivery: Delivery, message_id: str, due_ms: float) -> None:
        """Schedule a message that was taken before it is due."""
        self.store.remember(delivery.queue)
        k = self.store.keys(delivery.queue)
        PARK(
            self.store.client,
            (k.unacked(self.name), k.schedule, k.messages, k.wake, k.duplicates),
            (delivery.tag, message_id, due_ms),
        )

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Move a message that cannot be delivered to the dead letters of its queue."""
        stored = b"" if delivery.acked else b"%d:%s" % (delivery.step, delivery.payload)
        tag = delivery.tag if delivery.acked else ""
        self._dead_letter(delivery.queue, tag, " ".join(reason.split()), stored, delivered=False)

    def recover(self, queue: str) -> int:
        """Give back what consumers that are gone hold in *queue*: those whose lease has ended and was not
        renewed while we looked on, and those whose process on this machine provably does not exist. To be
        called again and again. Returns the number of messages."""
        recovered = 0
        now_ms, ending, members = CONSUMERS(
            self.store.client,
            (self.store.keys(queue).consumers,),
            (UNRENEWED * self._options.lease_ms // 100,),
        )
        # What is no name of a consumer holds nothing.
        names = [member.decode(errors="replace") for member in members]
        lease_ends = {
            member.decode(errors="replace"): int(end)
            for member, end in zip(ending[::2], ending[1::2], strict=True)
        }
        unrenewed = self._watch.unrenewed(queue, lease_ends)
        for name in names:
            gone = is_certainly_gone(name)
            ended = lease_ends.get(name, now_ms + 1) <= now_ms
            if gone or (ended and name in unrenewed and name != self.name):
                count, _ = self._recover(queue, name, gone, "failed")
                if count:
                    metrics.recovered(queue, count)
                    why = "its process is gone" if gone else "its lease has ended"
                    logger.warning(
                        "Recovered %d message(s) of queue %r from consumer %s: %s",
                        count,
                        queue,
                        name,
                        why,
                    )
                recovered += count
        return recovered

    def sweep(self, queue: str) -> int:
        """Move scheduled messages that have lost their due time to the dead letters. Returns how many."""
        k = self.store.keys(queue)
        cursor, total = b"0", 0
        while True:
            cursor, found, dropped = SWEEP(
                self.store.client,
                (k.schedule, k.messages, k.dead, k.duplicates),
                (cursor, MESSAGES_PER_SWEEP, self._options.dead_letter_limit),
            )
            total += int(found)
            self._report(queue, 0, dropped)
            if cursor == b"0":
                break
        if total:
            metrics.dead_lettered(queue, total)
            self.store.remember(queue)
            logger.error(
                "%d scheduled message(s) of queue %r had no due time: dead letters now", total, queue
            )
        return total

    def not_held(self, queue: str, tags: Collection[str]) -> set[str]:
        """Those of *tags* that this consumer does not hold, because its lease was lost."""
        unacked = self.store.keys(queue).unacked(self.name)
        held = set(self.store.client.call("HKEYS", unacked))
        return {tag for tag in tags if tag.encode() not in held}

    def give_back_all(self, keep: Collection[str] = ()) -> bool:
        """Give back everything that is held, but for the delivery tags to *keep*: properly, which is no
        failure of a message. Returns whether nothing is held any more."""
        self._acks.confirm()
        done = [self._recover(queue, self.name, True, "returned", keep)[1] for queue in self._queues]
        return all(done)

    def forget_queue(self, queue: str) -> None:
        """Drop what is held in a queue that was deleted, and be no consumer of it any more."""
        if queue in self._queues:
            self._queues.remove(queue)
            k = self.store.keys(queue)
            self._lease.uncover(k.consumers)
            self.store.client.call("ZREM", k.consumers, self.name)
            self.store.client.call("UNLINK", k.unacked(self.name))

    def stop(self) -> None:
        """Let the lease run out, unless it is the parent's. What is held can still be acked until it has."""
        if self.is_ours:
            self._lease.stop()

    def disconnect(self) -> None:
        """Close the connections. The next command opens one again."""
        self._acks.disconnect()
        self.store.disconnect()

    def _begin(self, request: Request, migrate: int = MESSAGES_PER_CALL) -> tuple[list[str], list[Argument]]:
        """Returns KEYS and ARGV of a take."""
        self._lease.tell()
        store = self.store
        if self._unanswered is not None and not set(self._unanswered.queues).issubset(request.queues):
            # A reply was lost that may have been about other queues: stay clear of the tags in it.
            self._next_tag += MAX_BATCH_LIMIT
        self._unanswered = request
        keys: list[str] = []
        args: list[Argument] = [
            request.limit,
            migrate,
            BYTES_PER_CALL,
            self._next_tag,
            self.name,
            self._options.lease_ms,
            store.separator,
            int(request.in_turn),
            self._options.alone_after,
            len(store.steps),
            *store.steps,
        ]
        for queue in request.queues:
            k = store.keys(queue)
            keys += (k.ready, k.schedule, k.messages, k.wake, k.unacked(self.name), k.consumers)
            args += (int(queue in request.no_ack), store.expires_ms.get(queue, 0))
            if queue not in request.no_ack and queue not in self._queues:
                self._queues.add(queue)
                self._lease.cover(k.consumers)
        return keys, args

    def _recover(
        self, queue: str, name: str, gone: bool, how: str, keep: Collection[str] = ()
    ) -> tuple[int, bool]:
        """Returns how many messages were given back, and whether the consumer holds none any more."""
        k = self.store.keys(queue)
        unacked = k.unacked(name)
        kept = {tag.encode() for tag in keep}
        given_back = 0
        while True:
            tags = [tag for tag in self.store.client.call("HKEYS", unacked) if tag not in kept]
            # What was taken last goes first, so that what was taken first is at the head in the end.
            tags.sort(key=lambda tag: (len(tag), tag), reverse=True)
            held, dead, dropped, done = RECOVER(
                self.store.client,
                (k.consumers, unacked, k.ready, k.wake, k.dead),
                (
                    name,
                    int(gone),
                    how,
                    BYTES_PER_CALL,
                    k.separator,
                    self._delivery_limit,
                    self._options.dead_letter_limit,
                    *tags[:MESSAGES_PER_CALL],
                ),
            )
            given_back += held - dead
            self._report(queue, dead, dropped)
            if done or not tags:
                return given_back, bool(done)

    def _give_back(self, queue: str, tags: Sequence[str], end: str, how: str) -> int:
        """Returns how many of them were held."""
        k = self.store.keys(queue)
        held, dead, dropped = GIVE_BACK(
            self.store.client,
            (k.unacked(self.name), k.ready, k.wake, k.dead),
            (k.separator, end, how, self._delivery_limit, self._options.dead_letter_limit, *tags),
        )
        self._report(queue, dead, dropped)
        return int(held)

    def _dead_letter(self, queue: str, tag: str, reason: str, stored: bytes, *, delivered: bool) -> bool:
        self.store.remember(queue)
        k = self.store.keys(queue)
        held, dropped = DEAD_LETTER(
            self.store.client,
            (k.unacked(self.name), k.dead),
            (tag, reason, self._options.dead_letter_limit, stored, int(delivered)),
        )
        metrics.dead_lettered(queue, held)
        self._report(queue, 0, dropped)
        return bool(held)

    @property
    def _delivery_limit(self) -> int:
        return self._options.delivery_limit or 0

    def _report(self, queue: str, dead: int, dropped: int) -> None:
        if dead:
            metrics.dead_lettered(queue, dead)
            self.store.remember(queue)
            logger.error(
                "%d message(s) of queue %r reached the delivery limit of %d and are now dead letters",
                dead,
                queue,
                self._delivery_limit,
            )
        if dropped:
            logger.error(
                "Queue %r has more than dead_letter_limit=%d dead letters: dropped the oldest %d",
                queue,
                self._options.dead_letter_limit,
                dropped,
            )


def _size(delivery: Delivery) -> int:
    return len(delivery.payload)
