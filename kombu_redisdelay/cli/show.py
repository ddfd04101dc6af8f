"""``celery delayed show``"""

from __future__ import annotations

from datetime import datetime, timezone

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import show_fields, show_json, when
from kombu_redisdelay.operations.delayed import DelayedMessages


@click.command("show")
@click.argument("id")
@json_option
def command(id: str, as_json: bool) -> None:
    """Show the scheduled message, or messages, with this id."""
    found = connect(DelayedMessages).get_all(id)
    if not found:
        raise click.ClickException(f"no scheduled message has the id {id}")
    if as_json:
        show_json(found)
        return
    now = datetime.now(timezone.utc)
    for message in found:
        show_fields(
            {
                "id": message.id,
                "queue": message.queue,
                "due": f"{message.due.isoformat(' ')} ({when(message.due, now)})",
                "task": message.task,
                "args": message.args,
                "kwargs": message.kwargs,
                "priority": message.priority,
                "size": f"{message.size:,} bytes",
                **{f"header {name}": value for name, value in message.headers.items()},
            }
        )
