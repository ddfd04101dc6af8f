"""``celery delayed pause``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import are_paused, connect, steered_queues, tell_of_plain
from kombu_redisdelay.cli.options import all_option, force_option, json_option, key_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.fair import NO_KEY


@click.command("pause")
@queues_option
@key_option
@all_option
@force_option
@json_option
def command(queues: tuple[str, ...], key: str | None, every: bool, force: bool, as_json: bool) -> None:
    """Have workers take nothing from queues, until `resume`.

    It holds for all workers at once. Messages that they have taken already run. Messages can still be
    published, and scheduled ones become ready. With --key, workers leave only messages of this key of a fair
    queue.
    """
    access = connect(Access, steers=True)
    names = steered_queues(access, queues, every)
    paused = are_paused(access.store, names, key)
    if key is None:
        limits.pause(access.store, names)
    else:
        for name in names:
            fair.pause_key(access.store, name, key)
    whose = "" if key is None else f" key {key or NO_KEY}"
    if as_json:
        which = {} if key is None else {"key": key}
        show_json({"queue": name, **which, "paused": True} for name in names)
    else:
        already = {name for name, was_paused in zip(names, paused, strict=True) if was_paused}
        lines = (f"{name}{whose} {'was paused already' if name in already else 'paused'}" for name in names)
        show_lines(lines, "No queues found.")
    if key is not None:
        tell_of_plain(access.store, names)
