"""``celery delayed list``"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import click
from rich.table import Table

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import FromNow, json_option, queue_option, task_option
from kombu_redisdelay.cli.output import call, cut, fixed, flexible, show_json, show_pages, table, when
from kombu_redisdelay.operations.delayed import DelayedMessage, DelayedMessages


@click.command("list")
@queue_option
@task_option
@click.option(
    "--before", type=FromNow(), help="Only what is due before: 90s, 10m, 2h, 3d from now, or ISO 8601."
)
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
def command(
    queue: str | None, task: str | None, before: datetime | None, limit: int | None, as_json: bool
) -> None:
    """List scheduled messages, first those that are due first."""
    delayed = connect(DelayedMessages)
    found = delayed.iter(queue, due_before=before, task=task, limit=limit)
    if as_json:
        show_json(found)
    elif not show_pages(found, _page):
        echo("No scheduled messages found.", err=True)


def _page(messages: Iterable[DelayedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    rows = table(fixed("DUE"), fixed("ID"), flexible("QUEUE"), flexible("TASK"))
    for message in messages:
        rows.add_row(when(message.due, now), message.id, cut(message.queue), cut(call(message)))
    return rows
