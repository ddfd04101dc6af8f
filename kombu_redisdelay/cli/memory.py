"""``celery delayed memory``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo, echo_all
from kombu_redisdelay.cli.options import json_option, queues_option
from kombu_redisdelay.cli.output import (
    busy,
    count,
    cut,
    fixed,
    flexible,
    right,
    show,
    show_json,
    table,
    unusual,
)
from kombu_redisdelay.cli.table import Cell, Table
from kombu_redisdelay.operations.memory_report import (
    NONE_EXPIRED,
    MemoryUse,
    TaskMemory,
    kind_of,
    number_of_messages,
    of_redis,
    remarks,
)
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.words import number_of, percent, size

#: Rows of the table, at most. A task with this share of the bytes has a row in any case.
ROWS, SHARE = 20, 0.05

#: To how many columns of the terminal a task may be cut before it gets a line of its own.
LEAST_OF_TASK = 30


@click.command("memory")
@queues_option
@json_option
def command(queues: tuple[str, ...], as_json: bool) -> None:
    """Show what fills Redis, by queue, state and task.

    Of up to 1,600 messages, all are read. Of more, some 1,600 are read at random positions: numbers of
    messages are then about right, and so are the bytes of each task. OF REDIS is the part of what Redis uses.
    WITH ZLIB is what they would take with task_compression = "zlib".
    """
    messages = connect(Messages)
    with busy("Reading"):
        found = messages.memory(queues or None)
    if as_json:
        show_json(_rows(found))
    else:
        if found.tasks:
            show(table_of(found))
        else:
            echo("No messages found.", err=True)
        echo_all(remarks(found))
    # What other apps have in this Redis is not the user's.
    asked = {*queues, *messages.declared_queues}
    if any(each.queue in asked for each in found.unread):
        raise click.exceptions.Exit(1)


def _rows(found: MemoryUse) -> Iterator[dict[str, Any]]:
    """An object for each thing that was found, and what it is of."""
    yield from ({"of": "task", **asdict(task)} for task in found.tasks)
    yield from ({"of": "state", **asdict(state)} for state in found.states)
    yield from ({"of": "others", **asdict(each)} for each in found.others)
    yield from ({"of": "server", **asdict(server)} for server in found.servers)
    yield from ({"of": "not read", **asdict(each)} for each in found.unread)
    yield from ({"of": "not looked at", "what": what} for what in found.not_looked_at)


def table_of(found: MemoryUse) -> Table:
    """A row for each of the largest tasks."""
    rows = table(
        *(flexible("QUEUE"), fixed("STATE"), right("BYTES"), right("OF REDIS"), right("MESSAGES")),
        *(right("LARGEST"), right("WITH ZLIB"), unusual("EXPIRED", usual=NONE_EXPIRED)),
        flexible("TASK", LEAST_OF_TASK),
        below=4,
    )
    whole = found.bytes or 1
    shown = [task for number, task in enumerate(found.tasks) if number < ROWS or task.bytes >= SHARE * whole]
    about = {(state.queue, state.state) for state in found.states if state.is_about}
    for task in shown:
        rows.add_row(
            *(cut(task.queue), task.state),
            f"{'about ' if (task.queue, task.state) in about else ''}{size(task.bytes)}",
            *(of_redis(task.bytes, found), number_of_messages(task)),
            size(task.largest) if task.seen else "-",
            "-" if task.bytes_with_zlib is None else size(task.bytes_with_zlib),
            percent(task.expired) if task.expired else NONE_EXPIRED,
            cut(kind_of(task)),
        )
    rest = found.tasks[len(shown) :]
    if rest:
        rows.add_row(*_of_rest(rest, found))
    return rows


def _of_rest(rest: Sequence[TaskMemory], found: MemoryUse) -> Iterator[str | Cell]:
    size_of_rest = sum(task.bytes for task in rest)
    yield from (cut("others"), "", size(size_of_rest), of_redis(size_of_rest, found))
    yield count(sum(task.messages for task in rest))
    yield from ("-", "-", NONE_EXPIRED, cut(number_of(len(rest), "task")))
