"""Prints lines of text. Every command prints its text lines with these functions."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable

import click
from click.core import ParameterSource
from kombu.utils.url import maybe_sanitize_url

from kombu_redisdelay.words import printable

#: The exit status when the output is not read any more, as with ``| head``. Shells report it for a tool that
#: SIGPIPE has ended.
BROKEN_PIPE = 141


#: Options of ``celery`` itself that say which broker a command is about, each with its short form.
_GIVEN = {"app": "-A", "broker": "-b"}


def as_called(text: str) -> str:
    """*text*, in which commands of Celery get the app and the broker that this one was called with, so that
    they can be copied. Passwords are left out."""
    called = click.get_current_context().find_root()
    given = [
        f"{option} {shlex.quote(maybe_sanitize_url(called.params[name]))}"
        for name, option in _GIVEN.items()
        if called.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    return re.sub("`celery (?=amqp |delayed |inspect )", lambda _: " ".join(("`celery", *given, "")), text)


def echo(line: str, *, err: bool = False) -> None:
    """Print *line* to standard output, or to standard error if *err* is set.

    Raises:
        click.exceptions.Exit: the output is not read any more.
        click.ClickException: it cannot be written, for example because a disk is full.
    """
    echo_all([line], err=err)


def echo_all(lines: Iterable[str], *, err: bool = False) -> None:
    """Print *lines* as :func:`echo` does, all at once."""
    text = "".join(f"{printable(line)}\n" for line in lines)
    # A file or a pipe of Windows has not each character.
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    try:
        click.echo(text, nl=False, err=err)
    except BrokenPipeError:
        # Python writes the rest of its buffer when it ends, and would report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        raise click.ClickException(f"Cannot write: {exc.strerror}.") from exc


def confirm(question: str) -> None:
    """Ask *question* on standard error.

    Raises:
        click.Abort: the answer is not yes.
        click.UsageError: standard input is not a terminal, and has no answer.
    """
    try:
        is_confirmed = click.confirm(printable(question), err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        # The line of the question has not ended.
        click.echo("", err=True)
        raise click.UsageError("Nobody has answered. Without a terminal, give --yes.") from None
    if not is_confirmed:
        raise click.Abort
