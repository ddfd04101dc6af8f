"""``celery delayed pause``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import changing, connect, target_queues, targets, tell_of_keys
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
    access = connect(Access, changes=True)
    names = target_queues(access, queues, every)
    each = targets(names, keys)
    paused = {target for target in each if target.is_paused(access.store)}
    with changing(access.store, each):
        if not keys:
            limits.pause(access.store, names)
        for name in names:
            for key in keys:
                fair.pause_key(access.store, name, key)
    if as_json:
        show_json({**target.fields, "paused": True} for target in each)
    else:
        lines = (f"{target} {'was paused already' if target in paused else 'paused'}" for target in each)
        show_lines(lines, "No queues found.")
    if keys:
        tell_of_keys(access.store, names, keys)
