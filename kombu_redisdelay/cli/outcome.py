"""Says what is about to be done to messages, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import click

from kombu_redisdelay.cli import messages
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import confirm, echo
from kombu_redisdelay.cli.output import busy, counting, show_json
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.operations.queued import DEAD, HELD, QueuedMessage
from kombu_redisdelay.operations.queues import Queues
from kombu_redisdelay.words import number_of

#: Messages that are looked for in all queues when they are not where a command looks for them.
MOST_SEARCHED = 10


def show_would(verb: str, count: int, as_json: bool, what: str = "message") -> None:
    """Print what ``--dry-run`` has found.

    Arguments:
        verb: what would be done, for example ``"remove"``.
    """
    if as_json:
        show_json([{f"would_{verb}": count}])
    else:
        echo(f"Would {verb} {number_of(count, what)}.")


def show_would_each(verb: str, counts: Mapping[str, int], as_json: bool, what: str = "message") -> None:
    """Do the same as :func:`show_would` for ids, and say which were not found.

    Arguments:
        counts: id -> how many messages were found.

    Raises:
        click.exceptions.Exit: one was not found.
    """
    show_would(verb, sum(counts.values()), as_json, what)
    if not as_json:
        _show_missing(counts, whereabouts(counts) if what == "message" else {})
    exit_unless_all(counts)


def whereabouts(counts: Mapping[str, int]) -> dict[str, QueuedMessage]:
    """Where the messages are that were not found where a command looks for them. All ready messages are
    searched for each, so this is only for few.

    Arguments:
        counts: id -> how many messages were found.
    """
    missing = [id for id, count in counts.items() if not count]
    if not missing or len(missing) > MOST_SEARCHED:
        return {}
    with busy("Searching"):
        queues = connect(Queues)
        found = {id: queues.get(id) for id in missing}
    return {id: message for id, message in found.items() if message is not None}


def show_count(done: str, count: int, as_json: bool, what: str = "message", **more: str) -> None:
    """Print to how many messages something was done.

    Arguments:
        done: what was done, for example ``"removed"``.
        more: name -> what else there is to say of them.
    """
    if not count:
        more = {}
    if as_json:
        show_json([{done: count, **more}])
    else:
        rest = "".join(f", {name} {text}" for name, text in more.items())
        echo(f"{done.capitalize()} {number_of(count, what)}{rest}.")


def show_each(
    done: str,
    counts: Mapping[str, int],
    as_json: bool,
    *,
    elsewhere: Mapping[str, QueuedMessage] | None = None,
    **more: str,
) -> None:
    """Print for each id what was done.

    Arguments:
        done: what was done, for example ``"cancelled"``.
        counts: id -> to how many messages it was done.
        elsewhere: id -> a message to which it could not be done.
        more: name -> what else there is to say of those to which it was done.
    """
    found = elsewhere or {}
    if as_json:
        show_json(
            {
                "id": id,
                done: bool(count),
                "messages": count,
                **(more if count else {}),
                **({"state": found[id].state} if id in found else {}),
            }
            for id, count in counts.items()
        )
        return
    rest = "".join(f", {name} {text}" for name, text in more.items())
    for id, count in counts.items():
        if count:
            echo(f"{id} {done}{f' ({number_of(count)})' if count > 1 else ''}{rest}")
        else:
            _show_missing({id: count}, found)


def _show_missing(counts: Mapping[str, int], elsewhere: Mapping[str, QueuedMessage]) -> None:
    for id, count in counts.items():
        if not count:
            echo(f"{id} {_state(elsewhere[id]) if id in elsewhere else 'not found'}", err=True)


def _state(message: QueuedMessage) -> str:
    if message.state == HELD:
        return f"is held by {messages.worker(message)}"
    return "is a dead letter" if message.state == DEAD else f"is {message.state}"


def exit_unless_all(counts: Mapping[str, int]) -> None:
    """End the command with status 1 if an id was not found.

    Raises:
        click.exceptions.Exit: one was not found.
    """
    if not all(counts.values()):
        raise click.exceptions.Exit(1)


def change_many(
    verb: str,
    doing: str,
    count: Callable[[], int],
    change: Callable[[Tell], int],
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    queues: Sequence[str],
    what: str = "message",
    described: str = "",
) -> int | None:
    """Change many messages, after a question that says how many there are.

    Arguments:
        verb: what is done, for example ``"remove"``; *doing* is the same, ``"removing"``.
        count: counts the messages.
        change: changes them, calls what it gets with how many are done so far, and returns how many there
            were.
        described: what they are called in the question, if that is not *what*.

    Returns:
        How many were changed; ``None`` with ``--dry-run``.

    Raises:
        click.Abort: the answer is not yes.
    """
    found = None
    if dry_run or not yes:
        with busy("Counting"):
            found = count()
        if dry_run:
            show_would(verb, found, as_json, what)
            return None
        if found:
            confirm(f"{verb.capitalize()} {number_of(found, described or what)} {_of(queues)}?")
    with counting(doing.capitalize(), found) as show:
        return change(show)


def _of(queues: Sequence[str]) -> str:
    if not queues:
        return "of all queues"
    return f"of {'the queue' if len(queues) == 1 else 'the queues'} {', '.join(map(repr, queues))}"
