"""``celery delayed list``"""

from __future__ import annotations

from datetime import datetime

import click

from kombu_redisdelay.cli import messages
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import FromNow, json_option, queue_option
from kombu_redisdelay.cli.output import show_json, show_pages, without_payload
from kombu_redisdelay.operations.delayed import DelayedMessages
from kombu_redisdelay.operations.queued import SCHEDULED, STATES
from kombu_redisdelay.operations.queues import Queues

_ALL = "all"


@click.command("list")
@queue_option
@click.option("--state", type=click.Choice([*STATES, _ALL]), default=SCHEDULED, show_default=True)
@click.option("--task", help="Only tasks of this name, in which * stands for anything.")
@click.option(
    "--before", type=FromNow(), help="Only what is due before: 90s, 10m, 2h, 3d from now, or ISO 8601."
)
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
def command(
    queue: str | None, state: str, task: str | None, before: datetime | None, limit: int | None, as_json: bool
) -> None:
    """List messages, by default those that are scheduled.

    Scheduled ones are in the order in which they are due, ready ones queue by queue in the order in which
    they are taken. PLACE is how many are taken before it, WAIT for how long it has waited; ? if another
    transport has published it. HELD is for how long a worker has had it.
    """
    if state == SCHEDULED:
        scheduled = connect(DelayedMessages).iter(queue, due_before=before, task=task, limit=limit)
        if as_json:
            show_json(scheduled)
        elif not show_pages(scheduled, messages.scheduled):
            echo("No scheduled messages found.", err=True)
        return
    if before is not None:
        raise click.UsageError(f"--before is for scheduled messages, not for --state {state}.")
    found = connect(Queues).iter(queue, state=None if state == _ALL else state, task=task, limit=limit)
    if as_json:
        show_json(map(without_payload, found))
    elif not show_pages(found, messages.OF_STATE.get(state, messages.in_any_state)):
        echo("No messages found." if state == _ALL else f"No {state} messages found.", err=True)
