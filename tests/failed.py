"""Puts failed tasks where they are kept, without a worker."""

from __future__ import annotations

from itertools import count
from typing import Any

from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.scripts import KEEP
from kombu_redisdelay.broker.store import Store

_tags = count(1)

#: What may be hidden.
SECRET = "password=hunter2"


def keep_failed(
    store: Store, queue: str, id: str, payload: str | bytes, task: str = "shop.close", **noted: Any
) -> None:
    """Keep the message *payload* as a task that has failed.

    Arguments:
        noted: what differs in the failure.
    """
    keep, keys = Options().kept_failed, store.keys(queue)
    assert keep is not None
    failure = Failure(
        id, task, "KeyError", SECRET, f"Traceback:\n  File\nKeyError: {SECRET}", "celery@w", 2, 1.5
    )
    failure = failure._replace(**noted)
    text = payload if isinstance(payload, str) else payload.decode()
    store.remember(queue)
    KEEP(
        store.server,
        (keys.unacked("nobody"), keys.wake, keys.failed),
        KEEP.arguments(
            tag=str(next(_tags)),
            id=id,
            group=failure.group,
            details=failure.details,
            copy=f"0:{text}",
            failed_now=0,
            is_limited=0,
            count=keep.count,
            age_ms=keep.age_ms,
            bytes=keep.bytes,
        ),
    )
