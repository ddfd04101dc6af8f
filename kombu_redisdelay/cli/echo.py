"""Prints lines of text. Every command prints its text lines with these functions."""

from __future__ import annotations

import click

from kombu_redisdelay.broker.printable import printable


def echo(line: str, *, err: bool = False) -> None:
    """Print *line* to standard output, or to standard error if *err* is set."""
    click.echo(printable(line), err=err)


def confirm(question: str) -> None:
    """Ask *question* on standard error.

    Raises:
        click.Abort: the answer is not yes.
    """
    click.confirm(printable(question), abort=True, err=True)
