"""``celery delayed deliver-now``"""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import check_choice, due_options, every_option, json_option, many_options
from kombu_redisdelay.cli.outcome import (
    change_many,
    exit_unless_all,
    show_count,
    show_each,
    show_would_each,
    whereabouts,
)
from kombu_redisdelay.cli.scheduled import Picked
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("deliver-now")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@every_option
@due_options
@many_options
@json_option
def command(
    ids: tuple[str, ...],
    every: bool,
    queues: tuple[str, ...],
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move scheduled messages to their queues now.

    They go there in the order in which they are due.
    """
    check_choice(ids, every, queues, task, before, after)
    delayed = connect(DelayedMessages, steers=True)
    if ids:
        if dry_run:
            show_would_each("deliver", {id: len(delayed.get_all(id)) for id in ids}, as_json)
            return
        delivered = delayed.deliver_now_many(ids)
        show_each("delivered", delivered, as_json, elsewhere=whereabouts(delivered))
        exit_unless_all(delivered)
        return
    picked = Picked.by(queues, task, before, after)
    count = change_many(
        "deliver",
        "delivering",
        lambda: picked.count(delayed),
        lambda show: delayed.deliver_now_all(**picked.arguments, progress=show),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        queues=queues,
        described="scheduled message",
    )
    if count is not None:
        show_count("delivered", count, as_json)
