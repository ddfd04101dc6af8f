"""``celery delayed purge``"""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import check_choice, due_options, every_option, json_option, many_options
from kombu_redisdelay.cli.outcome import change_many, show_count
from kombu_redisdelay.cli.scheduled import Picked
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("purge", short_help="Remove scheduled messages. Ready ones stay.")
@every_option
@due_options
@many_options
@json_option
def command(
    every: bool,
    queues: tuple[str, ...],
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove scheduled messages, as `cancel --state scheduled` does.

    Ready messages stay; `cancel --all` and `celery purge` remove both.
    """
    check_choice((), every, queues, task, before, after)
    delayed = connect(DelayedMessages, steers=True)
    picked = Picked.by(queues, task, before, after)
    count = change_many(
        "remove",
        "removing",
        lambda: picked.count(delayed),
        lambda show: delayed.purge(**picked.arguments, progress=show),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        queues=queues,
        described="scheduled message",
    )
    if count is not None:
        show_count("removed", count, as_json)
