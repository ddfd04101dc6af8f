"""``celery delayed list``"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from kombu_redisdelay.cli import messages
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.limited import Limited, limit_option, rows_to_show
from kombu_redisdelay.cli.options import TimeType, json_option, queues_option, task_option
from kombu_redisdelay.cli.output import show_json, show_pages, without_payload
from kombu_redisdelay.operations.delayed import DelayedMessages
from kombu_redisdelay.operations.moments import ago, from_now
from kombu_redisdelay.operations.queued import DEAD, SCHEDULED, STATES
from kombu_redisdelay.operations.queues import Queues

_ALL = "all"

#: State -> what is said when there is nothing in it, if that is not as for the others.
_NOTHING = {_ALL: "No messages found.", DEAD: "No dead letters found."}


@click.command("list")
@queues_option
@click.option("--state", type=click.Choice([*STATES, _ALL]), default=SCHEDULED, show_default=True)
@task_option
@click.option(
    "--before",
    type=TimeType(),
    help="Only what is due before: 90s, 10m, 2h, 3d or 1w from now, or ISO 8601. With --state ready, held or "
    "dead: only what is so since before: 2h is two hours ago.",
)
@click.option("--after", type=TimeType(), help="Only what is due, or is so since, then or later.")
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
    if state == SCHEDULED and not as_json:
        delayed = connect(DelayedMessages)
        span: dict[str, Any] = {"due_before": from_now(before), "due_after": from_now(after)}
        found = Limited(delayed.iter(**picked, **span), rows)
        count = partial(delayed.count, picked["queue"], **span) if task is None else None
    else:
        every = connect(Queues)
        of_state: dict[str, Any] = {"state": None if state == _ALL else state}
        moment = from_now if state == SCHEDULED else ago
        found = Limited(every.iter(**picked, **of_state, before=moment(before), after=moment(after)), rows)
        is_picked = task is not None or before is not None or after is not None
        count = None if is_picked else partial(every.count, picked["queue"], **of_state)
    if as_json:
        is_any = show_json(map(without_payload, found))
    else:
        is_any = show_pages(found, messages.OF_STATE.get(state, messages.in_any_state))
    if not is_any:
        echo(_NOTHING.get(state, f"No {state} messages found."), err=True)
    found.tell(count)
