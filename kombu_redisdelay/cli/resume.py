"""``celery delayed resume``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import are_paused, connect, steered_queues
from kombu_redisdelay.cli.options import all_option, json_option, key_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.fair import NO_KEY


@click.command("resume")
@queues_option
@key_option
@all_option
@json_option
def command(queues: tuple[str, ...], key: str | None, every: bool, as_json: bool) -> None:
    """Have workers take from paused queues again. The limits of the queues stay.

    With --key, have them take messages of this key of a fair queue again.
    """
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    paused = are_paused(access.store, names, key)
    if key is None:
        limits.resume(access.store, names)
    else:
        for name in names:
            fair.resume_key(access.store, name, key)
    resumed = dict(zip(names, paused, strict=True))
    whose = "" if key is None else f" key {key or NO_KEY}"
    if as_json:
        which = {} if key is None else {"key": key}
        show_json({"queue": name, **which, "resumed": was_paused} for name, was_paused in resumed.items())
    else:
        lines = (
            f"{name}{whose} {'resumed' if was_paused else 'was not paused'}"
            for name, was_paused in resumed.items()
            if was_paused or name in queues
        )
        show_lines(lines, "No queue was paused.")
