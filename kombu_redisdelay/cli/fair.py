"""``celery delayed fair``"""

from __future__ import annotations

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.options import force_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.words import made


@click.command("fair")
@queues_option
@click.option("--off", is_flag=True, help="Have workers move its messages back. Then it is not fair.")
@force_option
@json_option
def command(queues: tuple[str, ...], off: bool, force: bool, as_json: bool) -> None:
    """Make queues fair: workers serve their keys in turn.

    It holds for all workers at once, from their next take on. `keys` shows what waits with each key, and
    `limit --per-key` limits each.
    """
    if not queues:
        raise click.UsageError("Name the queues with -Q.")
    access = connect(Access, steers=True)
    names = list(dict.fromkeys(queues))
    before = fair.fair_states(access.store, names)
    try:
        if off:
            fair.make_plain(access.store, names)
        else:
            fair.make_fair(access.store, names, access.app)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    after = fair.fair_states(access.store, names)
    if as_json:
        show_json({"queue": name, "fair": state} for name, state in zip(names, after, strict=True))
    else:
        each = zip(names, before, after, strict=True)
        show_lines((f"{name} {made(old, new)}" for name, old, new in each), "")
