"""Options that several commands share, and those of parameters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone, tzinfo
from typing import Any, TypeVar

import click

from kombu_redisdelay.operations.fair import NO_KEY, checked_key, written_key
from kombu_redisdelay.operations.message import ARGUMENTS
from kombu_redisdelay.operations.parameters import FLAG, Parameter, ParameterType

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")


def check_queues(ctx: click.Context, param: click.Parameter, queues: tuple[str, ...]) -> tuple[str, ...]:
    """
    Raises:
        click.BadParameter: a name is empty.
    """
    # Such as -Q "$QUEUE" with a variable that is not set.
    if "" in queues:
        raise click.BadParameter("the name of a queue is empty")
    return queues


queues_option = click.option(
    "-Q",
    "--queue",
    "queues",
    multiple=True,
    callback=check_queues,
    help="Only this queue; may be given again.",
)
force_option = click.option(
    "--force", is_flag=True, help="Also for a queue that nobody has used and the app does not declare."
)


def _check_keys(ctx: click.Context, param: click.Parameter, keys: tuple[str, ...]) -> tuple[str, ...]:
    if "" in keys:
        # A script with an empty variable.
        raise click.BadParameter(f"it is empty; the key of messages without one is {NO_KEY}")
    try:
        return tuple(dict.fromkeys(checked_key(written_key(key)) for key in keys))
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


keys_option = click.option(
    "--key",
    "keys",
    multiple=True,
    callback=_check_keys,
    help=f"Only this key of a fair queue, such as a tenant; {NO_KEY} is messages without one. "
    "May be given again.",
)
every_option = click.option(
    "--all", "every", is_flag=True, help="All of them, or those that the other options pick."
)
all_option = click.option("--all", "every", is_flag=True, help="All queues that are known.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing, say how many it would be.")


def arguments_option(default: str) -> Callable[[FunctionT], FunctionT]:
    """What to show of the arguments of tasks."""
    return click.option(
        "--show-arguments",
        "arguments",
        type=click.Choice(ARGUMENTS),
        default=default,
        show_default=True,
        help="What to show of the arguments of tasks, which may hold secrets.",
    )


class Typed(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """What is read as a type of parameters says. Without an offset, a moment is in the app's timezone."""

    def __init__(self, type: ParameterType) -> None:
        self.name, self._read = type

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value, _timezone(ctx)) if isinstance(value, str) else value
        except ValueError as exc:
            self.fail(str(exc))


def option_of(parameter: Parameter) -> Callable[[FunctionT], FunctionT]:
    """The option that asks for *parameter*."""
    if parameter.type is FLAG:
        return click.option(parameter.option, is_flag=True, help=parameter.help)
    type, is_required = Typed(parameter.type), parameter.is_required
    return click.option(parameter.option, type=type, required=is_required, help=parameter.help)


def _timezone(context: click.Context | None) -> tzinfo:
    app = getattr(getattr(context, "obj", None), "app", None)
    return timezone.utc if app is None else app.timezone
