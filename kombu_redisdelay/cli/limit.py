"""``celery delayed limit``"""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.control import dropped, limits
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import force_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_json
from kombu_redisdelay.operations import control
from kombu_redisdelay.operations.access import Access


@click.command("limit")
@queues_option
@click.option("--rate", help="Messages in a time: 10/s or just 10, 100/m or 1000/h.")
@click.option("--burst", type=int, help="With --rate: messages at once, after a while without any.")
@click.option("--concurrency", type=int, help="Messages that workers may hold together.")
@click.option("--clear", is_flag=True, help="Remove all limits of the queue.")
@force_option
@json_option
def command(
    queues: tuple[str, ...],
    rate: str | None,
    burst: int | None,
    concurrency: int | None,
    clear: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Limit what all workers together take from a queue.

    The new limits replace those that the queue had. Without a limit, show the limits that there are.
    """
    given = (rate, burst, concurrency) != (None, None, None)
    if clear and given:
        raise click.UsageError("--clear goes without --rate, --burst and --concurrency.")
    if (clear or given) and not queues:
        raise click.UsageError("Name the queue with -Q.")
    access = connect(Access, steers=clear or given)
    names = queue_names(access, queues)
    before = control.queue_controls(access.store, names)
    if clear or given:
        for name in names:
            try:
                control.limit(access.store, name, rate, burst, concurrency)
            except ValueError as exc:
                raise click.UsageError(str(exc)) from exc
    found = dict(zip(names, control.queue_controls(access.store, names), strict=True))
    if as_json:
        show_json({"queue": name, **asdict(its)} for name, its in found.items())
        return
    for (name, its), old in zip(found.items(), before, strict=True):
        if its.is_limited or clear or name in queues:
            # 120/m is read back as 2/s.
            shown = replace(its, rate=rate) if rate is not None and "/" in rate else its
            gone = dropped(old, its)
            echo(f"{name}: {limits(shown) or 'no limits'}{f' (no longer: {gone})' if gone else ''}")
    if not any(its.is_limited for its in found.values()) and not queues:
        echo("No queue has a limit.", err=True)
