"""What a consumer does: take, ack, give back."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from time import monotonic, time
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay import metrics
from kombu_redisdelay.broker.delivery import Delivery, Request, Taken
from kombu_redisdelay.broker.lease import Lease
from kombu_redisdelay.broker.message import split_stored
from kombu_redisdelay.broker.options import MAX_BATCH_LIMIT, Options
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL, portions
from kombu_redisdelay.broker.recovery import Holder, Recovery, finish
from kombu_redisdelay.broker.report import report_dead, report_dropped
from kombu_redisdelay.broker.server.line import AckInVain
from kombu_redisdelay.broker.server.replies import checked, explained_all
from kombu_redisdelay.broker.server.scripts import (
    DEAD_LETTER,
    GIVE_BACK,
    LEAVE,
    PARK,
    TAKE,
    run_each,
    try_each,
)
from kombu_redisdelay.broker.server.wire import Argument, Command, clock_ms, first_score
from kombu_redisdelay.broker.store import NAME_BYTES_PER_CALL, Store

logger = logging.getLogger(__name__)

#: Queues that nothing is taken from any more, before it is seen which of them can be left.
MOST_LEFT = 100


class Consumer:
    """A consumer of some of the queues in *store*.

    Arguments:
        store: its line carries the acks, so no other consumer uses it.
        name: as :func:`kombu_redisdelay.broker.identity.new_consumer` makes it.
        lease: kept for as long as the consumer is open.
        lease_lost: called with a queue and the tags of acks that found nothing there.
    """

    def __init__(
        self, store: Store, name: str, lease: Lease, options: Options, lease_lost: AckInVain
    ) -> None:
        self.store = store
        self.name = name
        self._lease = lease
        self._options = options
        self._recovery = Recovery(store, options)
        self._pid = os.getpid()
        self._clock = ServerClock()
        #: A tag is the time when the message was asked for, or the next number that is free. So it tells who
        #: looks for how long a message has been held.
        self._next_tag = 1
        self._queues: set[str] = set()
        self._most_queues = MOST_LEFT
        #: Queues that nothing is taken from any more, and that were not left yet.
        self._cancelled: set[str] = set()
        #: Delivery tag -> queue and when, by the monotonic clock, of messages whose callback has failed.
        self._failed: dict[str, tuple[str, float]] = {}
        store.server.tell_acks_in_vain(lease_lost)
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
        return self.taken(request, self._take(request))

    def has_reason_to_take(self, queues: Sequence[str], soon: float) -> bool:
        """Whether something in *queues* is ready, or will be due within *soon* seconds. For who was not
        woken for a while: a token may be lost, or the clock set. Costs a fraction of a take."""
        store = self.store
        ready = [key for queue in queues for key in store.ready_keys(queue)]
        schedules = [store.keys(queue).schedule for queue in queues]
        first = [("ZRANGE", schedule, 0, 0, "WITHSCORES") for schedule in schedules]
        replies = store.server.call_all(("TIME",), ("EXISTS", *ready), *first)
        replies = explained_all(replies, store.server, [[], ready, *([key] for key in schedules)])
        try:
            now, any_ready, *rows = checked(replies)
        finally:
            del replies
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
        self._clock.set(now_us)
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
            return self.taken(request, self._take(request, migrate=0))
        next_due = None if next_due_us < 0 else next_due_us / 1_000_000
        return Taken(deliveries, now_us / 1000, next_due)

    def ack(self, queue: str, tag: str) -> None:
        """Forget a message for good. Written when this returns; `lease_lost` is called later if it was
        not held any more."""
        self._failed.pop(tag, None)
        unacked = self.store.keys(queue).unacked(self.name)
        self.store.server.line(unacked).ack(queue, unacked, tag)

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far."""
        self.store.server.confirm_acks()

    def requeue(self, queue: str, tag: str) -> bool:
        """Give a message that was delivered back to the tail of its ready list. False if it was not held
        any more."""
        self._failed.pop(tag, None)
        return bool(self._give_back(queue, [tag], "failed"))

    def fail(self, queue: str, tag: str) -> None:
        """Note that the callback of a message has failed: should the message be given back, that was a failed
        delivery. Nothing is sent."""
        self._failed[tag] = queue, monotonic()

    def long_failed(self) -> list[str]:
        """The delivery tags of messages whose callback failed a lease ago, and that are held still."""
        before = monotonic() - self._options.visibility_timeout
        return [tag for tag, (_, at) in list(self._failed.items()) if at <= before]

    def discard(self, queue: str, tag: str) -> bool:
        """Be done with a message that was rejected: drop it, or keep it as a dead letter, as the options
        say. False if it was not held any more."""
        if not self._options.dead_letter:
            self.ack(queue, tag)
            return True
        [was_held] = checked(self._dead_letter_all([(queue, tag, "rejected", b"", 1)]))
        return bool(was_held)

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
                self._give_back(queue, [delivery.tag for delivery in some], "unseen")

    def park(self, delivery: Delivery, message_id: str, due_ms: float) -> None:
        """Schedule a message that was taken before it is due."""
        checked(self.park_all([(delivery, message_id, due_ms)]))

    def park_all(self, parkings: Sequence[tuple[Delivery, str, float]]) -> list[Any]:
        """As :meth:`park`, for many messages in one round trip. Returns an error for each that fails."""
        self.store.remember(*dict.fromkeys(delivery.queue for delivery, _, _ in parkings))
        calls = []
        for delivery, message_id, due_ms in parkings:
            k = self.store.keys(delivery.queue)
            keys = (k.unacked(self.name), k.schedule, k.messages, k.wake, k.duplicates)
            expires_ms = self.store.expires_ms.get(delivery.queue, 0)
            calls.append((PARK, keys, (delivery.tag, message_id, due_ms, expires_ms)))
        return try_each(self.store.server, calls)

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Move a message that cannot be delivered to the dead letters of its queue."""
        checked(self.dead_letter_all([(delivery, reason)]))

    def dead_letter_all(self, burials: Sequence[tuple[Delivery, str]]) -> list[Any]:
        """As :meth:`dead_letter`, for many messages in one round trip. Returns an error for each that was
        refused."""
        return self._dead_letter_all(
            [
                (
                    delivery.queue,
                    delivery.tag if delivery.acked else "",
                    " ".join(reason.split()),
                    b"" if delivery.acked else b"%d:%s" % (delivery.step, delivery.payload),
                    0,
                )
                for delivery, reason in burials
            ]
        )

    def not_held(self, queue: str, tags: Collection[str]) -> set[str]:
        """Those of *tags* that this consumer does not hold, because its lease was lost."""
        unacked = self.store.keys(queue).unacked(self.name)
        held = set(self.store.server.call("HKEYS", unacked))
        return {tag for tag in tags if tag.encode() not in held}

    def give_back_all(self, keep: Collection[str] = (), *, crashed: bool = False) -> bool:
        """Give back everything that is held, but for the delivery tags to *keep*: what has failed as failed,
        the rest properly. Returns whether nothing is held any more.

        Arguments:
            crashed: an error has ended this consumer. If nothing is known to have failed, any of what is
                held may have done that, as with a consumer that is gone.
        """
        self.confirm_acks()
        how = "lost" if crashed and not self._failed else "returned"
        for tag, (queue, _) in list(self._failed.items()):
            if tag not in keep:
                self.requeue(queue, tag)
        holders = [Holder(queue, self.name, lease_counts=False) for queue in self._queues]
        outcome = finish(self._recovery.give_back(holders, how, keep))
        return all(returned.holds_none for returned in outcome.values())

    def cancel(self, queue: str) -> None:
        """Take nothing of *queue* any more. What is held of it stays held. Nothing is sent."""
        self._lease.let_expire(self.store.keys(queue))
        self._cancelled.add(queue)

    def leave_cancelled(self) -> None:
        """Be no consumer any more of queues that were cancelled, once nothing is held there."""
        if self._cancelled:
            self.leave(self._cancelled)
            self._cancelled &= self._queues

    def leave(self, queues: Collection[str]) -> None:
        """Be no consumer of *queues* any more, where nothing is held. What is held stays held."""
        names = [queue for queue in queues if queue in self._queues]
        for queue in queues:
            self._lease.uncover(self.store.keys(queue))
        for some in portions(names, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            keys = [self.store.keys(queue) for queue in some]
            calls = [(LEAVE, (k.consumers, k.unacked(self.name)), (self.name,)) for k in keys]
            for queue, k, has_left in zip(some, keys, run_each(self.store.server, calls), strict=True):
                if has_left:
                    self._queues.discard(queue)
                else:
                    self._lease.cover(k)

    def forget_queue(self, queue: str) -> None:
        """Drop what is held in a queue that was deleted, and be no consumer of it any more."""
        k = self.store.keys(queue)
        self._lease.uncover(k)
        if queue in self._queues:
            self._queues.remove(queue)
            self.store.server.call("ZREM", k.consumers, self.name)
            self.store.server.call("UNLINK", k.unacked(self.name))
            self._failed = {tag: failed for tag, failed in self._failed.items() if failed[0] != queue}

    def stop(self) -> None:
        """Let the lease run out, unless it is the parent's. What is held can still be acked until it has."""
        if self.is_ours:
            self._lease.stop()

    def disconnect(self) -> None:
        """Close the connections. The next command opens one again, and sends what was not confirmed."""
        self.store.disconnect()

    def _take(self, request: Request, migrate: int = MESSAGES_PER_CALL) -> Any:
        keys, args = self._begin(request, migrate)
        # Behind the acks, and after other threads: not over another connection meanwhile.
        return TAKE(self.store.server.line(keys[0]), keys, args)

    def _begin(self, request: Request, migrate: int = MESSAGES_PER_CALL) -> tuple[list[str], list[Argument]]:
        """Returns KEYS and ARGV of a take."""
        self._lease.tell()
        store = self.store
        self._cancelled.difference_update(request.queues)
        if len(self._queues) > self._most_queues + len(request.queues):
            # Somebody who gets messages of ever other queues.
            self.leave(self._queues.difference(request.queues))
            self._most_queues = len(self._queues) + MOST_LEFT
        if self._unanswered is None:
            self._next_tag = max(self._next_tag, self._clock.now_us())
        elif not set(self._unanswered.queues).issubset(request.queues):
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
            expires_ms = store.expires_ms.get(queue, 0)
            args += (int(queue in request.no_ack), expires_ms)
            if queue not in request.no_ack and queue not in self._queues:
                self._queues.add(queue)
                self._lease.cover(k)
            if expires_ms:
                self._lease.keep_alive(k, store.ready_keys(queue), expires_ms)
        return keys, args

    def _give_back(self, queue: str, tags: Sequence[str], how: str) -> int:
        """Returns how many of them were held."""
        k, options = self.store.keys(queue), self._options
        held, dead, dropped = GIVE_BACK(
            self.store.server,
            (k.unacked(self.name), k.ready, k.wake, k.dead),
            (
                k.separator,
                how,
                options.delivery_limit or 0,
                options.dead_letter_limit,
                self.store.expires_ms.get(queue, 0),
                *tags,
            ),
        )
        report_dead(self.store, options, queue, dead)
        report_dropped(options, queue, dropped)
        return int(held)

    def _dead_letter_all(self, burials: Sequence[tuple[str, str, str, bytes, int]]) -> list[Any]:
        """Each is a queue, and four of the script's arguments. Returns whether it was held, or an error."""
        self.store.remember(*dict.fromkeys(queue for queue, *_ in burials))
        limit = self._options.dead_letter_limit
        calls = []
        for queue, tag, reason, stored, delivered in burials:
            self._failed.pop(tag, None)
            k = self.store.keys(queue)
            calls.append(
                (DEAD_LETTER, (k.unacked(self.name), k.dead), (tag, reason, limit, stored, delivered))
            )
        outcomes = try_each(self.store.server, calls)
        for index, (queue, *_) in enumerate(burials):
            if not isinstance(outcomes[index], ResponseError):
                held, dropped = outcomes[index]
                metrics.dead_lettered(queue, held)
                report_dropped(self._options, queue, dropped)
                outcomes[index] = bool(held)
        return outcomes


def taken_ms(tag: bytes | str) -> float | None:
    """When the message was asked for that has this delivery tag, ms since the epoch by the server's clock;
    ``None`` if the tag is none of ours."""
    # Up to 16 digits, from 2001 on.
    return int(tag) / 1000 if len(tag) == 16 and tag.isdigit() else None


class ServerClock:
    """The server's clock, as far as it is known here: as of the latest reply."""

    def __init__(self) -> None:
        self.set(round(time() * 1_000_000))

    def set(self, now_us: int) -> None:
        """Note what the server has said, microseconds since the epoch."""
        self._ahead = now_us / 1_000_000 - monotonic()

    def now_us(self) -> int:
        return round((monotonic() + self._ahead) * 1_000_000)


def _size(delivery: Delivery) -> int:
    return len(delivery.payload)
