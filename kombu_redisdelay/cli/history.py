"""``celery delayed history``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple
from datetime import datetime, timezone
from functools import reduce
from operator import add
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect, reading
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import count, cut, fixed, flexible, right, show, show_json, table, unusual
from kombu_redisdelay.cli.table import Table
from kombu_redisdelay.cli.timeline import bar
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.history import (
    Counts,
    Period,
    QueueHistory,
    hours_together,
    minutes_together,
    queue_history,
)
from kombu_redisdelay.words import span, when

_SECONDS = {"minute": 60, "hour": 3600}

#: A period that is longer than a minute or an hour by this factor is said to be longer.
_LONGER = 1.5

#: What stands above the counts. Few queues have tasks with keys.
_COLUMNS = (
    *map(right, ("PUBLISHED", "DELIVERED", "FAILURES", "DEAD")),
    *(
        unusual(header, usual="0")
        for header in ("FAILED", "FAILED DROPPED", "RETURNED", "DROPPED", "REPLACED")
    ),
)

_BAR_COLUMNS = 20


@click.command("history")
@queues_option
@click.option("--by", type=click.Choice(list(_SECONDS)), default="minute", show_default=True)
@json_option
def command(queues: tuple[str, ...], by: str, as_json: bool) -> None:
    """Show what has happened, by minute or by hour.

    Minutes are kept for an hour, hours for a week. Counting begins seconds after a worker first consumes from
    a queue.

    The first table adds up all queues, or those that -Q names. Its bars show what was delivered. Periods in
    which nothing happened are left out. Times are in the app's timezone. The second table has the sums for
    each queue.
    """
    access = connect(Access)
    with reading(queue_history, access, queues) as every:
        found = [one for one in every if _periods(one, by)]
        if found and as_json:
            show_json(_as_json(one.queue, period) for one in found for period in _periods(one, by))
        elif found:
            together = minutes_together(found) if by == "minute" else hours_together(found)
            show(_table_of_periods([period for period in together if any(astuple(period.counts))], by))
            echo("")
            show(_table_of_queues(found, by))
        else:
            kept = "hour" if by == "minute" else "week"
            remark = (
                f"Nothing is recorded of the last {kept}. "
                "A history begins seconds after a worker first consumes."
            )
            echo(remark, err=True)


def _periods(history: QueueHistory, by: str) -> Sequence[Period]:
    """Those in which something has happened: the latest is always there, because it has not ended."""
    periods = history.minutes if by == "minute" else history.hours
    return [period for period in periods if any(astuple(period.counts))]


def _table_of_periods(periods: Sequence[Period], by: str) -> Table:
    now = datetime.now(timezone.utc)
    zone = click.get_current_context().obj.app.timezone
    form = "%H:%M:%S" if by == "minute" else "%m-%d %H:%M"
    rows = table(fixed(f"AT ({zone})"), right("BEGAN"), *_COLUMNS, fixed(""))
    largest = max(1, *(period.counts.delivered for period in periods))
    for period in periods:
        began = when(period.start, now)
        if period.seconds > _LONGER * _SECONDS[by]:
            began += f", for {span(period.seconds)}"
        share = period.counts.delivered / largest
        rows.add_row(
            f"{period.start.astimezone(zone):{form}}",
            began,
            *_numbers(period.counts),
            bar(share, _BAR_COLUMNS),
        )
    return rows


def _table_of_queues(found: Sequence[QueueHistory], by: str) -> Table:
    rows = table(flexible("QUEUE"), *_COLUMNS)
    for one in found:
        rows.add_row(cut(one.queue), *_numbers(reduce(add, (each.counts for each in _periods(one, by)))))
    return rows


def _numbers(counts: Counts) -> Iterator[Any]:
    yield count(counts.published)
    yield count(counts.delivered)
    yield count(counts.failures, "yellow")
    yield count(counts.dead, "red")
    yield count(counts.failed, "red")
    yield count(counts.failed_dropped, "yellow")
    yield count(counts.returned)
    yield count(counts.dropped)
    yield count(counts.replaced)


def _as_json(queue: str, period: Period) -> dict[str, Any]:
    return {"queue": queue, "start": period.start, "seconds": period.seconds, **asdict(period.counts)}
