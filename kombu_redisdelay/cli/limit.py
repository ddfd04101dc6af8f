"""``celery delayed limit``"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli.broker import Target, changing, connect, targets, tell_of_keys
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import force_option, json_option, keys_option, option_of, queues_option
from kombu_redisdelay.cli.output import show_json
from kombu_redisdelay.cli.queues import in_a_line, limits_of_keys
from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.app_tasks import import_tasks
from kombu_redisdelay.operations.doctor.limits import check_early_acks
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.limits import LIMIT_FIELDS, LIMIT_KINDS, QueueLimits, in_words

#: What --clear changes.
_NONE = {kind.name: None for kind in LIMIT_KINDS}


def _limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each limit."""
    for each in reversed(LIMIT_FIELDS):
        command = option_of(each)(command)
    return command


@click.command("limit")
@queues_option
@click.option("--per-key", is_flag=True, help="Limit each key of a fair queue by itself.")
@keys_option
@_limit_options
@click.option("--clear", is_flag=True, help="End all these limits: of the queue, of each key, or of the key.")
@force_option
@json_option
def command(
    queues: tuple[str, ...],
    per_key: bool,
    keys: tuple[str, ...],
    clear: bool,
    force: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Limit what all workers together take from a queue.

    Only the limits that are given change, and the command shows all of them. `stats` shows them later.
    --per-key limits each key of a fair queue. --key gives one key limits of its own in place of these; one
    that is none is as for each key: to free a key from it, give a large number. `keys` shows them.
    """
    changes = {name: None if value == "none" else value for name, value in given.items() if value is not None}
    if clear and changes:
        raise click.UsageError("Give limits or --clear, not both. To clear one, give it as none.")
    if not clear and not changes:
        raise click.UsageError(
            f"Give a limit ({', '.join(each.option for each in LIMIT_FIELDS)}), or --clear. "
            "`stats` shows the limits of a queue and of each key, and `keys` those of one key."
        )
    if per_key and keys:
        raise click.UsageError("Give --per-key for each key, or --key for some, not both.")
    if not queues:
        raise click.UsageError("Name the queue with -Q.")
    access = connect(Access, changes=True)
    names = list(dict.fromkeys(queues))
    each = targets(names, keys)
    try:
        with changing(access.store, each):
            for target in each:
                _limit(access.store, target, per_key, _NONE if clear else changes)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    found = {target: _limits(access.store, target, per_key) for target in each}
    if as_json:
        which = {"per_key": True} if per_key else {}
        show_json({**target.fields, **which, **asdict(its)} for target, its in found.items())
        return
    for target, its in found.items():
        is_as_each = (
            target.key is not None
            and not fair.own_limits_of_key(access.store, target.queue, target.key).is_limited
        )
        paused = "; it is paused" if its.paused_since is not None else ""
        said = f"{in_words(its)}{', as each key' if is_as_each else ''}{paused}"
        echo(f"{target}{' each key' if per_key else ''}: {said}")
        if changes.get("concurrency") is not None:
            _tell_of_early_acks(access.store, target, its.concurrency, per_key)
        if clear and not per_key and target.key is None:
            of_keys = fair.limits_of_every_key(access.store, target.queue)
            for remark in limits_of_keys(target.queue, of_keys):
                echo(remark, err=True)
    if (keys or per_key) and any(value is not None for value in changes.values()):
        tell_of_keys(access.store, names, keys)


def _tell_of_early_acks(store: Store, target: Target, concurrency: int | None, per_key: bool) -> None:
    """Say so if the limit has little effect, because tasks of the queue are acked before they run."""
    app = click.get_current_context().obj.app
    if why := import_tasks(app):
        echo(f"Whether tasks are acked before they run is not known: {why}.", err=True)
        return
    if all(name.startswith("celery.") for name in app.tasks):
        # It may be another app that has the tasks.
        return
    keys = "each key" if per_key else "" if target.key is None else "the key"
    for finding in check_early_acks(store, target.queue, concurrency, app, keys):
        echo(in_a_line(finding), err=True)


def _limit(store: Store, target: Target, per_key: bool, changes: dict[str, Any]) -> None:
    if target.key is not None:
        fair.limit_key(store, target.queue, target.key, **changes)
    elif per_key:
        fair.limit_keys(store, target.queue, **changes)
    else:
        limits.limit(store, target.queue, **changes)


def _limits(store: Store, target: Target, per_key: bool) -> QueueLimits | KeyLimits:
    if target.key is not None:
        return fair.limits_of_key(store, target.queue, target.key)
    if per_key:
        return fair.limits_of_every_key(store, target.queue)
    [found] = limits.queue_limits(store, [target.queue])
    return found
