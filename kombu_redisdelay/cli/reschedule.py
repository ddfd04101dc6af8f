"""``celery delayed reschedule``"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import click

from kombu_redisdelay.broker.times import from_ms
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import (
    MomentType,
    Seconds,
    check_choice,
    due_options,
    every_option,
    json_option,
    many_options,
)
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
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.words import when


@click.command("reschedule")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--countdown", type=Seconds(), help="Time from now: 90, 90s, 10m, 2h, 3d or 1w.")
@click.option("--eta", type=MomentType(), help="A moment in ISO 8601, such as 2027-01-01T09:00.")
@every_option
@due_options
@many_options
@json_option
def command(
    ids: tuple[str, ...],
    countdown: float | None,
    eta: datetime | None,
    every: bool,
    queues: tuple[str, ...],
    task: str | None,
    before: datetime | timedelta | None,
    after: datetime | timedelta | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Deliver scheduled messages at another time.

    Times without an offset are in the app's timezone.
    """
    if (countdown is None) == (eta is None):
        raise click.UsageError("Give either --countdown or --eta.")
    check_choice(ids, every, queues, task, before, after)
    delayed = connect(DelayedMessages, steers=True)
    with _naming_the_option(eta):
        # Before anything is asked: a time that makes no sense is an error, also where there is no message.
        delayed.reschedule_many([], countdown=countdown, eta=eta)
    if ids and dry_run:
        show_would_each("reschedule", {id: len(delayed.get_all(id)) for id in ids}, as_json)
        return
    if ids:
        now = from_ms(delayed.store.now_ms())
        with _naming_the_option(eta):
            counts = delayed.reschedule_many(ids, countdown=countdown, eta=eta)
        due = _due(delayed, now, countdown, eta, as_json)
        show_each("rescheduled", counts, as_json, elsewhere=whereabouts(counts), due=due)
        exit_unless_all(counts)
        return
    picked, started = Picked.by(queues, task, before, after), []

    def change(show: Tell) -> int:
        started.append(from_ms(delayed.store.now_ms()))
        return delayed.reschedule_all(**picked.arguments, countdown=countdown, eta=eta, progress=show)

    with _naming_the_option(eta):
        count = change_many(
            "reschedule",
            "rescheduling",
            lambda: picked.count(delayed),
            change,
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
            queues=queues,
            described="scheduled message",
        )
    if count is not None:
        due = _due(delayed, started[0], countdown, eta, as_json)
        show_count("rescheduled", count, as_json, due=due)


@contextmanager
def _naming_the_option(eta: datetime | None) -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        hint = "'--countdown'" if eta is None else "'--eta'"
        raise click.BadParameter(str(exc), param_hint=hint) from exc


def _due(
    delayed: DelayedMessages, now: datetime, countdown: float | None, eta: datetime | None, as_json: bool
) -> str:
    """When the messages are due now. The server may have begun some milliseconds after *now*."""
    due = eta if countdown is None else now + timedelta(seconds=countdown)
    assert due is not None
    if as_json:
        return due.astimezone(timezone.utc).isoformat()
    return f"{due.astimezone(delayed.app.timezone).isoformat(' ', 'seconds')} ({when(due, now)})"
