"""``celery delayed resume``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import changing, connect, target_queues, targets
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import all_option, json_option, keys_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.words import number_of


@click.command("resume")
@queues_option
@keys_option
@all_option
@json_option
def command(queues: tuple[str, ...], keys: tuple[str, ...], every: bool, as_json: bool) -> None:
    """Have workers take from paused queues again. The limits of the queues stay.

    With --key, have them take messages of these keys of a fair queue again.
    """
    access = connect(Access, changes=True)
    names = target_queues(access, queues, every)
    each = targets(names, keys)
    paused = {target for target in each if target.is_paused(access.store, in_part=True)}
    with changing(access.store, each):
        if not keys:
            limits.resume(access.store, names)
        for name in names:
            for key in keys:
                fair.resume_key(access.store, name, key)
    if as_json:
        show_json({**target.fields, "resumed": target in paused} for target in each)
    else:
        lines = (
            f"{target} {'resumed' if target in paused else 'was not paused'}"
            for target in each
            if target in paused or target.queue in queues
        )
        show_lines(lines, "No queue was paused.")
    for name in () if keys else names:
        paused_keys, _ = fair.count_paused(access.store, name)
        if paused_keys:
            are = f"{number_of(paused_keys, 'key')} of {name} {'is' if paused_keys == 1 else 'are'} paused"
            echo(f"{are}: `celery delayed resume -Q {name} --key KEY`.", err=True)
