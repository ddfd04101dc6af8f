"""What becomes of messages whose connection was lost while they were being handled.

The tasks go on, and their acks still count. So a message that somebody still works on stays ours, for as
long as that takes; one that nobody can ack any more is given back at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from threading import Thread
from time import monotonic, sleep

from kombu.transport import virtual
from redis.exceptions import RedisError

from kombu_redisdelay.broker.consumer import Consumer

logger = logging.getLogger(__name__)

#: Seconds between two looks. The first comes late enough for a worker to have dropped what it will not run.
INTERVAL = 1.0


class Caretaker(Thread):
    """Looks after what a consumer holds until the last of it was acked or given back.

    Arguments:
        consumer: nobody else takes with it any more.
        messages: delivery tag -> message, for what was delivered and is not settled; weak, so that
            what the application has dropped is not in there.
        grace: seconds that a message may still be waiting for its turn in this process.
    """

    def __init__(self, consumer: Consumer, messages: Mapping[str, virtual.Message], grace: float) -> None:
        super().__init__(name="redisdelay-caretaker", daemon=True)
        self._consumer = consumer
        self._messages = messages
        self._grace = grace

    def run(self) -> None:
        began = monotonic()
        while True:
            sleep(INTERVAL)
            tags = _in_use(self._messages, grace_is_over=monotonic() - began > self._grace)
            try:
                if self._consumer.give_back_all(keep=tags):
                    break
            except (RedisError, OSError) as exc:
                logger.debug("Cannot give messages of a lost connection back yet: %s", exc)
        self._consumer.stop()
        self._consumer.store.disconnect()


def _in_use(messages: Mapping[str, virtual.Message], grace_is_over: bool) -> set[str]:
    """The tags of *messages* that may still be acked: whoever wants to ack a message has it.

    With the prefork pool of Celery 5.5 the reverse is not true for ever. It forgets tasks that it has not
    started when the connection is lost, but keeps their requests. There, after a time in which the others
    should have been started, only what runs counts.
    """
    alive = dict(messages)
    keeps_requests = "celery.concurrency.asynpool" in sys.modules and sys.modules["celery"].VERSION < (5, 6)
    if not (keeps_requests and grace_is_over):
        return set(alive)
    requests = list(sys.modules["celery.worker.state"].active_requests)
    running = {id(request.message) for request in requests}
    return {tag for tag, message in alive.items() if id(message) in running}
