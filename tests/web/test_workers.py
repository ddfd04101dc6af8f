"""Every action while workers run: each message is cancelled or delivered, once, and none is lost."""

from __future__ import annotations

import random
import re
from pathlib import Path

from celery import Celery
from kombu.connection import Connection

from tests.end_to_end.installation import Installation
from tests.web.viewer import Page, Viewer
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

QUEUE, OTHER = "celery", "other"

#: Messages that become due one after the other, those that would become due much later, and dead letters.
SOON, LATER, DEAD = 300, 60, 30

#: Seconds between two that become due.
BETWEEN = 0.03


class Operator:
    """Somebody who does things on the page.

    Attributes:
        removed: how many messages the page said that it had removed.
        certain: those of which it was certain which ones they were.
    """

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self.removed = 0
        self.certain: set[str] = set()

    def look(self, **choice: str) -> list[str]:
        return self._viewer.open("/messages", **choice).ids

    def press(self, button: str, *ids: str, **fields: str) -> int:
        """Press a button of the page, and confirm. Returns how many messages the page says it was."""
        self._viewer.press(button, ids)
        page = self._viewer.press(button, **fields)
        assert page.status == 200, page.text
        found = re.search(r"(Cancelled|Delivered|Rescheduled|Requeued|Removed) (\d+) ", page.text)
        count = int(found[2]) if found else 0
        if found and found[1] in ("Cancelled", "Removed"):
            self.removed += count
            self.certain.update(ids if count == len(ids) else ())
        return count

    def control(self, button: str, **fields: str) -> Page:
        self._viewer.open("/queue", name=QUEUE)
        self._viewer.press(button)
        page = self._viewer.press(button, **fields)
        assert page.status == 200, page.text
        return page


def publish(app: Celery) -> None:
    def send(name: str, queue: str, countdown: float | None = None) -> None:
        app.send_task("work", args=[name], task_id=name, queue=queue, countdown=countdown)

    options = {"dead_letter": True}
    with Connection(app.conf.broker_url, transport_options=options) as connection:
        channel = connection.channel()
        for number in range(DEAD):
            send(f"dead{number}", QUEUE)
            message = channel.basic_get(QUEUE)
            assert message is not None
            message.reject()
    for number in range(LATER):
        send(f"later{number:02}", QUEUE if number % 2 else OTHER, 3600 + number)
    for number in range(SOON):
        send(f"soon{number:03}", OTHER if number % 5 == 0 else QUEUE, 3 + BETWEEN * number)


def test_every_action(server: RedisServer, tmp_path: Path) -> None:
    with Installation(server, tmp_path) as site:
        app = site.producer()
        viewer = Viewer(app)
        publish(app)
        for _ in range(2):
            site.start_worker(pool="threads", concurrency=2, queues=[QUEUE, OTHER])
        operator, chance = Operator(viewer), random.Random(16)
        wait_until(lambda: site.ledger.ended(), 30, "that workers run tasks")

        assert operator.look(state="dead")
        assert operator.press("Requeue", "dead0", "dead1", "dead2") == 3
        operator.look(state="dead")
        assert operator.press("Remove", "dead3", "dead4") == 2
        operator.look(state="dead", queue=QUEUE)
        assert operator.press("Requeue all") == DEAD - 5

        operator.look(order="last", after="30m")
        assert operator.press("Reschedule", "later50", "later51", time="1s") == 2
        operator.look(order="last", after="30m")
        assert operator.press("Deliver now", "later52", "later53") == 2
        operator.look(after="30m", queue=OTHER)
        assert operator.press("Deliver all now") == LATER // 2 - 2
        operator.look(after="30m", queue=QUEUE)
        assert operator.press("Cancel all") == LATER // 2 - 2

        missed = 0
        while len(coming := operator.look(before="10m", queue=QUEUE)) > 20:
            # Those that are due next: the page is often too late for one of them.
            button = chance.choice(["Cancel", "Cancel", "Deliver now", "Reschedule"])
            ids = chance.sample(coming[:6], 2)
            missed += 2 - operator.press(button, *ids, **({"time": "1s"} if button == "Reschedule" else {}))
            if chance.random() < 0.3:
                operator.control("Pause")
                waiting = operator.look(state="ready", queue=QUEUE)
                if waiting:
                    operator.press("Cancel", chance.choice(waiting))
                operator.control("Resume")
            if chance.random() < 0.2:
                operator.control("Limit", rate="50/s", concurrency="3")
            if chance.random() < 0.2:
                operator.control("Limit", rate="", burst="", concurrency="")
        operator.control("Limit", rate="", burst="", concurrency="")
        # What is left becomes due while it is removed.
        if operator.look(before="10m"):
            operator.press("Cancel all")

        all_of_them = SOON + LATER + DEAD
        wait_until(
            lambda: len(site.ledger.ended()) + operator.removed >= all_of_them,
            30,
            "that the rest is delivered",
        )
        wait_until(
            lambda: not any(site.unacked(name) + site.ready(name) for name in (QUEUE, OTHER)), 10, "all acked"
        )
        viewer.close()
        ended = site.ledger.ended()
        assert site.ledger.run_twice() == {}
        assert len(ended) + operator.removed == all_of_them
        assert operator.certain.isdisjoint(ended)
        assert missed, "no action was too late, so no race was tried"
        assert len(operator.certain) > 2, "no action was in time"
        print(f"{len(ended)} delivered, {operator.removed} removed, {missed} too late")
