"""What becomes of messages whose connection was lost while they were being handled.

The tasks go on, and their acks still count. So a message that somebody still works on stays ours, for as
long as that takes; one that nobody can ack any more is given back at once.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping
from threading import Thread
from time import monotonic, sleep

from kombu.transport import virtual
from redis.exceptions import RedisError

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.transport.tasks import started_tasks

logger = logging.getLogger(__name__)

#: Seconds between two looks. The first comes late enough for a worker to have dropped what it will not run.
INTERVAL = 1.0

#: Seconds in which a process of the prefork pool has said that it started what it was given.
PREFORK_GRACE = 3.0

#: Seconds in which the server may still see a take that was on its way when the connection was lost: TCP
#: sends again what did not get through, with ever longer breaks. What comes later returns when its lease
#: ends.
LATE_TAKE = 60.0


class Caretaker(Thread):
    """Looks after what a consumer holds until the last of it was acked or given back.

    Arguments:
        consumer: nobody else takes with it any more.
        messages: delivery tag -> message, for what was delivered and is not settled; weak, so that
            what the application has dropped is not in there.
    """

    def __init__(self, consumer: Consumer, messages: Mapping[str, virtual.Message]) -> None:
        super().__init__(name="redisdelay-caretaker", daemon=True)
        self._consumer = consumer
        self._messages = messages

    def run(self) -> None:
        began = monotonic()
        in_touch_since: float | None = None
        while True:
            sleep(INTERVAL)
            tags = _in_use(self._messages, monotonic() - began)
            try:
                holds_nothing = self._consumer.give_back_all(keep=tags)
            except (RedisError, OSError) as exc:
                logger.debug("Cannot give messages of a lost connection back yet: %s", exc)
                in_touch_since = None
                continue
            in_touch_since = in_touch_since or monotonic()
            may_take = self._consumer.is_taking and monotonic() - in_touch_since < LATE_TAKE
            if holds_nothing and not may_take:
                break
        self._consumer.stop()
        self._consumer.disconnect()


def _in_use(messages: Mapping[str, virtual.Message], seconds: float) -> set[str]:
    """The tags of *messages* that may still be acked, so many *seconds* after the connection was lost.

    Whoever wants to ack a message has it. With Celery's prefork pool the reverse is not true for ever: it
    forgets at once what it has not started, but some releases keep the requests of it. So there, what does
    not run after a moment will not run.
    """
    if seconds < PREFORK_GRACE:
        # What is only kept by a reference cycle, nobody has. In the end Python finds out by itself.
        gc.collect()
    alive = dict(messages)
    if "celery.concurrency.asynpool" not in sys.modules or seconds < PREFORK_GRACE:
        return set(alive)
    return started_tasks(alive)
