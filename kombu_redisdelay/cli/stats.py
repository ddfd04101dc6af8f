"""``celery delayed stats``"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone

import click

from kombu_redisdelay.cli.broker import connect, reading
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import flexible, show, show_json, table
from kombu_redisdelay.cli.queues import conflicts, fairness_remarks, figure, heading, remarks
from kombu_redisdelay.cli.table import Table
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.columns import QUEUE_COLUMNS
from kombu_redisdelay.operations.stats import QueueStats, queue_stats


@click.command("stats")
@queues_option
@json_option
def command(queues: tuple[str, ...], as_json: bool) -> None:
    """Show what is in each queue, and how many consumers it has.

    WAIT is the time that the next ready message has waited; ? if another transport has published it. NEXT DUE
    is when the first scheduled message is due, or for how long it has been. REASON is there if messages wait
    although it is their time, and says why. BLOCKED is there if messages wait for
    another one with their unique key; they are among the scheduled ones.
    """
    access = connect(Access)
    with reading(queue_stats, access, queues) as found:
        if as_json:
            show_json(found)
        elif not found:
            echo("No queues found.", err=True)
        else:
            show(stats_table(found))
            now = datetime.now(timezone.utc)
            for queue in found:
                for remark in remarks(queue.queue, queue.limits, now):
                    echo(remark)
                for remark in fairness_remarks(queue):
                    echo(remark)
                if remark := conflicts(queue):
                    echo(remark)


def stats_table(stats: Iterable[QueueStats]) -> Table:
    now = datetime.now(timezone.utc)
    rows = table(flexible("QUEUE"), *map(heading, QUEUE_COLUMNS.values()), gap=1, below=4)
    for queue in stats:
        rows.add_row(queue.queue, *(figure(column, queue, now) for column in QUEUE_COLUMNS.values()))
    return rows
