"""From the command line to the broker: the app, its connection, its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click

from kombu_redisdelay.access import Access

AccessT = TypeVar("AccessT", bound=Access)


def connect(how: type[AccessT]) -> AccessT:
    """Open the broker of the app that ``celery -A`` names, until the command has ended.

    Raises:
        click.ClickException: the app has a broker of another kind, or its URL or an option makes no sense.
    """
    context = click.get_current_context()
    try:
        access = how(context.obj.app)
    except (TypeError, ValueError) as exc:
        raise click.ClickException(str(exc)) from exc
    context.call_on_close(access.close)
    return access


def queue_names(access: Access, selected: Sequence[str]) -> list[str]:
    """The queues *selected* by option, else all: those that the broker remembers and those of the app."""
    return list(dict.fromkeys(selected)) or sorted({*access.queues(), *access.app.amqp.queues})
