"""``celery delayed dead``"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import click

from kombu_redisdelay.cli import messages
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.limited import Limited, limit_option, rows_to_show
from kombu_redisdelay.cli.options import check_choice, died_options, every_option, json_option, many_options
from kombu_redisdelay.cli.outcome import change_many, exit_unless_all, show_count, show_each, show_would_each
from kombu_redisdelay.cli.output import show_json, show_pages, without_payload
from kombu_redisdelay.cli.show import show_message
from kombu_redisdelay.operations.dead_letters import DeadLetters
from kombu_redisdelay.operations.moments import ago
from kombu_redisdelay.operations.queued import DEAD, QueuedMessage
from kombu_redisdelay.operations.queues import Queues

_WHAT = "dead letter"


@click.group("dead")
def command() -> None:
    """See and steer messages that will not be delivered any more."""


@command.command("list")
@died_options
@limit_option
@json_option
def list_(
    queues: tuple[str, ...],
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List dead letters, the oldest of each queue first."""
    every = connect(Queues)
    picked = _picked(queues, task, before, after)
    rows = rows_to_show(limit, as_json)
    # One more shows that there are more.
    found = Limited(every.iter(**picked, state=DEAD, limit=None if rows is None else rows + 1), rows)
    if not (show_json(map(without_payload, found)) if as_json else show_pages(found, messages.dead)):
        echo("No dead letters found.", err=True)
    is_cheap = task is None and before is None and after is None
    found.tell(partial(every.count, picked["queue"], state=DEAD) if is_cheap else None)


@command.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
def show_all(ids: tuple[str, ...], as_json: bool) -> None:
    """Show the dead letters with these ids, with their bytes.

    The exit status is 1 if there is none with one of the ids.
    """
    letters: dict[str, list[QueuedMessage]] = {id: [] for id in ids}
    for letter in connect(Queues).iter(state=DEAD):
        if letter.id in letters:
            letters[letter.id].append(letter)
    found = list(chain.from_iterable(letters.values()))
    if as_json:
        show_json(found)
    else:
        for index, letter in enumerate(found):
            if index:
                echo("")
            show_message(letter)
    for id in letters:
        if not letters[id]:
            echo(f"Error: No dead letter has the id {id}.", err=True)
    exit_unless_all({id: len(letters[id]) for id in letters})


@command.command("requeue")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@every_option
@died_options
@many_options
@json_option
def requeue(
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
    """Put dead letters back into their queues. Their count of deliveries starts at 0 again."""
    check_choice(ids, every, queues, task, before, after)
    letters = connect(DeadLetters, steers=True)
    if ids:
        if dry_run:
            show_would_each("requeue", _count_ids(letters, ids), as_json, _WHAT)
        else:
            _show_each("requeued", letters.requeue_many(ids), as_json)
        return
    picked = _picked(queues, task, before, after)
    count = change_many(
        "requeue",
        "requeueing",
        lambda: _count(letters, picked),
        lambda show: letters.requeue_all(**picked, progress=show),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        queues=queues,
        what=_WHAT,
    )
    if count is not None:
        show_count("requeued", count, as_json, _WHAT)


@command.command("purge", short_help="Remove dead letters for good.")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@every_option
@died_options
@many_options
@json_option
def purge(
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
    """Remove dead letters for good: those with these ids, or those that the options pick."""
    check_choice(ids, every, queues, task, before, after)
    letters = connect(DeadLetters, steers=True)
    if ids:
        if dry_run:
            show_would_each("remove", _count_ids(letters, ids), as_json, _WHAT)
        else:
            _show_each("removed", letters.remove_many(ids), as_json)
        return
    picked = _picked(queues, task, before, after)
    count = change_many(
        "remove",
        "removing",
        lambda: _count(letters, picked),
        lambda show: letters.purge(**picked, progress=show),
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
        queues=queues,
        what=_WHAT,
    )
    if count is not None:
        show_count("removed", count, as_json, _WHAT)


def _picked(
    queues: tuple[str, ...],
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
) -> dict[str, Any]:
    """What options have picked, as arguments of a method of :class:`DeadLetters`."""
    return {"queue": queues or None, "task": task, "before": ago(before), "after": ago(after)}


def _count(letters: DeadLetters, picked: dict[str, Any]) -> int:
    """How many dead letters were picked. Reads them only if they are not all of the queues."""
    if picked["task"] is picked["before"] is picked["after"] is None:
        return letters.count(picked["queue"])
    return sum(1 for _ in letters.iter(**picked))


def _count_ids(letters: DeadLetters, ids: tuple[str, ...]) -> dict[str, int]:
    counts = dict.fromkeys(ids, 0)
    for letter in letters.iter():
        if letter.id in counts:
            counts[letter.id] += 1
    return counts


def _show_each(done: str, counts: dict[str, int], as_json: bool) -> None:
    show_each(done, counts, as_json)
    exit_unless_all(counts)
