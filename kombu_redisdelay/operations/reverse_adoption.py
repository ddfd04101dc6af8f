"""Moves a broker back to kombu's own ``redis://``: the messages that workers of ``redis://`` do not see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.fair_keys import OFF, sorted_by_key
from kombu_redisdelay.broker.keys import DEAD
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.mover import forwarding
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, finish, portions
from kombu_redisdelay.broker.processes import has_ended, process_of, worker_of
from kombu_redisdelay.broker.recovery import HoldingConsumer, Recovery
from kombu_redisdelay.broker.schedule import Schedule, Scheduled
from kombu_redisdelay.broker.server.scripts import named, run_each
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.operations.content import Content, with_eta
from kombu_redisdelay.operations.mending import give_times, lost_times
from kombu_redisdelay.operations.queue_reasons import with_lease
from kombu_redisdelay.operations.transfer import InUse, Transfer


@dataclass
class GivenBack:
    """What was given back, or what there is to give back.

    Attributes:
        scheduled: scheduled messages.
        unacked: unacked messages of lost workers.
        sorted_by_key: ready messages of fair queues that are sorted by key.
        at_once: those of the scheduled ones that workers of ``redis://`` deliver at once, because only
            Celery's tasks have a time that they know.
        unknown: those of the scheduled ones that wait for a worker that knows their task. A worker of
            ``redis://`` that does not know it discards them.
        dead: dead letters, which stay.
    """

    scheduled: int = 0
    unacked: int = 0
    sorted_by_key: int = 0
    at_once: int = 0
    unknown: int = 0
    dead: int = 0

    @property
    def messages(self) -> int:
        return self.scheduled + self.unacked + self.sorted_by_key

    def add(self, message: Scheduled) -> None:
        content = Content.of(message.payload, "")
        self.scheduled += 1
        self.at_once += content.task is None
        self.unknown += content.unknown_ms is not None


class ReverseAdoption(Transfer):
    """A broker that moves back to ``redis://``."""

    def check_not_in_use(self) -> None:
        """
        Raises:
            InUse: consumers of this transport have a lease.
        """
        leases = with_lease(self.store, self.names(None))
        names = {name.decode(errors="replace") for found in leases.values() for name in found}
        living = sorted(worker_of(n) or n for n in names if not has_ended(process_of(n)))
        if living:
            raise InUse(
                "workers of redisdelay:// consume from these queues",
                living,
                "Stop them first (one that was killed on another machine counts until its lease ends)",
                "they take the messages back into the schedule",
            )

    def look(self) -> GivenBack:
        """What there is to give back. Reads it, and changes nothing."""
        found = GivenBack(dead=self._dead())
        for name in self.names(None):
            found.scheduled += lost_times(self.store, name)
            for message in Schedule(self.store).iter(name, None, None):
                found.add(message)
            found.unacked += sum(self._unacked(name).values())
            found.sorted_by_key += self._sorted_by_key(name)
        return found

    def give_back(self) -> Iterator[GivenBack]:
        """Move all scheduled messages to the ready lists, where workers of ``redis://`` look, in the order in
        which they are due. Those workers hold Celery's tasks in memory until their ``eta``. The unacked
        messages of lost workers go there, too, and before them what is sorted by key: no queue is fair
        any more. Nothing of the keys of tasks stays. Yields, after some messages, what was given back so
        far."""
        done = GivenBack(dead=self._dead())
        yield done
        schedule = Schedule(self.store)
        # Nothing is to go from the unacked messages into the schedule: it would be counted again.
        recovery = Recovery(self.store, replace(self.options, retry_wait=0.0))
        for name in self.names(None):
            give_times(self.store, self.options, name)
            sorted_by_key = self._sorted_by_key(name)
            for some in portions(self._unacked(name), lambda _: 1, MESSAGES_PER_CALL, MESSAGES_PER_CALL):
                returned = finish(recovery.give_back(some, "lost"))
                done.unacked += sum(each.messages for each in returned.values())
                yield done
            yield from self._make_plain(name, sorted_by_key, done)
            messages = schedule.iter(name, None, None)
            for message in schedule.reschedule_all(name, messages, _for_stock, with_keys=False):
                done.add(message)
                yield done
            keys = self.store.keys(name)
            self.store.server.call("UNLINK", keys.unique, keys.running)

    def _make_plain(self, name: str, sorted_by_key: int, done: GivenBack) -> Iterator[GivenBack]:
        """Move what is sorted by key to the ready lists, and what is due.

        Arguments:
            sorted_by_key: how many messages were so before. What lost workers held is sorted since, and is
                counted.
        """
        fair, before = FairQueues(self.store), done.sorted_by_key
        fair.switch_off([name])
        while fair.states([name]) == [OFF]:
            [reply] = run_each(self.store.server, [forwarding(self.store, name)])
            done.scheduled += named(reply).moved
            done.sorted_by_key = before + max(0, sorted_by_key - self._sorted_by_key(name))
            yield done

    def _sorted_by_key(self, name: str) -> int:
        [by_step] = sorted_by_key(self.store, [name])
        return sum(by_step.values())

    def _unacked(self, name: str) -> dict[HoldingConsumer, int]:
        """Lost consumer -> how many unacked messages of *name* it has."""
        keys, now_ms = self.store.keys(name), int(self.store.now_ms())
        both = (("ZRANGE", keys.consumers, 0, -1), ("ZRANGEBYSCORE", keys.consumers, "-inf", now_ms))
        everybody, ended = answers(self.store.server, both)
        holders = []
        for member in everybody:
            consumer = member.decode(errors="replace")
            is_over = has_ended(process_of(consumer))
            if is_over or member in ended:
                holders.append(HoldingConsumer(name, consumer, lease_counts=not is_over))
        commands = (("HLEN", keys.unacked(holder.consumer)) for holder in holders)
        return dict(zip(holders, answers(self.store.server, commands), strict=True))

    def _dead(self) -> int:
        return sum(Archive(self.store, DEAD).counts(self.names(None)))


def _for_stock(message: Scheduled) -> tuple[bytes, float]:
    if message.is_blocked or Content.of(message.payload, "").unknown_ms is not None:
        # It is due already, and a worker that knows its task may run it at once.
        return message.stored, 0
    return message.rewritten(with_eta(message.payload, message.due_ms)), 0
