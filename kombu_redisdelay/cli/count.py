"""``celery delayed count``"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.choosing import selected, selecting, states_of
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import busy, count, flexible, right, show, show_json, table
from kombu_redisdelay.operations.fair import NO_KEY
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.states import STATES

#: What messages can be counted by.
_KINDS = ("state", "queue", "task", "priority", "failures", "reason", "worker", "key", "unique")


@click.command("count")
@selecting(tuple(STATES))
@click.option(
    "--by", "kinds", multiple=True, type=click.Choice(_KINDS), help="For each of these; may be given again."
)
@json_option
def command(kinds: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Count messages, also by task, queue and more.

    Redis knows the number in each state. To count by anything else, the command reads all messages: a million
    takes minutes.
    """
    selection = selected(options)
    states = states_of(selection)
    messages = connect(Messages)
    counts: dict[tuple[Any, ...], int]
    with busy("Counting"):
        if not kinds:
            counts = {(): messages.count(selection)}
        elif kinds == ("state",):
            counts = {(each.name,): messages.count(replace(selection, state=each.name)) for each in states}
        else:
            counts = dict(messages.tally(selection, kinds).most_common())
    if as_json:
        show_json({**dict(zip(kinds, kind, strict=True)), "messages": n} for kind, n in counts.items())
    elif not kinds:
        echo(f"{counts[()]:,}")
    elif not counts:
        echo("No messages found.", err=True)
    else:
        rows = table(right("MESSAGES"), *(flexible(kind.upper()) for kind in kinds))
        for kind, number in counts.items():
            rows.add_row(count(number), *map(_cell, kinds, kind))
        show(rows)


def _cell(kind: str, value: Any) -> str:
    if kind == "key":
        return str(value or NO_KEY)
    return "-" if value in (None, "") else str(value)
