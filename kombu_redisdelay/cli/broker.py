"""From the command line to the broker: the app, its connection, its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click

from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.access import Access

AccessT = TypeVar("AccessT", bound=Access)


def connect(how: type[AccessT]) -> AccessT:
    """Open the broker of the app that ``celery -A`` names, until the command has ended. Warn of queues that
    this command was given and nobody knows: nothing is in them because they are misspelt.

    Raises:
        click.ClickException: the app has a broker of another kind, or its URL or an option makes no sense.
    """
    context = click.get_current_context()
    try:
        access = how(context.obj.app)
    except (TypeError, ValueError) as exc:
        raise click.ClickException(str(exc)) from exc
    context.call_on_close(access.close)
    unknown = set(_selected(context)).difference(access.app.amqp.queues)
    if unknown:
        for queue in sorted(unknown.difference(access.queues())):
            if not access.store.exists(queue):
                echo(f"Nobody has used a queue {queue!r} yet.", err=True)
    return access


def _selected(context: click.Context) -> Sequence[str]:
    """What the options -Q of a command say (:mod:`kombu_redisdelay.cli.options`)."""
    queue: str | None = context.params.get("queue")
    queues: Sequence[str] = context.params.get("queues", ())
    return queues if queue is None else [queue]


def queue_names(access: Access, selected: Sequence[str]) -> list[str]:
    """The queues *selected* by option, else all: those that the broker remembers and those of the app."""
    return list(dict.fromkeys(selected)) or sorted({*access.queues(), *access.app.amqp.queues})
