"""How many rows a list shows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import click

from kombu_redisdelay.cli.echo import echo

T = TypeVar("T")

#: How many rows are shown on a terminal, unless an option says another number.
ON_A_TERMINAL = 100

limit_option = click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"At most this number; 0: all. By default {ON_A_TERMINAL} on a terminal, and else all.",
)


def rows_to_show(limit: int | None, as_json: bool) -> int | None:
    """How many rows to show; ``None`` for all.

    Arguments:
        limit: the value of the option.
    """
    if limit is None:
        return ON_A_TERMINAL if sys.stdout.isatty() and not as_json else None
    return limit or None


class Limited(Generic[T]):
    """The first of *items*, as many as may be shown.

    Attributes:
        are_left: whether there are more. It is known after the last one was read.
    """

    def __init__(self, items: Iterable[T], limit: int | None) -> None:
        self._items = items
        self._limit = limit
        self.are_left = False

    def __iter__(self) -> Iterator[T]:
        for index, item in enumerate(self._items):
            if index == self._limit:
                self.are_left = True
                return
            yield item

    def tell(self, count: Callable[[], int] | None) -> None:
        """Say on standard error if there are more.

        Arguments:
            count: counts all of them; ``None`` if that takes long.
        """
        if not self.are_left:
            return
        there_are = "there are more" if count is None else f"there are {count():,}"
        shown = "one" if self._limit == 1 else f"{self._limit:,}"
        echo(f"Only the first {shown}: {there_are}. See all with --limit 0.", err=True)
