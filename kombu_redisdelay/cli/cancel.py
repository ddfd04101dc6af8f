"""``celery delayed cancel``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import show_outcome
from kombu_redisdelay.operations.queues import Queues


@click.command("cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--mark-revoked", is_flag=True, help="Also set the state REVOKED in the app's result backend.")
@json_option
def command(ids: tuple[str, ...], mark_revoked: bool, as_json: bool) -> None:
    """Remove scheduled and ready messages. They will not run.

    The exit status is 1 if one of them was neither scheduled nor ready, or a worker has it.
    """
    cancelled = connect(Queues).cancel_many(ids, mark_revoked=mark_revoked)
    show_outcome({id: id in cancelled for id in ids}, "cancelled", as_json)
