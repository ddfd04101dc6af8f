"""Acting while a consumer takes what is due: each message is either cancelled or delivered."""

from __future__ import annotations

import random
import re
from threading import Event, Thread

from kombu.connection import Connection

from kombu_redisdelay import Messages, Selection
from tests.cli.site import QUEUE, Site
from tests.transport.kit import Inbox, drain
from tests.web.states import scheduled
from tests.web.viewer import Page, Viewer
from tools.harness.process import wait_until

#: Messages that become due one after the other, and how often until an action was too late, at most.
MESSAGES, ROUNDS = 100, 30


def test_cancelling_what_becomes_due(viewer: Viewer, site: Site) -> None:
    delivered: list[str] = []
    stopped = Event()

    def consume() -> None:
        with Connection(site.app.conf.broker_url) as connection:

            def on_message(message: object) -> None:
                delivered.append(message.headers["id"])  # type: ignore[attr-defined]
                message.ack()  # type: ignore[attr-defined]

            Inbox(connection.channel(), QUEUE, prefetch=10, on_message=on_message)
            drain(connection, stopped.is_set, timeout=200)

    consumer = Thread(target=consume)
    consumer.start()
    cancelled: list[int] = []
    rounds = 0
    try:
        with Messages(site.app) as delayed:
            # A machine that stands still meanwhile leaves nothing to cancel.
            while not {2} < set(cancelled) and rounds < ROUNDS:
                rounds += 1
                for number in range(MESSAGES):
                    scheduled(site, f"{rounds}-{number:03}", seconds=1 + 0.012 * number)
                ahead = 6
                while delayed.count(Selection(state="scheduled")):
                    coming = viewer.open("/messages").ids[:ahead]
                    if coming:
                        viewer.press("Cancel", random.sample(coming, min(2, len(coming))))
                        cancelled.append(cancelled_in(viewer.press("Cancel")))
                        # So near to what is next that the page is often too late, however slow it is.
                        ahead = max(2, ahead - 2) if cancelled[-1] == 2 else ahead + 6
        wait_until(
            lambda: len(delivered) + sum(cancelled) >= rounds * MESSAGES, 60, "that the rest is delivered"
        )
    finally:
        stopped.set()
        consumer.join()
    assert len(delivered) == len(set(delivered))
    assert len(delivered) + sum(cancelled) == rounds * MESSAGES
    assert delivered
    assert {2} < set(cancelled) <= {0, 1, 2}


def cancelled_in(page: Page) -> int:
    """How many messages a page says that it has cancelled."""
    [count] = re.findall(r"Cancelled (\d+) message", page.text)
    return int(count)
