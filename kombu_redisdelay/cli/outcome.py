"""Says what was done to messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.cli.messages import worker
from kombu_redisdelay.cli.output import busy, date_and_time, show_json
from kombu_redisdelay.cli.stopping import STOPPED
from kombu_redisdelay.operations.acting import Done
from kombu_redisdelay.operations.archive_reader import WITHOUT_MESSAGE
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.pace import ASKED
from kombu_redisdelay.operations.states import STATES, UNACKED, State
from kombu_redisdelay.operations.verbs import Verb
from kombu_redisdelay.operations.why_waiting import key_holder
from kombu_redisdelay.words import (
    chord_parts,
    have_returned,
    number_of,
    rest,
    run_again,
    stay,
    untold,
    with_object,
    without_message,
)

#: Numbers of other messages, which JSON has if there are any.
_OTHERS = (
    *("blocked", "untold", "without_message", "marked", "unmarked", "chord_parts", "returned", "run_again"),
)

#: Messages that are looked for in all states when they are not where a command looks for them.
MOST_SEARCHED = 10


def show_done(verb: Verb, done: Done, states: Sequence[State], messages: Messages, as_json: bool) -> None:
    """Print what was done, or would be done: for each id if there are some, else how many messages.

    Arguments:
        states: where they were looked for.
    """
    elsewhere = _elsewhere(done, messages)
    if as_json:
        show_json(_objects(done, elsewhere))
        return
    noun = states[0].noun if len(states) == 1 else "message"
    due = "" if done.due is None else f", due {date_and_time(done.due, datetime.now(timezone.utc))}"
    if not done.by_id:
        if said := _said(verb, done, noun, due):
            echo(f"{said}.")
        if done.blocked:
            echo(f"{stay(noun, done.blocked, done.holders)}.", err=True)
        if done.untold:
            echo(f"{untold(done.untold)}.", err=True)
    if done.left is not None and (done or done.stopped):
        said = rest(noun, done.left, done.failed_again, done.waiting, done.unknown, done.stopped)
        echo(f"{said}.", err=True)
    elif done.left is None and done.stopped:
        echo("Stopped. The others stay.", err=True)
    if verb.remark and done:
        echo(verb.remark, err=True)
    for id, count in done.by_id.items():
        several = f" ({number_of(count)})" if count > 1 else ""
        if not count:
            echo(f"{id} {_where(elsewhere.get(id), messages)}", err=True)
        elif done.is_dry_run:
            echo(f"{_would(verb, id)}{several}{due}")
        else:
            echo(f"{id} {verb.done}{several}{due}")
    is_nowhere = any(not count and id not in elsewhere for id, count in done.by_id.items())
    if verb.not_found and (is_nowhere or not (done or done.by_id)):
        echo(verb.not_found, err=True)
    if done.chord_parts:
        echo(f"{chord_parts(done.chord_parts)}.", err=True)
    if done.returned:
        echo(f"{have_returned(done.returned)}. --returned '*' picks these.", err=True)
    if done.run_again:
        echo(f"{run_again(done.run_again)}.", err=True)


def _said(verb: Verb, done: Done, noun: str, due: str) -> str:
    """What was done to how many, and how many cannot be requeued; or that there are none. Empty if all of
    them have returned."""
    staying = without_message(noun, done.without_message)
    if not (done or done.blocked or done.untold or done.stopped):
        return staying or ("" if done.returned else f"No {noun} matches")
    found = number_of(done.count, noun)
    said = _would(verb, found) if done.is_dry_run else f"{verb.done.capitalize()} {found}"
    told = ""
    if done.marked:
        some = "" if done.marked == done.count else f"of which {done.marked:,} "
        told = f", {some or 'which '}{'is' if done.marked == 1 else 'are'} REVOKED in the result backend"
    return f"{said}{due if done else ''}{told}{f', and {staying}' if staying else ''}"


def _would(verb: Verb, what: str) -> str:
    return f"Would {with_object(verb.name.replace('_', ' '), what)}"


def _elsewhere(done: Done, messages: Messages) -> dict[str, MessageInfo]:
    """Where the messages are that a command did not find where it looks. Each search reads all ready
    messages, so this is only for a few."""
    missing = [id for id, count in done.by_id.items() if not count]
    if not missing or len(missing) > MOST_SEARCHED:
        return {}
    with busy("Searching"):
        found = {id: messages.get(id) for id in missing}
    return {id: message for id, message in found.items() if message is not None}


def _objects(done: Done, elsewhere: Mapping[str, MessageInfo]) -> Iterator[dict[str, Any]]:
    common = {"verb": done.verb, "dry_run": done.is_dry_run}
    due = {} if done.due is None else {"due": done.due}
    if done.left is not None:
        common |= {"left": done.left, "failed_again": done.failed_again, "waiting": done.waiting}
        common |= {"unknown": done.unknown, "stopped": done.stopped or None}
    elif done.stopped:
        common |= {"stopped": done.stopped}
    if not done.by_id:
        of_all = {"messages": done.count, **(due if done.count else {})}
        others = {name: number for name in _OTHERS if (number := getattr(done, name))}
        holders = {"holders": dict(done.holders)} if done.blocked else {}
        yield {**common, **of_all, **others, **holders}
    for id, count in done.by_id.items():
        state = {"state": elsewhere[id].state} if id in elsewhere else {}
        holder = {"holder": done.holders[id]} if id in done.holders else {}
        yield {**common, "id": id, "messages": count, **(due if count else {}), **state, **holder}


def _where(message: MessageInfo | None, messages: Messages) -> str:
    """Where a message is that the command could not change."""
    if message is None:
        return "not found"
    holder = key_holder(messages.store, message)
    if holder is not None and holder != message.id:
        if message.is_blocked:
            what = "waits for its unique key"
        elif message.due is not None:
            what = "would wait for its unique key"
        else:
            what = f"is a {STATES[message.state].described}"
        return f"{what}: {holder} holds the unique key {message.unique!r}"
    if message.state == UNACKED:
        return f"is {message.state}, at {worker(message)}"
    noun = STATES[message.state].noun
    why = f", {WITHOUT_MESSAGE}" if WITHOUT_MESSAGE in message.reason else ""
    return f"is {message.state if noun == 'message' else f'a {noun}'} in the queue {message.queue!r}{why}"


def exit_unless_done(done: Done) -> None:
    """End the command with another status than 0 if it was stopped, with status 1 if an id has no message, or
    messages stay because of their unique keys, or because they were kept without their messages.

    Raises:
        click.exceptions.Exit: one of these.
    """
    if done.stopped == ASKED:
        raise click.exceptions.Exit(STOPPED)
    if done.stopped or done.blocked or done.without_message:
        raise click.exceptions.Exit(1)
    exit_unless_all(done.by_id)


def exit_unless_all(counts: Mapping[str, int]) -> None:
    """End the command with status 1 if an id has no message.

    Raises:
        click.exceptions.Exit: an id has none.
    """
    if not all(counts.values()):
        raise click.exceptions.Exit(1)
