"""The group of commands. It imports a command when it is called, and shows an error as one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from kombu_redisdelay.words import sentence

#: Optional package -> the extra that installs it.
_EXTRAS = {
    "rich": "cli",
    "prometheus_client": "metrics",
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "web"),
}


class LazyGroup(click.Group):
    """A group of commands that are imported only when they are needed.

    Arguments:
        package: the package with a module for each command. For example, the command ``timeline`` is the
            object ``command`` in the module ``timeline``.
        commands: the names of these commands.
        others: a module of the package whose function ``commands`` returns other commands by their names.
        others_after: the command after which the help lists them.
        hints: name of a command that does not exist -> what to use instead.
    """

    def __init__(
        self,
        name: str,
        *,
        package: str,
        commands: Sequence[str],
        others: str,
        others_after: str,
        hints: Mapping[str, str],
        help: str,
    ) -> None:
        version = click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version of kombu-redisdelay.",
        )
        # Celery wraps the callback of every command if the app has its own options, so there must be one.
        super().__init__(name, help=help, params=[version], callback=lambda **kwargs: None)
        self._package = package
        self._names = commands
        self._module_of_others = others
        self._first = commands.index(others_after) + 1
        self._hints = hints

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._names[: self._first], *self._others(), *self._names[self._first :]]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return self._others().get(cmd_name)
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return command

    def _others(self) -> dict[str, click.Command]:
        commands: dict[str, click.Command] = import_module(
            f"{self._package}.{self._module_of_others}"
        ).commands()
        return commands

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            if args[0] in self._hints:
                raise click.UsageError(f"{exc.message} Use {self._hints[args[0]]}.", ctx) from exc
            close = get_close_matches(args[0], self.list_commands(ctx))
            if close:
                message = f"{exc.message} Did you mean {' or '.join(map(repr, close))}?"
                raise click.UsageError(message, ctx) from exc
            raise

    def invoke(self, ctx: click.Context) -> Any:
        # These imports are not at the top because Celery imports this file for each of its own commands.
        from kombu_redisdelay.operations.viewers import BROKER_ERRORS, why
        from kombu_redisdelay.refusals import refusal_of
        from kombu_redisdelay.words import printable

        try:
            return super().invoke(ctx)
        except click.ClickException as exc:
            # The help of a group without a command is also such an error, and it has many lines.
            first, *more = map(printable, f"{exc.message}{_hint(exc)}".split("\n"))
            message = "\n".join((first, *more)) if more or not first else sentence(first)
            exc.message = message  # type: ignore[misc, unused-ignore]
            raise
        except BROKER_ERRORS as exc:
            # redis-py begins with the number of the error.
            said = re.sub(r"^Error -?\d+ (?=connecting)", "failed ", why(exc))
            prefix = "" if refusal_of(exc) else "Redis: "
            raise click.ClickException(sentence(f"{prefix}{said}")) from exc
        except ModuleNotFoundError as exc:
            # A command imports optional packages when it runs, so that its help always works.
            missing = (exc.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            needs = f"Needs {missing}: pip install 'kombu-redisdelay[{_EXTRAS[missing]}]'"
            raise click.ClickException(needs) from exc


def _hint(exc: click.ClickException) -> str:
    """What to use instead of arguments that a command does not take."""
    command = exc.ctx.command if isinstance(exc, click.UsageError) and exc.ctx else None
    if command is None or not exc.message.startswith("Got unexpected extra argument"):
        return ""
    ids = " `show` takes ids." if any(each.name == "states" for each in command.params) else ""
    queues = " Name queues with -Q." if any(each.name == "queues" for each in command.params) else ""
    return f".{queues}{ids}"


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from kombu_redisdelay import __version__
        from kombu_redisdelay.cli.echo import echo

        echo(f"kombu-redisdelay {__version__}")
        ctx.exit()
