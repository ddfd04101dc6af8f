"""``celery delayed cancel``"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import (
    TimeType,
    check_choice,
    dry_run_option,
    every_option,
    json_option,
    queues_option,
    task_option,
    yes_option,
)
from kombu_redisdelay.cli.outcome import (
    change_many,
    exit_unless_all,
    show_count,
    show_each,
    show_would_each,
    whereabouts,
)
from kombu_redisdelay.cli.output import busy
from kombu_redisdelay.operations.access import NotMarkedRevokedError
from kombu_redisdelay.operations.moments import ago, from_now
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.operations.queued import READY, SCHEDULED
from kombu_redisdelay.operations.queues import Queues


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--group", metavar="GROUP_ID", help="The tasks of this Celery group. Reads all messages.")
@every_option
@queues_option
@click.option("--state", type=click.Choice([SCHEDULED, READY]), help="Only messages in this state.")
@task_option
@click.option(
    "--before",
    type=TimeType(),
    help="With --state scheduled: only what is due before: 90s, 10m, 2h, 3d or 1w from now, or ISO 8601. "
    "With --state ready: only what has waited since before: 2h is two hours ago.",
)
@click.option("--after", type=TimeType(), help="Only what is due, or has waited since, then or later.")
@click.option("--mark-revoked", is_flag=True, help="Also set the state REVOKED in the app's result backend.")
@yes_option
@dry_run_option
@json_option
def command(
    ids: tuple[str, ...],
    group: str | None,
    every: bool,
    queues: tuple[str, ...],
    state: str | None,
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    mark_revoked: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove scheduled and ready messages. They will not run.

    With ids, the exit status is 1 if one of them was neither scheduled nor ready, or a worker has it.
    """
    if group is None:
        check_choice(ids, every, queues, task, before, after)
        if ids and state:
            raise click.UsageError("--state goes with options that pick messages, and ids find them in each.")
    elif ids or every or state or any(each not in (None, ()) for each in (queues, task, before, after)):
        raise click.UsageError("--group goes without ids, and without options that pick messages.")
    if state is None and (before, after) != (None, None):
        hint = "'--after'" if before is None else "'--before'"
        raise click.BadParameter(
            "each state has a time of its own. Choose one with --state.", param_hint=hint
        )
    access = connect(Queues, steers=True)
    if group is not None:
        _cancel_group(access, group, mark_revoked, yes, dry_run, as_json)
    elif ids:
        _cancel_ids(access, ids, mark_revoked, dry_run, as_json)
    else:
        moment = from_now if state == SCHEDULED else ago
        picked: dict[str, Any] = {
            "queue": queues or None,
            "state": state,
            "task": task,
            "before": moment(before),
            "after": moment(after),
        }
        try:
            count = change_many(
                "cancel",
                "cancelling",
                lambda: _count(access, picked),
                lambda show: access.cancel_all(**picked, mark_revoked=mark_revoked, progress=show),
                yes=yes,
                dry_run=dry_run,
                as_json=as_json,
                queues=queues,
                described=f"{state or 'scheduled or ready'} message",
            )
        except NotMarkedRevokedError as exc:
            show_count("cancelled", sum(exc.cancelled.values()), as_json)
            raise click.ClickException(str(exc)) from exc
        if count is not None:
            show_count("cancelled", count, as_json)


def _cancel_ids(
    access: Queues, ids: tuple[str, ...], mark_revoked: bool, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        with busy("Counting"):
            counts = _count_ids(access, ids)
        show_would_each("cancel", counts, as_json)
        return
    try:
        with busy("Cancelling"):
            cancelled = access.cancel_many(ids, mark_revoked=mark_revoked)
    except NotMarkedRevokedError as exc:
        show_each("cancelled", exc.cancelled, as_json)
        raise click.ClickException(str(exc)) from exc
    show_each("cancelled", cancelled, as_json, elsewhere=whereabouts(cancelled))
    exit_unless_all(cancelled)


def _cancel_group(
    access: Queues, group: str, mark_revoked: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    cancelled: dict[str, int] = {}

    def cancel(show: Tell) -> int:
        cancelled.update(access.cancel_group(group, mark_revoked=mark_revoked))
        show(sum(cancelled.values()))
        return sum(cancelled.values())

    try:
        count = change_many(
            "cancel",
            "cancelling",
            lambda: _count_group(access, group),
            cancel,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            queues=(),
            described="scheduled or ready message",
        )
    except NotMarkedRevokedError as exc:
        show_each("cancelled", exc.cancelled, as_json)
        raise click.ClickException(str(exc)) from exc
    if count is None:
        return
    show_each("cancelled", cancelled, as_json)
    if not cancelled:
        raise click.ClickException(f"no task of the group {group!r} is scheduled or ready")


def _count(access: Queues, picked: dict[str, Any]) -> int:
    """How many messages were picked. Reads them only if they are not all of the queues."""
    states = [SCHEDULED, READY] if picked["state"] is None else [picked["state"]]
    if picked["task"] is picked["before"] is picked["after"] is None:
        return sum(access.count(picked["queue"], state=state) for state in states)
    return sum(1 for state in states for _ in access.iter(**{**picked, "state": state}))


def _count_ids(access: Queues, ids: tuple[str, ...]) -> dict[str, int]:
    return {id: sum(each.state in (SCHEDULED, READY) for each in access.get_all(id)) for id in ids}


def _count_group(access: Queues, group: str) -> int:
    found = (message for state in (SCHEDULED, READY) for message in access.iter(state=state))
    return sum(message.headers.get("group") == group for message in found)
