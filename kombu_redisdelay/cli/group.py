"""The group of commands. It imports a command when it is called, and shows an error as one line."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

#: Package that a command imports -> the extra that installs it.
_EXTRAS = {"rich": "cli", "prometheus_client": "metrics"}


class LazyGroup(click.Group):
    """A group of commands that are imported only when they are needed.

    Arguments:
        package: the package with a module for each command. For example, the command ``deliver-now`` is the
            object ``command`` in the module ``deliver_now``.
        commands: the names of the commands.
    """

    def __init__(self, name: str, *, package: str, commands: Sequence[str], help: str) -> None:
        # Celery wraps the callback of every command if the app has its own options, so there must be one.
        super().__init__(name, help=help, callback=lambda **kwargs: None)
        self._package = package
        self._names = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return None
        try:
            module = import_module(f"{self._package}.{cmd_name.replace('-', '_')}")
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            why = f"Needs {missing}: pip install 'kombu-redisdelay[{_EXTRAS[missing]}]'"
            return _unavailable(cmd_name, why)
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        # These imports are not at the top because Celery imports this file for each of its own commands.
        from kombu_redisdelay.broker.printable import printable
        from kombu_redisdelay.operations.errors import BROKER_ERRORS

        try:
            return super().invoke(ctx)
        except click.ClickException as exc:
            # Handle each line on its own: the help of a group without a command is also such an error, and it
            # has many lines.
            lines = map(printable, exc.message.split("\n"))
            exc.message = "\n".join(lines)  # type: ignore[misc, unused-ignore]
            raise
        except BROKER_ERRORS as exc:
            raise click.ClickException(printable(f"Redis: {' '.join(str(exc).split())}")) from exc


def _unavailable(name: str, why: str) -> click.Command:
    """Return a replacement for a command that cannot be imported, so that all commands can be listed."""

    def fail() -> None:
        raise click.ClickException(why)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=fail, short_help=why, context_settings=anything)
