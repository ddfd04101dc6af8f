"""``celery delayed fair``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli.broker import changing, connect, targets
from kombu_redisdelay.cli.echo import confirm, echo
from kombu_redisdelay.cli.options import force_option, json_option, queues_option, yes_option
from kombu_redisdelay.cli.output import show_json, show_lines
from kombu_redisdelay.cli.queues import in_a_line
from kombu_redisdelay.operations import fair
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.limits import (
    check_prefetch_of_fair,
    check_stock_workers_of_fair,
    check_use_of_keys,
)
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
    access = connect(Access, changes=True)
    names = list(dict.fromkeys(queues))
    if off and not yes:
        _ask(access.store, names)
    before = fair.fair_states(access.store, names)
    try:
        with changing(access.store, targets(names, ())):
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
    for line in _of_plain(access, names) if off else _of_fair(access, names):
        echo(line, err=True)


def _of_fair(access: Access, queues: Sequence[str]) -> Iterator[str]:
    """What keeps *queues* from being fair."""
    for queue in queues:
        ready = {key.key: key.ready for key in queue_keys(access.store, queue, MOST_KEYS).keys}
        for finding in (*check_prefetch_of_fair(queue, access.app), *check_use_of_keys(queue, ready)):
            yield in_a_line(finding)
    yield from map(in_a_line, check_stock_workers_of_fair(access.store, access.stock_keys[0]))


def _of_plain(access: Access, queues: Sequence[str]) -> Iterator[str]:
    """What makes *queues* fair again."""
    for queue in queues:
        if fair.is_declared_fair(queue, access.app):
            yield (
                f"The app declares {queue} with x-fair: the next process that declares it makes it fair "
                "again. Remove x-fair from its declaration."
            )


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
        if found.limits.is_limited or any(key.own.is_limited for key in found.keys):
            said.append(f"The limits of keys of {queue} have no effect until it is fair again.")
        if said:
            confirm(f"{' '.join(said)} Go on?")
