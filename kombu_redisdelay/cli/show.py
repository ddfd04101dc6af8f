"""``celery delayed show``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.outcome import exit_unless_all
from kombu_redisdelay.cli.output import date_and_time, show_fields, show_json
from kombu_redisdelay.operations.lateness import why_late
from kombu_redisdelay.operations.queued import HELD, QueuedMessage
from kombu_redisdelay.operations.queues import Queues


@click.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
def command(ids: tuple[str, ...], as_json: bool) -> None:
    """Show the messages with these ids, in any state.

    The exit status is 1 if there is none with one of the ids.
    """
    queues = connect(Queues)
    counts: dict[str, int] = {}
    for id in dict.fromkeys(ids):
        found = queues.get_all(id)
        if as_json:
            show_json(found)
        elif found:
            if any(counts.values()):
                echo("")
            _show(id, found, queues)
        if not found:
            echo(f"Error: No message has the id {id}.", err=True)
        counts[id] = len(found)
    exit_unless_all(counts)


def _show(id: str, found: Sequence[QueuedMessage], queues: Queues) -> None:
    if len(found) > 1:
        echo(f"{len(found)} messages have the id {id}.")
    for message in found:
        if len(found) > 1:
            echo("")
        show_message(message, why_late(queues.store, message))


def show_message(message: QueuedMessage, why: Sequence[str] = ()) -> None:
    """Print all that is known of a message, one thing on each line.

    Arguments:
        why: why it waits though it is due.
    """
    show_fields(
        {
            "id": message.id,
            "queue": message.queue,
            "state": message.state,
            **dict(_of_state(message, datetime.now(timezone.utc))),
            **({"waits because": " ".join(why)} if why else {}),
            "task": message.task,
            "args": message.args,
            "kwargs": message.kwargs,
            "priority": message.priority,
            "deliveries": message.deliveries,
            "size": f"{message.size:,} bytes",
            **{f"header {name}": value for name, value in message.headers.items()},
            "payload": message.payload.decode("utf-8", "backslashreplace"),
        }
    )


def _of_state(message: QueuedMessage, now: datetime) -> Iterator[tuple[str, str | None]]:
    """What there is to say of a message in its state."""
    if message.due is not None:
        yield "due", _moment(message.due, now)
    if message.place is not None:
        yield "place", f"{message.place:,} before it"
        yield "waiting since", _moment(message.waiting_since, now)
    if message.state == HELD:
        yield "worker", message.worker
        yield "host", message.host
        gone = " (gone)" if message.process_is_gone else ""
        yield "process", None if message.pid is None else f"{message.pid}{gone}"
        yield "held since", _moment(message.held_since, now)
        if message.lease_has_ended:
            yield "lease", "has ended, the message comes back when another worker of this queue runs"
    if message.died is not None:
        yield "died", _moment(message.died, now)
        yield "reason", message.reason


def _moment(moment: datetime | None, now: datetime) -> str | None:
    return None if moment is None else date_and_time(moment, now)
