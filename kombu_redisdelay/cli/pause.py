"""``celery delayed pause``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect, steered_queues
from kombu_redisdelay.cli.options import all_option, force_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import limits
from kombu_redisdelay.operations.access import Access


@click.command("pause")
@queues_option
@all_option
@force_option
@json_option
def command(queues: tuple[str, ...], every: bool, force: bool, as_json: bool) -> None:
    """Have workers take nothing from queues, until `resume`.

    It holds for all workers at once. Messages that they have taken already run. Messages can still be
    published, and scheduled ones become ready.
    """
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    before = limits.queue_limits(access.store, names)
    limits.pause(access.store, names)
    if as_json:
        show_json({"queue": name, "paused": True} for name in names)
    else:
        already = {name for name, its in zip(names, before, strict=True) if its.is_paused}
        lines = (f"{name} {'was paused already' if name in already else 'paused'}" for name in names)
        show_lines(lines, "No queues found.")
