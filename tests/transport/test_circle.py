"""Which objects of a channel that works know the channel: those for which kombu wants it so."""

from __future__ import annotations

import gc
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.worker import control

from tests.transport.kit import Inbox, Site, drain, publish, waits
from tests.transport.test_remote_control import schedule, worker_state
from tools.harness.process import wait_until

#: kombu gives a channel to its QoS and to its poller, and the transport to its channel. The intake needs
#: nearly all that a channel is.
ALLOWED = {"Channel", "Intake", "Poller", "QoS", "Transport"}


def circle_of(root: object) -> set[Any]:
    """The objects of the transport that *root* leads to, and that lead to it. What belongs to others does not
    count: the broker below can name nothing of the transport, and kombu's own objects know the channel."""
    known, todo = {id(root): root}, [root]
    referrers: dict[int, list[int]] = defaultdict(list)
    while todo:
        each = todo.pop()
        for other in gc.get_referents(each):
            if isinstance(other, (type, ModuleType)) or not (_is_ours(other) or _is_plain(other)):
                continue
            referrers[id(other)].append(id(each))
            if id(other) not in known:
                known[id(other)] = other
                todo.append(other)
    leading, ids = {id(root)}, [id(root)]
    while ids:
        for referrer in referrers[ids.pop()]:
            if referrer not in leading:
                leading.add(referrer)
                ids.append(referrer)
    return {known[id] for id in leading if _is_ours(known[id])}


def _is_ours(thing: object) -> bool:
    module = str(type(thing).__module__)
    return module.startswith("kombu_redisdelay") and not module.startswith("kombu_redisdelay.broker")


def _is_plain(thing: object) -> bool:
    """Whether it is a container or a function, and may lead anywhere."""
    return type(thing).__module__ in ("builtins", "collections", "functools", "types")


@pytest.fixture
def app(app: Celery) -> Celery:
    app.conf.result_backend = "cache+memory://"
    return app


def test_nothing_else_knows_the_channel(site: Site, app: Celery) -> None:
    channel = site.channel()
    schedule(channel, "id")
    publish(channel, "a", "b")
    inbox = Inbox(channel)
    drain(channel.connection.client, lambda: len(inbox) == 2 and waits(channel))
    control.Panel.data["revoke"](worker_state(app, channel), "id")
    wait_until(lambda: site.scheduled() == 0 and not channel.revoker._is_running, 30, "revoked")
    names = {type(each).__name__.removeprefix("Cluster") for each in circle_of(channel)}
    assert names == ALLOWED
