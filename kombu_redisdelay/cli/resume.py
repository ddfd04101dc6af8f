"""``celery delayed resume``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect, steered_queues
from kombu_redisdelay.cli.options import all_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_done
from kombu_redisdelay.operations import control
from kombu_redisdelay.operations.access import Access


@click.command("resume")
@queues_option
@all_option
@json_option
def command(queues: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Have workers take from paused queues again. The limits of the queues stay."""
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    control.resume(access.store, names)
    show_done(names, "resumed", as_json)
