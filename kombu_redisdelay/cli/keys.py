"""``celery delayed keys``"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click

from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.cli.broker import connect, unknown_queues
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.first_rows import ON_A_TERMINAL
from kombu_redisdelay.cli.options import check_queues, json_option
from kombu_redisdelay.cli.output import count, flexible, right, show_json, show_pages, table
from kombu_redisdelay.cli.queues import age, in_a_line, limits_of_keys
from kombu_redisdelay.cli.table import Cell, Column, Table
from kombu_redisdelay.operations import columns
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.columns import (
    KEY_COLUMNS,
    SORTS,
    USUAL_SORT,
    KeyColumn,
    own_limits,
    sort_keys,
)
from kombu_redisdelay.operations.doctor.limits import check_use_of_keys
from kombu_redisdelay.operations.fair import shown_key
from kombu_redisdelay.operations.key_stats import MOST_KEYS, KeyStats, QueueKeys, queue_keys
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.words import number_of


@click.command("keys")
@click.option("-Q", "--queue", "queues", multiple=True, callback=check_queues, help="The queue.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=USUAL_SORT,
    show_default=True,
    help="Names from the first to the last, numbers from the greatest to the least.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=ON_A_TERMINAL,
    show_default=True,
    help="At most this number of keys; 0: all.",
)
@json_option
def command(queues: tuple[str, ...], sort: str, limit: int, as_json: bool) -> None:
    """Show what waits with each key of a queue.

    WAIT is the time that the oldest ready message of the key has waited; ? if another transport has published
    it. REASON is there if a pause or a limit keeps its ready messages. OWN LIMITS are those that the key has
    in place of those of every key. A number is ? if the queue has more than 10,000 messages in this state,
    which would have to be read. Of more than 1,000 keys, those with the most ready messages are looked at,
    unless --limit asks for more.
    """
    if len(set(queues)) != 1:
        raise click.UsageError("Name one queue with -Q.")
    access = connect(Access)
    found = queue_keys(access.store, queues[0], max(limit, MOST_KEYS) if limit else None)
    shown = sort_keys(found.keys, sort)[: limit or None]
    if as_json:
        show_json({"queue": found.queue, **asdict(key)} for key in shown)
    elif not show_pages(shown, _table):
        echo("No keys found.", err=True)
    if not as_json:
        for remark in limits_of_keys(found.queue, found.limits):
            echo(remark)
        # A name that is misspelt is said beside.
        if found.fair != ON and not unknown_queues(access, queues):
            vain = (
                any(own_limits(key.own, datetime.now(timezone.utc)) for key in found.keys)
                or found.limits.is_limited
            )
            effect = ", so pauses and limits of its keys have no effect" if vain else ""
            echo(f"{found.queue} is not fair{effect}: `celery delayed fair -Q {found.queue}`.", err=True)
        for finding in check_use_of_keys(found.queue, {key.key: key.ready for key in found.keys}):
            echo(in_a_line(finding), err=True)
    if found.unread:
        echo(
            f"{number_of(found.unread, 'ready message')} are left out: they are not sorted by key.",
            err=True,
        )
    if len(shown) < found.count:
        echo(_how_many(found, len(shown)), err=True)


def _how_many(found: QueueKeys, shown: int) -> str:
    few = ""
    if len(found.keys) < found.count:
        few = f"{len(found.keys):,} were looked at, first those with the most ready messages. "
    return f"{shown:,} of {number_of(found.count, 'key')}. {few}See all with --limit 0."


def _table(keys: Sequence[KeyStats]) -> Table:
    now = datetime.now(timezone.utc)
    # The reason and the limits.
    rows = table(*map(_heading, KEY_COLUMNS.values()), below=2)
    for key in keys:
        rows.add_row(
            *(_CELLS[column.kind](column, column.value(key), now) for column in KEY_COLUMNS.values())
        )
    return rows


def _heading(column: KeyColumn) -> Column:
    label = column.label.upper()
    if column.kind == columns.KEY:
        # Enough for all of a UUID.
        return flexible(label, least=36)
    if column.kind == columns.LIMITS:
        return Column(label, usual="", wraps=True)
    if column.kind == columns.REASON:
        return Column(label, usual="")
    return right(label)


def _number(column: KeyColumn, value: int | None) -> Cell:
    return Cell("?") if value is None else count(value, STATES[column.state].style)


#: Kind of a column -> makes the cell of a value.
_CELLS: Mapping[str, Callable[[KeyColumn, Any, datetime], Any]] = {
    columns.KEY: lambda column, value, now: shown_key(value),
    columns.NUMBER: lambda column, value, now: _number(column, value),
    columns.AGE: lambda column, value, now: age(value),
    columns.REASON: lambda column, value, now: value,
    columns.LIMITS: lambda column, value, now: own_limits(value, now),
}
