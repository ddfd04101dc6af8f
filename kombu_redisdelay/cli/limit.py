"""``celery delayed limit``"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import force_option, json_option, queues_option
from kombu_redisdelay.cli.output import show_json
from kombu_redisdelay.cli.remarks import in_words
from kombu_redisdelay.operations import limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.limits import UNCHANGED


class LimitType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A limit, or ``none``. The operations check the rest."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == "none":
            return None
        return int(value) if value.isascii() and value.isdecimal() else value


#: Limit -> the help of its option.
_HELP = {
    "rate": "Messages in a time: 10/s or just 10, 100/m or 1000/h; or none.",
    "burst": "Messages at once, after a while without any. By default what the rate allows in a second.",
    "concurrency": "How many messages may be unacked; or none.",
}


@click.command("limit")
@queues_option
@click.option("--rate", type=LimitType(), default=UNCHANGED, help=_HELP["rate"])
@click.option("--burst", type=LimitType(), default=UNCHANGED, help=_HELP["burst"])
@click.option("--concurrency", type=LimitType(), default=UNCHANGED, help=_HELP["concurrency"])
@click.option("--clear", is_flag=True, help="End all limits of the queue.")
@force_option
@json_option
def command(queues: tuple[str, ...], clear: bool, force: bool, as_json: bool, **given: Any) -> None:
    """Limit what all workers together take from a queue.

    Only the limits that are given change, and the command shows all of them. `stats` shows them later.
    """
    changes = {name: value for name, value in given.items() if value is not UNCHANGED}
    if clear and changes:
        raise click.UsageError("Give limits or --clear, not both. To clear one, give it as none.")
    if not clear and not changes:
        raise click.UsageError(f"Give a limit ({', '.join(f'--{name}' for name in _HELP)}), or --clear.")
    if not queues:
        raise click.UsageError("Name the queue with -Q.")
    access = connect(Access, steers=True)
    names = list(dict.fromkeys(queues))
    try:
        for name in names:
            limits.limit(access.store, name, **({"rate": None, "concurrency": None} if clear else changes))
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    found = dict(zip(names, limits.queue_limits(access.store, names), strict=True))
    if as_json:
        show_json({"queue": name, **asdict(its)} for name, its in found.items())
        return
    # 120/m is read back as 2/s.
    typed = {"rate": changes["rate"]} if "/" in str(changes.get("rate")) else {}
    for name, its in found.items():
        echo(f"{name}: {in_words(replace(its, **typed))}")
