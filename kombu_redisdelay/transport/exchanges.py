"""Knows the fanout exchanges that the Celery apps of this process have in their settings.

A virtual transport of kombu knows the type of an exchange where it was declared, and takes it for direct
elsewhere. Celery declares a ``Broadcast`` only where it is consumed.
"""

from __future__ import annotations

import sys
from typing import Any


def is_fanout_of_an_app(exchange: str) -> bool:
    """Whether a queue in ``task_queues`` of a Celery app in this process has a fanout exchange of this
    name."""
    apps: Any = getattr(sys.modules.get("celery._state"), "_get_active_apps", tuple)
    for app in list(apps()):
        # An app that publishes has made both already.
        amqp = vars(app).get("amqp")
        queues = {} if amqp is None else vars(amqp).get("queues", {})
        for queue in list(queues.values()):
            known = queue.exchange
            if known is not None and known.name == exchange and known.type == "fanout":
                return True
    return False
