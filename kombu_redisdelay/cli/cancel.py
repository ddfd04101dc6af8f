"""``celery delayed cancel``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import dry_run_option, json_option
from kombu_redisdelay.cli.outcome import exit_unless_all, show_each, show_would
from kombu_redisdelay.cli.output import busy
from kombu_redisdelay.operations.access import NotMarkedRevokedError
from kombu_redisdelay.operations.queued import READY, SCHEDULED
from kombu_redisdelay.operations.queues import Queues


@click.command("cancel")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--group", metavar="GROUP_ID", help="The tasks of this Celery group. Reads all messages.")
@click.option("--mark-revoked", is_flag=True, help="Also set the state REVOKED in the app's result backend.")
@dry_run_option
@json_option
def command(
    ids: tuple[str, ...], group: str | None, mark_revoked: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove scheduled and ready messages. They will not run.

    The exit status is 1 if one of them was neither scheduled nor ready, or a worker has it.
    """
    if bool(ids) == bool(group):
        raise click.UsageError("Give either ids, or --group.")
    queues = connect(Queues)
    if dry_run:
        with busy("Counting"):
            count = _count_ids(queues, ids) if group is None else _count_group(queues, group)
        show_would("cancel", count, as_json)
        return
    try:
        with busy("Cancelling"):
            if group is None:
                cancelled = queues.cancel_many(ids, mark_revoked=mark_revoked)
            else:
                cancelled = queues.cancel_group(group, mark_revoked=mark_revoked)
    except NotMarkedRevokedError as exc:
        show_each("cancelled", exc.cancelled, as_json)
        raise click.ClickException(str(exc)) from exc
    show_each("cancelled", cancelled, as_json)
    if group is not None and not cancelled:
        raise click.ClickException(f"no task of the group {group} is scheduled or ready")
    exit_unless_all(cancelled)


def _count_ids(queues: Queues, ids: tuple[str, ...]) -> int:
    found = (message for id in dict.fromkeys(ids) for message in queues.get_all(id))
    return sum(message.state in (SCHEDULED, READY) for message in found)


def _count_group(queues: Queues, group: str) -> int:
    found = (message for state in (SCHEDULED, READY) for message in queues.iter(state=state))
    return sum(message.headers.get("group") == group for message in found)
