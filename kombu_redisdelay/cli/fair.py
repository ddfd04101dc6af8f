"""``celery delayed fair``"""

from __future__ import annotations

from collections.abc import Sequence

import click

from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import confirm
from kombu_redisdelay.cli.options import force_option, json_option, queues_option, yes_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.operations import fair
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.key_stats import MOST_KEYS, queue_keys
from kombu_redisdelay.words import made, number_of


@click.command("fair")
@queues_option
@click.option("--off", is_flag=True, help="Have workers move its messages back. Then it is not fair.")
@yes_option
@force_option
@json_option
def command(queues: tuple[str, ...], off: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Make queues fair: workers serve their keys in turn.

    It holds for all workers at once, from their next take on. `keys` shows what waits with each key, and
    `limit --per-key` limits each. With --off, pauses and limits of keys have no effect any more. If a key is
    paused or limited, the command asks first.
    """
    if not queues:
        raise click.UsageError("Name the queues with -Q.")
    access = connect(Access, steers=True)
    names = list(dict.fromkeys(queues))
    if off and not yes:
        _ask(access.store, names)
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


def _ask(store: Store, queues: Sequence[str]) -> None:
    """Ask before pauses and limits of keys lose their effect."""
    for queue, state in zip(queues, fair.fair_states(store, queues), strict=True):
        if state != ON:
            continue
        found = queue_keys(store, queue, MOST_KEYS)
        paused = [key for key in found.keys if key.limits.paused_since is not None]
        said = []
        if paused:
            are, their = ("is", "its") if len(paused) == 1 else ("are", "their")
            ready = number_of(sum(key.ready for key in paused), "ready message")
            said.append(f"{number_of(len(paused), 'key')} of {queue} {are} paused: {their} {ready} will run.")
        if found.limits.is_limited or any(key.limits.is_own for key in found.keys):
            said.append(f"The limits of keys of {queue} have no effect until it is fair again.")
        if said:
            confirm(f"{' '.join(said)} Go on?")
