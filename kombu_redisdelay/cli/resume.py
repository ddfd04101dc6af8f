"""``celery delayed resume``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect, steered_queues
from kombu_redisdelay.cli.options import all_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import limits
from kombu_redisdelay.operations.access import Access


@click.command("resume")
@queues_option
@all_option
@json_option
def command(queues: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Have workers take from paused queues again. The limits of the queues stay."""
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    before = limits.queue_limits(access.store, names)
    limits.resume(access.store, names)
    resumed = {name: its.is_paused for name, its in zip(names, before, strict=True)}
    if as_json:
        show_json({"queue": name, "resumed": was_paused} for name, was_paused in resumed.items())
    else:
        lines = (
            f"{name} {'resumed' if was_paused else 'was not paused'}"
            for name, was_paused in resumed.items()
            if was_paused or name in queues
        )
        show_lines(lines, "No queue was paused.")
