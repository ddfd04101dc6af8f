"""What the page shows of messages with keys."""

from __future__ import annotations

import re

import pytest

from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.web import actions
from tests.cli.site import QUEUE, Site
from tests.transport.kit import Inbox, drain
from tests.web.states import delivered
from tests.web.viewer import Viewer

HEADERS = {"x-unique": "account:42", "x-unique-while": "latest"}


def give_up(site: Site, id: str) -> None:
    """Make a task with the key a dead letter."""
    site.send(headers=HEADERS, task_id=id)
    with site.app.connection_for_read(transport_options={"dead_letter": True}) as connection:
        inbox = Inbox(connection.channel(), QUEUE)
        drain(connection, lambda: len(inbox) == 1)
        inbox.messages[0].reject()


def test_what_is_blocked_and_what_was_dropped(site: Site, viewer: Viewer) -> None:
    delivered(site, "x")
    assert "Blocked" not in viewer.open("/").text + viewer.open("/", sort="-blocked").text
    assert "unique key" not in viewer.open("/queue", name=QUEUE).text
    for id in ("holder", "next", "replaces-the-next"):
        site.send(headers=HEADERS, task_id=id)
    record(site.store, [QUEUE])
    assert re.search(r'data-label="Blocked">\s*1</td>', viewer.open("/").source)
    text = " ".join(viewer.open("/queue", name=QUEUE).text.split())
    assert "wait for another one with their unique key1 " in text
    assert "Replaced for their unique keys in the last hour1 " in text
    assert "Dropped for" not in text
    assert "become due. 1 message waits for its unique key, and has no due time" in text
    assert "become due. 1 message waits for its unique key, and has no due time" in viewer.open("/").text


def test_a_message_that_is_blocked(site: Site, viewer: Viewer) -> None:
    for id in ("holder", "next"):
        site.send(headers=HEADERS, task_id=id)
    site.send(task_id="later", countdown=600)
    page = viewer.open("/messages")
    assert page.links["holder"].endswith("/message?id=holder")
    assert "blocked by holder" in page.text
    # The filter is called as the column.
    assert "Unique" in page.text
    page = viewer.open("/message", id="next")
    assert "Unique" in page.text
    assert "account:42, which holder holds: holder" in page.text
    assert page.links["holder"].endswith("/message?id=holder")
    assert {"Cancel"} == page.buttons
    assert "account:42, which it holds" in viewer.open("/message", id="holder").text
    page = viewer.open("/message", id="later")
    assert "Unique" not in page.text
    assert {"Cancel", "Reschedule", "Deliver now"} == page.buttons


def test_a_dead_letter_whose_key_is_held(site: Site, viewer: Viewer) -> None:
    give_up(site, "letter")
    site.send(headers=HEADERS, task_id="holder")
    expected = "because another one holds its unique key: holder holds that of letter."
    viewer.open("/messages", state="dead")
    assert f"1 message stays, {expected}" in viewer.press("Requeue", ["letter"]).text
    text = viewer.press("Requeue").text
    assert f"Requeued 0 messages. 1 message stays, {expected}" in text
    assert f"1 dead letter stays, {expected}" in viewer.press("Requeue all").text
    assert f"Requeued 0 dead letters. 1 dead letter stays, {expected}" in viewer.press("Requeue all").text


def test_what_will_stay_is_not_looked_for_for_long(
    site: Site, viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LONGEST_FORESIGHT", -1.0)
    give_up(site, "letter")
    viewer.open("/messages", state="dead")
    text = viewer.press("Requeue all").text
    assert "Requeue 1 dead letter of all queues? Those stay whose unique keys others hold." in " ".join(
        text.split()
    )


def test_without_keys_none_will_stay(site: Site, viewer: Viewer) -> None:
    site.send(task_id="later", countdown=600)
    viewer.open("/messages")
    assert "stay" not in viewer.press("Deliver now", ["later"]).text


@pytest.mark.parametrize("button", ["Deliver now", "Deliver now all"])
def test_what_is_blocked_is_not_said_to_have_moved_on(site: Site, viewer: Viewer, button: str) -> None:
    for id in ("holder", "next"):
        site.send(headers=HEADERS, task_id=id)
    site.send(task_id="later", countdown=600)
    viewer.open("/messages")
    all_of_it = button.endswith("all")
    button = "Deliver all now" if all_of_it else button
    text = viewer.press(button, [] if all_of_it else ["next", "later"]).text
    assert " stays, because another one holds its unique key: holder holds that of next." in text
    text = viewer.press(button).text
    assert "Delivered 1 message. 1 message stays, because another one holds its unique key" in text
    assert "moved on" not in text
