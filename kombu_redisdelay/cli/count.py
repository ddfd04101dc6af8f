"""``celery delayed count``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.choosing import selected, selecting, states_of
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import (
    busy,
    count,
    cut,
    flexible,
    right,
    show,
    show_json,
    table,
    unusual,
)
from kombu_redisdelay.operations.failed_tasks import FailureGroup
from kombu_redisdelay.operations.fair import shown_key
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import ARCHIVED, FAILED, FINISHED, STATES, State
from kombu_redisdelay.words import when

#: What messages can be counted by.
_KINDS = (
    "state",
    "queue",
    "task",
    "priority",
    "failures",
    "reason",
    "error",
    "returned",
    "outcome",
    "tries",
    "worker",
    "key",
    "unique",
)

#: What messages of one state have only, and lines about finished tasks, which are to be named -> the state.
_ONLY_IN = {"error": FAILED, "returned": FAILED, "tries": FAILED, "outcome": FINISHED}


@click.command("count")
@selecting(tuple(STATES))
@click.option(
    "--by", "kinds", multiple=True, type=click.Choice(_KINDS), help="For each of these; may be given again."
)
@json_option
def command(kinds: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Count messages, also by task, queue and more.

    Redis knows the number in each state, and the number of failed tasks and of dead letters by task and
    error, which is the kind of reason of a dead letter. To count by anything else, the command reads all
    messages: a million takes minutes.
    """
    selection = _where_they_are(selected(options), kinds)
    states = states_of(selection)
    messages = connect(Messages)
    counts: dict[tuple[Any, ...], int]
    with busy("Counting"):
        if not kinds:
            counts = {(): messages.count(selection)}
        elif kinds == ("state",):
            counts = {(each.name,): messages.count(replace(selection, state=each.name)) for each in states}
        elif is_of_failures(selection, kinds):
            show_failures(messages.failures(selection), states[0], kinds, as_json)
            return
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


def _where_they_are(selection: Selection, kinds: tuple[str, ...]) -> Selection:
    """The *selection*, of one state if no other one has what is counted."""
    only = {_ONLY_IN[kind] for kind in kinds if kind in _ONLY_IN}
    if not only or selection.state is not None:
        return selection
    is_finished = FINISHED in only or any(each.states == (FINISHED,) for each, _ in selection.filters)
    return replace(selection, state=(FINISHED if is_finished else FAILED,))


def _cell(kind: str, value: Any) -> str:
    if kind == "key":
        return shown_key(value or "")
    return "-" if value in (None, "") else str(value)


def is_of_failures(selection: Selection, kinds: tuple[str, ...]) -> bool:
    """Whether failed tasks are counted by task and exception, or dead letters by task and kind of reason:
    then it is known since when they fail."""
    is_over = selection.state in [(state,) for state in ARCHIVED]
    return is_over and sorted({*kinds} - {"returned"}) == ["error", "task"]


def show_failures(
    groups: Sequence[FailureGroup], state: State, kinds: tuple[str, ...], as_json: bool
) -> None:
    kinds = tuple(kind for kind in kinds if kind != "returned")
    if as_json:
        show_json(
            {
                **{kind: getattr(group, kind) for kind in kinds},
                "returned": group.returned,
                "messages": group.count,
                "first": group.first,
                "last": group.last,
            }
            for group in groups
        )
    elif not groups:
        echo(f"No {state.described}s found.", err=True)
    else:
        now = datetime.now(timezone.utc)
        rows = table(
            *(right("MESSAGES"), *(flexible(kind.upper()) for kind in kinds), unusual("RETURNED", usual="")),
            *(right("FIRST"), right("LAST")),
        )
        for group in groups:
            of_kind = (cut(getattr(group, kind)) for kind in kinds)
            times = when(group.first, now), when(group.last, now)
            rows.add_row(count(group.count), *of_kind, group.returned, *times)
        show(rows)
