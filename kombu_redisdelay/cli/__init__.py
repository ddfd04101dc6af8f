"""``celery delayed``: see and steer the queues and what is scheduled.

Celery finds :data:`delayed` by the entry point group ``celery.commands``, and imports it for each of its
own commands. So this package imports nothing slow until one of our commands is called.
"""

from __future__ import annotations

from kombu_redisdelay.broker.keys import ARCHIVED
from kombu_redisdelay.cli.group import LazyGroup

delayed = LazyGroup(
    "delayed",
    package=__name__,
    commands=(
        *("stats", "keys", "list", "count", "show", "timeline", "history", "memory", "top"),
        *("pause", "resume", "limit", "fair"),
        *("doctor", "mend", "adopt", "forward", "exporter", "web"),
    ),
    others="change",
    others_after="show",
    hints={
        **{state: f"`list --state {state}`, `show`, `requeue` and `remove`" for state in ARCHIVED},
        "purge": "`cancel --all`",
        "move": "`reschedule`",
        "queues": "`stats`",
        "workers": "`stats`, and `list --state unacked` for what they have",
        "inspect": "`show`",
        "ls": "`list`",
        "retry": "`requeue`",
        "run": "`deliver-now`",
        "promote": "`deliver-now`",
        "unpause": "`resume`",
        **dict.fromkeys(("delete", "kill", "rm"), "`cancel` for what would run, `remove` for what would not"),
    },
    help="See and steer queues, scheduled and failed tasks and dead letters in Redis.",
)
