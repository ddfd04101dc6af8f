"""Puts lines about finished tasks where they are kept, without a worker."""

from __future__ import annotations

from typing import Any

from kombu_redisdelay.broker.finished import FinishedTask
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.states import STATES

#: Those whose messages are messages.
OF_MESSAGES = [name for name, state in STATES.items() if not state.is_past]


def keep_finished(store: Store, queue: str, *ids: str, **told: Any) -> None:
    """Keep a line of each task with one of *ids*.

    Arguments:
        told: what differs in the lines.
    """
    store.remember(queue)
    for id in ids:
        what = {"waited": 0.25, "ran": 1.5, "tries": 1, "outcome": "succeeded", "error": "-", **told}
        what = {"finished_ms": round(store.now_ms()), "task": "shop.close", "worker": "celery@w", **what}
        store.server.call("LPUSH", store.keys(queue).finished, FinishedTask(**what, id=id).line)
