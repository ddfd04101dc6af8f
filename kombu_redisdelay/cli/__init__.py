"""``celery delayed``: see and steer the queues and what is scheduled.

Celery finds :data:`delayed` by the entry point group ``celery.commands``, and imports it for each of its
own commands. So this package imports nothing slow until one of our commands is called.
"""

from __future__ import annotations

from kombu_redisdelay.cli.group import LazyGroup

delayed = LazyGroup(
    "delayed",
    package=__name__,
    commands=(
        *("stats", "list", "show", "cancel", "reschedule", "deliver-now", "timeline", "history", "top"),
        *("pause", "resume", "limit"),
        *("dead", "purge", "doctor", "adopt", "forward", "exporter", "web"),
    ),
    help="See and steer queues, scheduled tasks and dead letters in Redis.",
)
