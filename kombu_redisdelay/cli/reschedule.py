"""``celery delayed reschedule``"""

from __future__ import annotations

from datetime import datetime

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import Iso8601, json_option
from kombu_redisdelay.cli.output import show_outcome
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("reschedule")
@click.argument("id")
@click.option("--countdown", type=float, help="Seconds from now.")
@click.option("--eta", type=Iso8601(), help="A moment, such as 2027-01-01T00:00:00Z.")
@json_option
def command(id: str, countdown: float | None, eta: datetime | None, as_json: bool) -> None:
    """Deliver a scheduled message at another time."""
    delayed = connect(DelayedMessages)
    try:
        done = delayed.reschedule(id, countdown=countdown, eta=eta)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    show_outcome({id: done}, "rescheduled", as_json)
