"""The commands that change messages: one for each verb."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.choosing import changing, selected_for_change
from kombu_redisdelay.cli.echo import confirm, echo, echo_all
from kombu_redisdelay.cli.options import dry_run_option, json_option, option_of, yes_option
from kombu_redisdelay.cli.outcome import exit_unless_done, show_done
from kombu_redisdelay.cli.output import busy, counting
from kombu_redisdelay.cli.stopping import stopping
from kombu_redisdelay.operations.acting import Done
from kombu_redisdelay.operations.failed_tasks import LOST_AGAIN, loses_what_fails_again, unattended
from kombu_redisdelay.operations.messages import Messages, NotMarkedRevokedError
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.verbs import REQUEUE, REQUEUE_SLOWLY, VERBS, Verb
from kombu_redisdelay.words import first_of, number_of, run_again, with_object

#: The errors that are named where none matches.
MOST_ERRORS = 10


def commands() -> dict[str, click.Command]:
    """Name -> command, for each verb."""
    return {each.name.replace("_", "-"): _command(each) for each in VERBS.values()}


def _command(verb: Verb) -> click.Command:
    def command(**options: Any) -> None:
        _change(verb, selected_for_change(options), **options)

    limit_option = click.option("--limit", type=click.IntRange(1), help="At most this number of messages.")
    options = [
        changing(verb.states),
        *map(option_of, verb.options),
        limit_option,
        yes_option,
        dry_run_option,
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    status = "With ids, the exit status is 1 if it could not be done to one of them."
    if any(how.foresee for how in verb.how.values()):
        status += " It is also 1 if messages stay, for example because others hold their unique keys."
    for each in verb.options:
        if each.stops_if:
            status += f" With {each.option}, it is 1 if {each.stops_if}, and 130 after Ctrl-C."
    first_sentence = f"{verb.help.partition('.')[0]}."
    decorate = click.command(
        verb.name.replace("_", "-"), help=f"{verb.help}\n\n{status}", short_help=first_sentence
    )
    return decorate(command)


def _change(
    verb: Verb, selection: Selection, *, yes: bool, dry_run: bool, as_json: bool, **asked: Any
) -> None:
    is_slow = bool(asked.get("rate"))
    if asked.get("terminate"):
        verb = replace(verb, remark="")
    if is_slow:
        verb = REQUEUE_SLOWLY
    if verb.needs_state and selection.ids is None and selection.state is None:
        options = " or ".join(f"--state {name}" for name in verb.states)
        raise click.UsageError(f"Say which: {options}.")
    messages = connect(Messages, changes=True)
    change: Callable[..., Any] = getattr(messages, verb.name)
    asks = selection.ids is None and not yes
    try:
        # Also with --yes: invalid options are an error before anything is changed.
        found: Done | None = None
        if dry_run or asks:
            with busy("Counting"):
                found = change(selection, dry_run=True, **asked)
        if dry_run and found is not None:
            _show(verb, selection, found, messages, as_json)
            return
        if not dry_run and verb.name == REQUEUE.name and loses_what_fails_again(messages, selection):
            echo(LOST_AGAIN, err=True)
        for queue in unattended(messages, selection) if is_slow else ():
            echo(f"No worker consumes from the queue {queue!r}: what is requeued waits there.", err=True)
        if found:
            title = verb.name.replace("_", " ").capitalize()
            at_rate = f", at {asked['rate']}" if is_slow else ""
            if found.run_again:
                echo(f"{run_again(found.run_again)}.", err=True)
            confirm(f"{with_object(title, _what(verb, selection, found.count))}{at_rate}?")
        given = [each for each in verb.options if asked.get(each.name)]
        for each in given:
            if each.warning and not yes:
                confirm(each.warning)
        total, is_one = found.count if found else None, len(selection.ids or ()) == 1
        with counting(verb.doing.capitalize(), total, is_one=is_one) as show:
            if any(each.stops_if for each in given):
                with stopping() as stop:
                    done = change(selection, progress=show, stop=stop, **asked)
            else:
                done = change(selection, progress=show, **asked)
    except NotMarkedRevokedError as exc:
        show_done(verb, exc.done, selection.states(verb.states), messages, as_json)
        echo_all((f"{id} not marked" for id in exc.ids), err=True)
        if more := exc.done.unmarked - len(exc.ids):
            echo(f"{more:,} more not marked", err=True)
        raise click.ClickException(str(exc)) from exc
    except ValueError as exc:
        raise click.UsageError(_as_options(str(exc), verb)) from exc
    _show(verb, selection, done, messages, as_json)


def _as_options(error: str, verb: Verb) -> str:
    """*error*, with the arguments of the verb written as options."""
    options = {each.name: each.option for each in verb.options}
    pattern = rf"(?<!\w)({'|'.join(options)})(?!\w)"
    return re.sub(pattern, lambda found: options[found[1]], error) if options else error


def _show(verb: Verb, selection: Selection, done: Done, messages: Messages, as_json: bool) -> None:
    show_done(verb, done, selection.states(verb.states), messages, as_json)
    matches = done or done.blocked or done.without_message or done.returned
    if not matches and selection.error is not None and not as_json:
        _tell_errors(selection, messages)
    exit_unless_done(done)


def _tell_errors(selection: Selection, messages: Messages) -> None:
    """Say which errors there are: a name may be wrong in one letter."""
    groups = messages.failures(Selection(queue=selection.queue))
    errors = list(dict.fromkeys(group.error for group in groups))
    if errors:
        echo(f"There are the errors {first_of(errors, MOST_ERRORS)}. Case counts.", err=True)


def _what(verb: Verb, selection: Selection, count: int) -> str:
    """The messages that were counted, for the question."""
    states = selection.states(verb.states)
    noun = states[0].described if len(states) == 1 else f"{' or '.join(each.name for each in states)} message"
    queues = list(selection.queue or ())
    if not queues:
        of_queues = "of all queues"
    else:
        of_queues = f"of the queue{'s' if len(queues) > 1 else ''} {', '.join(map(repr, queues))}"
    filters = "".join(f", {each.said} {value}" for each, value in selection.filters)
    expired = ", only those that have expired" if selection.expired else ""
    return f"{number_of(count, noun)} {of_queues}{filters}{expired}"
