"""``celery delayed list``"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import click
from rich.table import Table

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.limited import Limited, limit_option, rows_to_show
from kombu_redisdelay.cli.options import Time, ago, from_now, json_option, queues_option, task_option
from kombu_redisdelay.cli.output import (
    call,
    console,
    cut,
    fixed,
    flexible,
    right,
    show_json,
    show_pages,
    span,
    table,
    when,
    without_payload,
)
from kombu_redisdelay.operations.delayed import DelayedMessage, DelayedMessages
from kombu_redisdelay.operations.queued import DEAD, HELD, READY, SCHEDULED, STATES, QueuedMessage
from kombu_redisdelay.operations.queues import Queues

_ALL = "all"

#: The least room for the name of a worker's host, and the width of everything else in the list of what is
#: held, in columns.
_HOST_COLUMNS = 8
_OTHER_COLUMNS = 72


@click.command("list")
@queues_option
@click.option("--state", type=click.Choice([*STATES, _ALL]), default=SCHEDULED, show_default=True)
@task_option
@click.option(
    "--before",
    type=Time(),
    help="Only what is due before: 90s, 10m, 2h, 3d or 1w from now, or ISO 8601. With --state ready, held or "
    "dead: only what is so since before: 2h is two hours ago.",
)
@click.option("--after", type=Time(), help="Only what is due, or is so since, then or later.")
@limit_option
@json_option
def command(
    queues: tuple[str, ...],
    state: str,
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List messages, by default those that are scheduled.

    Scheduled ones are in the order in which they are due, ready ones queue by queue in the order in which
    they are taken. PLACE is how many are taken before it, WAIT for how long it has waited; ? if another
    transport has published it. HELD is for how long a worker has had it. Times without an offset are in the
    app's timezone.
    """
    if state == _ALL and (before, after) != (None, None):
        hint = "'--after'" if before is None else "'--before'"
        raise click.BadParameter(
            "each state has a time of its own. Choose one with --state.", param_hint=hint
        )
    rows = rows_to_show(limit, as_json)
    # One more shows that there are more.
    picked: dict[str, Any] = {
        "queue": queues or None,
        "task": task,
        "limit": None if rows is None else rows + 1,
    }
    found: Limited[Any]
    count: Callable[[], int] | None
    if state == SCHEDULED:
        delayed = connect(DelayedMessages)
        span: dict[str, Any] = {"due_before": from_now(before), "due_after": from_now(after)}
        found = Limited(delayed.iter(**picked, **span), rows)
        count = partial(delayed.count, picked["queue"], **span) if task is None else None
    else:
        every = connect(Queues)
        of_state: dict[str, Any] = {"state": None if state == _ALL else state}
        found = Limited(every.iter(**picked, **of_state, before=ago(before), after=ago(after)), rows)
        is_picked = task is not None or before is not None or after is not None
        count = None if is_picked else partial(every.count, picked["queue"], **of_state)
    if as_json:
        show_json(found if state == SCHEDULED else map(without_payload, found))
    elif not show_pages(found, _PAGES[state]):
        echo("No messages found." if state == _ALL else f"No {state} messages found.", err=True)
    found.tell(count)


def _scheduled(messages: Iterable[DelayedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    rows = table(fixed("DUE"), fixed("ID"), flexible("QUEUE"), flexible("TASK"))
    for message in messages:
        rows.add_row(when(message.due, now), message.id, cut(message.queue), cut(call(message)))
    return rows


def _ready(messages: Iterable[QueuedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    rows = table(right("PLACE"), right("WAIT"), fixed("ID"), flexible("QUEUE"), flexible("TASK"))
    for message in messages:
        rows.add_row(
            str(message.place),
            _since(message.waiting_since, now),
            message.id,
            cut(message.queue),
            cut(call(message)),
        )
    return rows


def _held(messages: Iterable[QueuedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    room = max(_HOST_COLUMNS, console().width - _OTHER_COLUMNS)
    rows = table(right("HELD"), fixed("ID"), fixed("WORKER"), flexible("QUEUE"), flexible("TASK"))
    for message in messages:
        rows.add_row(
            _since(message.held_since, now),
            message.id,
            _worker(message, room),
            cut(message.queue),
            cut(call(message)),
        )
    return rows


def _dead(messages: Iterable[QueuedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    headers = (fixed("DIED"), fixed("ID"), flexible("QUEUE"), flexible("REASON"), flexible("TASK"))
    rows = table(*headers)
    for message in messages:
        rows.add_row(
            _when(message.died, now),
            message.id,
            cut(message.queue),
            cut(message.reason),
            cut(call(message)),
        )
    return rows


def _all(messages: Iterable[QueuedMessage]) -> Table:
    now = datetime.now(timezone.utc)
    rows = table(fixed("STATE"), fixed("WHEN"), fixed("ID"), flexible("QUEUE"), flexible("TASK"))
    for message in messages:
        moment = message.due or message.waiting_since or message.held_since or message.died
        rows.add_row(message.state, _when(moment, now), message.id, cut(message.queue), cut(call(message)))
    return rows


_PAGES: dict[str, Callable[[Iterable[Any]], Table]] = {
    SCHEDULED: _scheduled,
    READY: _ready,
    HELD: _held,
    DEAD: _dead,
    _ALL: _all,
}


def _since(moment: datetime | None, now: datetime) -> str:
    """For how long it has been so."""
    return "?" if moment is None else span(max(0.0, (now - moment).total_seconds()))


def _when(moment: datetime | None, now: datetime) -> str:
    return "?" if moment is None else when(moment, now)


def _worker(message: QueuedMessage, room: int) -> str:
    """Host and process of a worker. The name of a host may be cut, the process may not."""
    host = "?" if message.host is None else message.host
    if len(host) > room:
        host = f"{host[: room - 1]}…"
    return f"{host}:{'?' if message.pid is None else message.pid}"
