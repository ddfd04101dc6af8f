"""The options by which commands select messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from kombu_redisdelay.cli.options import FunctionT, Typed, every_option, queues_option
from kombu_redisdelay.operations.filters import FILTERS, Filter
from kombu_redisdelay.operations.parameters import TIME
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FINISHED, State

_DISTANCES = "90s, 10m, 2h, 3d or 1w from now for scheduled messages, else ago; or ISO 8601"


def _once(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    # click would take the last one, and a command would change more messages than was meant.
    if len(values) > 1:
        raise click.BadParameter("give it once; * stands for anything")
    if "" in values:
        # A script with an empty variable.
        raise click.BadParameter("it is empty; * stands for anything")
    return values[0] if values else None


class StateType(click.Choice):  # type: ignore[type-arg, unused-ignore]
    """One of some states."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == FINISHED and FINISHED not in self.choices:
            # Somebody may want to be rid of them.
            self.fail(
                "finished tasks are no messages. Their lines expire when the queue has had none for the age "
                "of keep_finished; to remove them now, delete the key redisdelay:{QUEUE}:finished in Redis.",
                *(param, ctx),
            )
        return super().convert(value, param, ctx)


def _filter_option(filter: Filter) -> Callable[[FunctionT], FunctionT]:
    return click.option(f"--{filter.name}", multiple=True, callback=_once, help=filter.help)


def selecting(states: Sequence[str]) -> Callable[[FunctionT], FunctionT]:
    """Options that select messages in some of these *states*."""

    def decorate(command: FunctionT) -> FunctionT:
        options = [
            queues_option,
            click.option(
                "--state",
                "states",
                multiple=True,
                type=StateType(states),
                help="Only in this state; may be given again.",
            ),
            *(_filter_option(each) for each in FILTERS if each.may_match(states)),
            click.option("--expired", is_flag=True, help="Only tasks that have expired."),
            click.option("--before", type=Typed(TIME), help=f"Only with a time before this: {_DISTANCES}."),
            click.option("--after", type=Typed(TIME), help="Only with this time, or a later one."),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def changing(states: Sequence[str]) -> Callable[[FunctionT], FunctionT]:
    """Options that select messages for a command that changes them, its ids, and ``--all``."""

    def decorate(command: FunctionT) -> FunctionT:
        command = selecting(states)(every_option(command))
        return click.argument("ids", nargs=-1, metavar="[ID...]")(command)

    return decorate


def selected(options: dict[str, Any]) -> Selection:
    """What the options of :func:`selecting` select. They are taken out of *options*."""
    names = ("before", "after", "expired", *(each.name for each in FILTERS))
    values = {name: options.pop(name) for name in names if name in options}
    values["queue"], values["state"] = options.pop("queues") or None, options.pop("states") or None
    selection = _selection(values)
    for each, _ in selection.filters:
        if selection.state is not None and not each.may_match(tuple(selection.state)):
            raise click.UsageError(f"--{each.name} needs --state {' or '.join(each.states)}.")
    return selection


def states_of(selection: Selection) -> list[State]:
    """The states to look at.

    Raises:
        click.UsageError: a time is selected, and more than one state.
    """
    try:
        return selection.states()
    except ValueError as exc:
        raise click.UsageError(f"{exc}. Choose one with --state.") from exc


def selected_for_change(options: dict[str, Any]) -> Selection:
    """What the options and ids of :func:`changing` select. A script whose variable is empty must not change
    all messages.

    Raises:
        click.UsageError: messages are selected both by ids and by what they have in common, or by neither.
    """
    ids, every = options.pop("ids"), options.pop("every")
    selection = selected(options)
    has_something_in_common = bool(selection.filters) or selection.has_times or selection.expired
    if "" in ids:
        raise click.UsageError("An id is empty.")
    if ids and (every or has_something_in_common):
        raise click.UsageError("Give either ids, or options that pick messages, not both.")
    if not ids and not every and not has_something_in_common and selection.queue is None:
        known = click.get_current_context().params
        picking = ", ".join(f"--{each.name}" for each in FILTERS if each.name in known)
        raise click.UsageError(
            f"Say which messages: by ids, -Q, {picking}, --expired, --before or --after, or --all."
        )
    if ids:
        return _selection({"ids": ids, "queue": selection.queue, "state": selection.state})
    return replace(selection, every=every)


def _selection(values: dict[str, Any]) -> Selection:
    try:
        return Selection(**values)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
