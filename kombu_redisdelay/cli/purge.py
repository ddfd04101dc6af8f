"""``celery delayed purge``"""

from __future__ import annotations

from datetime import datetime

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import confirm, echo
from kombu_redisdelay.cli.options import FromNow, json_option, queue_option, task_option, yes_option
from kombu_redisdelay.cli.output import busy, show_json
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("purge")
@queue_option
@task_option
@click.option(
    "--before", type=FromNow(), help="Only what is due before: 90s, 10m, 2h, 3d from now, or ISO 8601."
)
@yes_option
@json_option
def command(queue: str | None, task: str | None, before: datetime | None, yes: bool, as_json: bool) -> None:
    """Remove scheduled messages. Ready messages stay; `celery purge` removes both."""
    delayed = connect(DelayedMessages)
    if not yes:
        what = f"{delayed.count(queue, due_before=before):,} scheduled message(s)"
        if task is not None:
            what = f"those of {what} that are {task}"
        where = "all queues" if queue is None else f"queue {queue!r}"
        confirm(f"Remove {what} from {where}?")
    with busy("Removing"):
        removed = delayed.purge(queue, task=task, due_before=before)
    if as_json:
        show_json([{"removed": removed}])
    else:
        echo(f"Removed {removed:,} message(s).")
