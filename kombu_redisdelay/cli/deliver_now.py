"""``celery delayed deliver-now``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import show_outcome
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("deliver-now")
@click.argument("id")
@json_option
def command(id: str, as_json: bool) -> None:
    """Move a scheduled message to its queue now."""
    show_outcome({id: connect(DelayedMessages).deliver_now(id)}, "delivered", as_json)
