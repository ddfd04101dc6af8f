"""What the tests of the API have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import MessageInfo, Selection, batch
from kombu_redisdelay.operations.access import Access
from tests.failed import keep_failed
from tests.finished import OF_MESSAGES
from tests.transport.kit import Inbox, Site, drain

#: A message that is none, and its id.
GARBAGE = b"\xff not\na message"
GARBAGE_ID = hashlib.sha1(GARBAGE).hexdigest()

each_state = pytest.mark.parametrize("state", OF_MESSAGES)


def send(app: Celery, *ids: str, task: str = "shop.close", **options: Any) -> None:
    """Publish a task under each id."""
    for id in ids:
        app.send_task(task, [id], **{"kwargs": {"really": True}, "task_id": id, **options})


def hold(site: Site, *ids: str, queue: str = "celery", **options: Any) -> list[Any]:
    """Have a worker take the messages that are ready, and keep them. They are these."""
    channel = site.channel(**options)
    inbox = Inbox(channel, queue)
    drain(channel.connection.client, lambda: len(inbox) == len(ids))
    assert sorted(message.headers["id"] for message in inbox) == sorted(ids)
    return list(inbox)


def give_up(site: Site, app: Celery, *ids: str, queue: str = "celery", **options: Any) -> None:
    """Publish tasks, and reject them."""
    channel = site.channel(dead_letter=True)
    inbox = Inbox(channel, queue, on_message=lambda message: message.reject())
    send(app, *ids, queue=queue, **options)
    drain(channel.connection.client, lambda: len(inbox) == len(ids))
    inbox.consumer.cancel()


def put(site: Site, app: Celery, state: str, *ids: str, **options: Any) -> None:
    """Put messages into a state. No message of their queue is ready."""
    queue = options.get("queue", "celery")
    if state == "failed":
        send(app, *ids, **options)
        with Access(app) as access:
            for id in ids:
                keep_failed(
                    access.store, queue, id, site.redis.rpop(queue), options.get("task", "shop.close")
                )
    elif state == "dead":
        give_up(site, app, *ids, **options)
    elif state == "unacked":
        send(app, *ids, **options)
        _ = hold(site, *ids, queue=queue)
    else:
        with batch(app):
            for number, id in enumerate(ids):
                later: dict[str, Any] = {"countdown": 600 + number} if state == "scheduled" else {}
                send(app, id, **later, **options)


def in_each_state(site: Site, app: Celery) -> None:
    """A message in each state, whose id is the name of the state."""
    # What is ready would be taken with those that come to be unacked or dead.
    for state in ("failed", "dead", "unacked", "scheduled", "ready"):
        put(site, app, state, state)


def ids(messages: Iterable[MessageInfo]) -> list[str]:
    return [message.id for message in messages]


def scheduled(**chosen: Any) -> Selection:
    return Selection(state="scheduled", **chosen)


def ready(**chosen: Any) -> Selection:
    return Selection(state="ready", **chosen)


def dead(**chosen: Any) -> Selection:
    return Selection(state="dead", **chosen)
