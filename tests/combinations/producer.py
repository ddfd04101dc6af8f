"""A process that publishes what is planned: ``python -m tests.combinations.producer DIRECTORY``.

It begins when it is told to, and goes on with probes after the end until it is told to stop.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay import QueueFull, batch, unique_conflict
from tests.combinations.app import app
from tests.combinations.by_hand import PICKLE, message
from tests.combinations.orders import GO, ORDERS, READY, STOP, SUBMISSIONS, Orders
from tests.combinations.plan import PROBE, WORK, Send
from tools.harness.journal import add_line
from tools.harness.process import wait_until

#: Tasks that are published together, with "batch".
TOGETHER = 6
PROBE_INTERVAL = 0.25
#: Seconds to wait for the others.
PATIENCE = 120.0

_ERRORS = (OperationalError, RedisError, OSError)


class Producer:
    """Publishes, and writes down each task that it has published.

    Arguments:
        directory: of the orders and the submissions.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._orders = Orders.read(directory / ORDERS)
        self._client = self._orders.address.client()
        #: Those that were dropped or refused, or that have replaced another one under its id.
        self._gone: set[str] = set()
        unique_conflict.connect(self._on_conflict)

    def _on_conflict(self, id: str, **told: Any) -> None:
        self._gone.add(id)

    def get_ready(self) -> None:
        """Connect."""
        self._client.ping()
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=3)

    def publish_all(self, began: float) -> None:
        """Publish all that is planned, and then probes."""
        for at, action in sorted(self._actions(), key=lambda each: each[0]):
            time.sleep(max(0.0, began + at - time.time()))
            action()
        plan = self._orders.plan
        for number in itertools.count():
            if (self._directory / STOP).exists():
                return
            queue = plan.queues[number % len(plan.queues)]
            self._publish([Send(0, "healthy", f"{PROBE}-{number}", [WORK, False], queue, plan.sends[0].late)])
            time.sleep(PROBE_INTERVAL)

    def _actions(self) -> Iterable[tuple[float, Callable[[], object]]]:
        plan = self._orders.plan
        size = TOGETHER if self._orders.producer == "batch" else 1
        for first in range(0, len(plan.sends), size):
            sends = plan.sends[first : first + size]
            yield sends[-1].at, partial(self._publish, sends)
        for at, queue, id, text in plan.entries:
            yield at, partial(self._enter, queue, id, text)
        for at, id in plan.revoked:
            yield at, partial(self._try, partial(app.control.revoke, id))

    def _publish(self, sends: Sequence[Send]) -> None:
        def publish() -> None:
            for send in sends:
                self._send(send)

        def publish_together() -> None:
            with batch(app):
                publish()

        at = time.time()
        try:
            confirmed = self._try(publish_together if self._orders.producer == "batch" else publish)
        except QueueFull:
            self._gone.update(send.id for send in sends)
        for send in sends:
            if send.id in self._gone:
                continue
            self._note(send.id, send.late, at, send.countdown, send.queue, confirmed, send.key)

    def _enter(self, queue: str, id: str, text: str) -> None:
        at = time.time()
        confirmed = self._try(lambda: self._push(queue, text))
        self._note(id, False, at, 0.0, queue, confirmed)

    def _note(self, *submission: object) -> None:
        add_line(self._directory / SUBMISSIONS, json.dumps(submission))

    def _try(self, action: Callable[[], object]) -> bool:
        """Whether it worked. The servers may be harmed just now."""
        try:
            action()
        except _ERRORS as error:
            full = error if isinstance(error, QueueFull) else error.__cause__
            if isinstance(full, QueueFull):
                print(f"refused: {full}", flush=True)
                raise full from None
            print(f"not published: {error!r}", flush=True)
            return False
        return True

    def _send(self, send: Send) -> None:
        by_hand = self._orders.producer == "lpush" and not send.countdown
        if send.task == "unreadable":
            self._push(send.queue, message("healthy", send.id, [], send.queue, content_type=PICKLE))
        elif by_hand:
            text = message(send.task, send.id, send.args, send.queue, send.priority, headers=send.headers)
            self._push(send.queue, text, send.priority)
        else:
            app.send_task(
                send.task,
                send.args,
                task_id=send.id,
                queue=send.queue,
                countdown=send.countdown or None,
                priority=send.priority,
                expires=send.expires,
                headers=dict(send.headers),
                # Without Celery's retries, which after a lost reply would publish the message twice.
                retry=False,
            )

    def _push(self, queue: str, text: str, priority: int = 0) -> None:
        client: Any = self._client
        client.lpush(self._orders.address.ready_list(queue, priority), text)


def main() -> None:
    directory = Path(sys.argv[1])
    producer = Producer(directory)
    producer.get_ready()
    print(READY, flush=True)
    wait_until((directory / GO).exists, PATIENCE, "nobody says when to begin")
    producer.publish_all(float((directory / GO).read_text()))


if __name__ == "__main__":
    main()
