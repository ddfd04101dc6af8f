"""What the page shows of messages with keys."""

from __future__ import annotations

import re

from kombu_redisdelay.broker.maintenance import record
from tests.cli.site import QUEUE, Site
from tests.web.states import delivered
from tests.web.viewer import Viewer

HEADERS = {"x-unique": "account:42", "x-unique-while": "latest"}


def test_what_is_blocked_and_what_was_dropped(site: Site, viewer: Viewer) -> None:
    delivered(site, "x")
    assert "Blocked" not in viewer.open("/").text + viewer.open("/", sort="-blocked").text
    assert "for a key" not in viewer.open("/queue", name=QUEUE).text
    for id in ("holder", "next", "replaces the next"):
        site.send(headers=HEADERS, task_id=id)
    record(site.store, [QUEUE])
    assert re.search(r'data-label="Blocked">\s*1</td>', viewer.open("/").source)
    text = " ".join(viewer.open("/queue", name=QUEUE).text.split())
    assert "wait for another one with their unique key1 " in text
    assert "Replaced for a key in the last hour1 " in text
    assert "Dropped for a key" not in text
