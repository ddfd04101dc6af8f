"""``celery delayed dead``"""

from __future__ import annotations

from datetime import datetime, timezone

import click

from kombu_redisdelay.cli import messages
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import confirm, echo
from kombu_redisdelay.cli.options import json_option, queue_option, task_option, yes_option
from kombu_redisdelay.cli.output import (
    busy,
    date_and_time,
    show_fields,
    show_json,
    show_outcome,
    show_pages,
)
from kombu_redisdelay.operations.dead_letters import DeadLetters


@click.group("dead")
def command() -> None:
    """See and steer messages that will not be delivered any more."""


@command.command("list")
@queue_option
@task_option
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
def list_(queue: str | None, task: str | None, limit: int | None, as_json: bool) -> None:
    """List dead letters, the oldest of each queue first."""
    found = connect(DeadLetters).iter(queue, task=task, limit=limit)
    if as_json:
        show_json(found)
    elif not show_pages(found, messages.letters):
        echo("No dead letters found.", err=True)


@command.command("show")
@click.argument("id")
@json_option
def show_one(id: str, as_json: bool) -> None:
    """Show the dead letter with this id, with its bytes."""
    letter = connect(DeadLetters).get(id)
    if letter is None:
        raise click.ClickException(f"No dead letter has the id {id}.")
    if as_json:
        show_json([letter])
        return
    show_fields(
        {
            "id": letter.id,
            "queue": letter.queue,
            "when": date_and_time(letter.when, datetime.now(timezone.utc)),
            "reason": letter.reason,
            "deliveries": letter.deliveries,
            "task": letter.task,
            "args": letter.args,
            "kwargs": letter.kwargs,
            "payload": letter.payload.decode("utf-8", "backslashreplace"),
        }
    )


@command.command("requeue")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--all", "every", is_flag=True, help="All of them, or those that -Q and --task name.")
@queue_option
@task_option
@json_option
def requeue(ids: tuple[str, ...], every: bool, queue: str | None, task: str | None, as_json: bool) -> None:
    """Put dead letters back into their queues. Their count of deliveries starts at 0 again."""
    if bool(ids) == every or (ids and (queue or task)):
        raise click.UsageError("Give either ids, or --all with or without -Q and --task.")
    letters = connect(DeadLetters)
    if ids:
        show_outcome({id: letters.requeue(id) for id in ids}, "requeued", as_json)
        return
    with busy("Requeueing"):
        count = letters.requeue_all(queue, task=task)
    _show_count(count, "requeued", as_json)


@command.command("purge")
@queue_option
@task_option
@yes_option
@json_option
def purge(queue: str | None, task: str | None, yes: bool, as_json: bool) -> None:
    """Remove dead letters for good."""
    letters = connect(DeadLetters)
    if not yes:
        what = f"{letters.count(queue):,} dead letter(s)"
        if task is not None:
            what = f"those of {what} that are {task}"
        confirm(f"Remove {what}?")
    with busy("Removing"):
        count = letters.purge(queue, task=task)
    _show_count(count, "removed", as_json)


def _show_count(count: int, what: str, as_json: bool) -> None:
    if as_json:
        show_json([{what: count}])
    else:
        echo(f"{what.capitalize()} {count:,} dead letter(s).")
