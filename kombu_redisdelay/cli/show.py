"""``celery delayed show``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo, echo_all
from kombu_redisdelay.cli.messages import worker
from kombu_redisdelay.cli.options import arguments_option, json_option
from kombu_redisdelay.cli.outcome import exit_unless_all
from kombu_redisdelay.cli.output import date_and_time, fields_of, show_fields, show_json
from kombu_redisdelay.operations.archive_reader import WITHOUT_MESSAGE
from kombu_redisdelay.operations.changed import may_be_in_chord
from kombu_redisdelay.operations.fair import said_of_key
from kombu_redisdelay.operations.life import Event, life
from kombu_redisdelay.operations.message import ALL, MessageInfo, with_arguments, without_empty_headers
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED, STATES, how_many
from kombu_redisdelay.operations.why_waiting import key_and_holder, key_holder, why_waiting
from kombu_redisdelay.words import ACKED_EARLY, returned, span


@click.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@arguments_option(ALL)
@json_option
def command(ids: tuple[str, ...], arguments: str, as_json: bool) -> None:
    """Show the messages with these ids, in any state.

    The exit status is 1 if there is none with one of the ids.
    """
    messages = connect(Messages)
    counts: dict[str, int] = {}
    for id in dict.fromkeys(ids):
        found = list(messages.select(Selection(ids=[id])))
        if as_json:
            show_json(_json(message, arguments, messages) for message in found)
        elif found:
            if any(counts.values()):
                echo("")
            _show(id, found, arguments, messages)
        if not found:
            echo(f"Error: No message has the id {id}.", err=True)
        counts[id] = len(found)
    if not all(counts.values()):
        echo(ACKED_EARLY, err=True)
    exit_unless_all(counts)


def _json(message: MessageInfo, arguments: str, messages: Messages) -> dict[str, Any]:
    holder = {} if message.unique is None else {"holder": key_holder(messages.store, message)}
    events = [event._asdict() for event in life(message)]
    is_part = message.state == FAILED and may_be_in_chord(message.payload)
    chord = {"chord_part": True} if is_part else {}
    fields = {**fields_of(message, arguments), **holder, **chord, "life": events}
    return {**fields, "payload": message.payload} if arguments == ALL else fields


def _show(id: str, found: Sequence[MessageInfo], arguments: str, messages: Messages) -> None:
    if len(found) > 1:
        echo(f"{how_many(message.state for message in found)} have the id {id}.")
    for message in found:
        if len(found) > 1:
            echo("")
        unique = None if message.unique is None else key_and_holder(messages.store, message)
        why, shown = why_waiting(messages.store, message), with_arguments(message, arguments)
        _show_message(shown, unique, why, life(message))


def _show_message(
    message: MessageInfo, unique: str | None, why: Sequence[str], events: Sequence[Event]
) -> None:
    """Print all that is known of a message, one thing on each line.

    Arguments:
        unique: its unique key, and the holder of that.
        why: why it waits though it is due.
        events: its life.
    """
    now = datetime.now(timezone.utc)
    show_fields(
        {
            "id": message.id,
            "queue": message.queue,
            "state": message.state,
            **({"key": key} if (key := said_of_key(message.key, message.headers)) else {}),
            **({} if unique is None else {"unique": unique}),
            **dict(_of_state(message, now)),
            **({} if message.expires is None else {"expires": date_and_time(message.expires, now)}),
            **({"waits because": " ".join(why)} if why else {}),
            "life": [_in_words(event, now) for event in events],
            "task": message.task,
            "args": message.args,
            "kwargs": message.kwargs,
            "priority": message.priority,
            "failures": message.failures,
            "size": f"{message.size:,} bytes",
            **{f"header {name}": value for name, value in without_empty_headers(message).headers.items()},
            **({"payload": message.payload.decode("utf-8", "backslashreplace")} if message.payload else {}),
        }
    )
    # A field would be one line.
    echo_all(message.traceback.splitlines())


def _in_words(event: Event, now: datetime) -> str:
    at = "" if event.at is None else f" {date_and_time(event.at, now)}"
    said = f"{',' if at else ''} {event.said}" if event.said else ""
    return f"{event.event}{at}{said}"


def _of_state(message: MessageInfo, now: datetime) -> Iterator[tuple[str, str | None]]:
    """What there is to say of a message in its state."""
    if message.is_blocked:
        # Why it waits is said beside.
        yield "due", "when its unique key is free"
        return
    if message.due is not None:
        yield "due", date_and_time(message.due, now)
    else:
        yield "since", None if message.since is None else date_and_time(message.since, now)
    if message.position is not None:
        yield "position", f"{message.position:,} before it"
    if message.state == FAILED:
        yield "error", message.error
        yield "text", message.text
        yield "tries", str(message.tries)
        yield "started", None if message.started is None else date_and_time(message.started, now)
        yield "worker", message.worker
        if message.returned:
            yield "returned", returned(message.returned)
        if may_be_in_chord(message.payload):
            yield "chord", "a part of one, or may be: its body will not run because of this task"
        if WITHOUT_MESSAGE in message.reason:
            yield "message", f"{WITHOUT_MESSAGE}, so it cannot be requeued"
        return
    if STATES[message.state].is_past:
        yield "outcome", message.outcome
        yield "waited", None if message.waited is None else span(message.waited)
        yield "ran", None if message.ran is None else span(message.ran)
        yield "tries", str(message.tries)
        yield "error", message.error or None
        yield "worker", message.worker
        return
    if message.worker or message.host:
        yield "worker", worker(message)
        yield "host", message.host
    if message.lost:
        yield "lost", f"{message.lost}, the message comes back when another worker of this queue runs"
    if message.reason:
        yield "reason", message.reason
