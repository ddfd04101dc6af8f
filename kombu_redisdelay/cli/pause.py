"""``celery delayed pause``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import all_steered, changing, connect, steered_queues, tell_of_keys
from kombu_redisdelay.cli.options import all_option, force_option, json_option, keys_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access


@click.command("pause")
@queues_option
@keys_option
@all_option
@force_option
@json_option
def command(queues: tuple[str, ...], keys: tuple[str, ...], every: bool, force: bool, as_json: bool) -> None:
    """Have workers take nothing from queues, until `resume`.

    It holds for all workers at once. Messages that they have taken already run. Messages can still be
    published, and scheduled ones become ready. With --key, workers leave only messages of these keys of a
    fair queue.
    """
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    each = all_steered(names, keys)
    paused = {steered for steered in each if steered.is_paused(access.store)}
    with changing(access.store, each):
        if not keys:
            limits.pause(access.store, names)
        for name in names:
            for key in keys:
                fair.pause_key(access.store, name, key)
    if as_json:
        show_json({**steered.fields, "paused": True} for steered in each)
    else:
        lines = (f"{steered} {'was paused already' if steered in paused else 'paused'}" for steered in each)
        show_lines(lines, "No queues found.")
    if keys:
        tell_of_keys(access.store, names, keys)
