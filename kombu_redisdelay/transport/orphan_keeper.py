"""Keeps messages whose connection was lost while they were being handled.

The tasks go on, and their acks still count. So the consumer keeps a message as long as a task works on it. A
message that cannot be acked any more is given back at once.
"""

from __future__ import annotations

import atexit
import gc
import logging
from collections.abc import Callable, Mapping
from threading import Event, Thread
from time import monotonic, sleep

from kombu.transport import virtual
from redis.exceptions import RedisError

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.processes import in_each_child
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.refused import LOOK_EVERY, end_of_patience
from kombu_redisdelay.transport.tasks import at_one_moment, started_tasks, tasks_that_ended_the_worker

logger = logging.getLogger(__name__)

#: Seconds before the first check, and between two checks. Before the first check, a worker has time to drop
#: the messages that it will not run.
INTERVAL = 1.0

#: Seconds in which reference cycles are collected before each check. Celery's request of a task with an ETA
#: is such a cycle, and a process that has nothing to do collects none for minutes.
COLLECT_OFTEN = 3.0

#: Seconds from one collection to the next, after that time.
COLLECT_EVERY = 10.0

#: Seconds within which the server may still receive a take that was on its way when the connection was lost:
#: TCP repeats what was not received, at growing intervals. If the take arrives even later, its messages
#: return when the lease ends.
LATE_TAKE = 60.0

#: Seconds between the looks after nothing is held any more; a minute in all. A failover, or a crash of the
#: server, may undo what was done last: then a message is held as before, and would return when the lease
#: ends. The next failover often comes soon after the first.
AGAIN = (2.0, 4.0, 8.0, 16.0, 30.0)

#: Seconds that the end of the program waits for all orphan keepers together, unless a server refuses.
END_PATIENCE = 1.0

#: The orphan keepers that are at work in this process.
_at_work: set[OrphanKeeper] = set()


class OrphanKeeper(Thread):
    """Keeps the messages that a consumer holds, until each of them was acked or given back. What is
    left when the program ends is given back then. The consumer leaves its queues, so that no worker is listed
    that has ended.

    Arguments:
        consumer: nothing else uses it to take messages any more.
        messages: delivery tag -> message, for messages that were delivered and are not settled. The
            references are weak, so messages that the application has dropped are not in it.
        fail: notes that the callback of the message with a delivery tag has failed.
        settle: settles what the server has refused to settle before; raises if it still does.
    """

    def __init__(
        self,
        consumer: Consumer,
        messages: Mapping[str, virtual.Message],
        fail: Callable[[str], None],
        settle: Callable[[], None],
    ) -> None:
        super().__init__(name="redisdelay-orphan-keeper", daemon=True)
        self._consumer = consumer
        self._unsettled = messages
        self._fail = fail
        self._settle = settle
        self._is_end = Event()
        self._has_told = False
        #: Whether the server was there at the latest try, and refused for a while.
        self._is_refused = False
        self._lost_at = self._collected_at = monotonic()

    def start(self) -> None:
        _at_work.add(self)
        super().start()

    def run(self) -> None:
        try:
            self._keep()
            self._consumer.stop()
            self._look_again()
        finally:
            _at_work.discard(self)

    def end(self) -> None:
        """Give back all held messages, because they cannot be acked any more, and stop. While the server
        refuses, this is tried again, as long as the program is patient with its last acks."""
        self._is_end.set()

    def wait(self, until: float) -> None:
        """Wait for the end, at most *until* then, or as long as the program is patient with a server that
        refuses; seconds of the monotonic clock."""
        while self.is_alive() and monotonic() < (end_of_patience() if self._is_refused else until):
            self.join(LOOK_EVERY)

    @property
    def _messages(self) -> dict[str, virtual.Message]:
        """Those that are not settled at this moment."""
        return at_one_moment(lambda: dict(self._unsettled))

    def _keep(self) -> None:
        in_touch_since: float | None = None
        while not self._is_end.is_set():
            self._is_end.wait(INTERVAL)
            holds_nothing = self._try_to_give_back()
            if holds_nothing is None:
                in_touch_since = None
                continue
            in_touch_since = in_touch_since or monotonic()
            may_take = self._consumer.is_taking and monotonic() - in_touch_since < LATE_TAKE
            if holds_nothing and not may_take:
                return
        while self._is_refused and monotonic() < end_of_patience():
            sleep(LOOK_EVERY)
            self._try_to_give_back()

    def _look_again(self) -> None:
        for seconds in AGAIN:
            # No connection is kept meanwhile, and none is left at the end.
            self._consumer.disconnect()
            if self._is_end.wait(seconds):
                break
            self._try_to_give_back()
        self._consumer.disconnect()

    def _try_to_give_back(self) -> bool | None:
        """Give back what is not in use. Returns whether nothing is held any more; ``None`` if that has
        failed. Whatever has failed is tried again: if this thread ended, the lease would be renewed for as
        long as the process lives, and nobody else would get what is held."""
        try:
            holds_nothing = self._give_back()
            self._is_refused = False
            return holds_nothing
        except (RedisError, OSError) as exc:
            refusal = refusal_of(exc)
            self._is_refused = refusal is not None and refusal.is_for_a_while
            logger.debug("Cannot give messages of a lost connection back yet: %s", exc)
        except Exception:
            if not self._has_told:
                self._has_told = True
                logger.exception("Cannot give messages of a lost connection back yet, trying on")
        return None

    def _give_back(self) -> bool:
        """Give back what is not in use. Returns whether nothing is held any more."""
        # Before that: what was rejected must not be delivered again.
        self._settle()
        if not self._is_end.is_set():
            self._collect()
            return self._consumer.give_back_all(keep=_in_use(self._messages))
        for tag in tasks_that_ended_the_worker(dict(self._messages)):
            self._fail(tag)
        return self._consumer.give_back_all()

    def _collect(self) -> None:
        """A message that only a reference cycle keeps alive is not in use."""
        now, messages = monotonic(), dict(self._messages)
        is_time = now - self._lost_at < COLLECT_OFTEN or now - self._collected_at >= COLLECT_EVERY
        # What runs is no such message, and may run for hours.
        if is_time and messages.keys() - started_tasks(messages):
            del messages
            gc.collect()
            self._collected_at = now


@atexit.register
def _end_all() -> None:
    deadline, keepers = monotonic() + END_PATIENCE, list(_at_work)
    for keeper in keepers:
        keeper.end()
    for keeper in keepers:
        keeper.wait(deadline)


# They belong to the parent process.
in_each_child(_at_work.clear)


def _in_use(messages: Mapping[str, virtual.Message]) -> set[str]:
    """The tags of *messages* that may still be acked: code that wants to ack a message has a reference to it.

    So it is with each of Celery's pools. What it has forgotten with the connection has no reference left
    (:mod:`kombu_redisdelay.transport.pools` sees to that), and what it still runs has one.
    """
    return {tag for tag, each in messages.items() if not getattr(each, "is_cancelled", False)}
