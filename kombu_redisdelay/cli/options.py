"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, TypeVar

import click
from dateutil.parser import isoparse

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
queues_option = click.option(
    "-Q", "--queue", "queues", multiple=True, help="Only this queue; may be given again."
)
task_option = click.option("--task", help="Only tasks of this name, in which * stands for anything.")
all_option = click.option("--all", "every", is_flag=True, help="All queues that are known.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing, say how many it would be.")


class Time(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time: a ``timedelta`` for a distance from now (90, 90s, 10m, 2h, 3d, 1w), else an aware ``datetime``,
    in ISO 8601. Without an offset, it is in the app's timezone."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            distance = _distance(value)
            if distance is not None:
                # Both must be times that there are.
                _ = from_now(distance), ago(distance)
                return distance
            moment = isoparse(value)
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is neither a distance from now, such as 90s, 10m, 2h, 3d or 1w, nor a time in "
                "ISO 8601."
            )
        return moment if moment.tzinfo else moment.replace(tzinfo=_timezone(ctx))


class Moment(Time):
    """A time in ISO 8601. Without an offset, it is in the app's timezone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        moment = (
            None if isinstance(value, str) and _SPAN.fullmatch(value) else super().convert(value, param, ctx)
        )
        if not isinstance(moment, datetime):
            self.fail(f"{value!r} is not a time in ISO 8601, such as 2027-01-01T09:00.")
        return moment


class Seconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A length of time (90, 90s, 10m, 2h, 3d, 1w), in seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            distance = _distance(value)
        except OverflowError:
            distance = None
        if distance is None:
            self.fail(f"{value!r} is not a length of time, such as 90, 90s, 10m, 2h, 3d or 1w.")
        return distance.total_seconds()


def from_now(time: datetime | timedelta | None) -> datetime | None:
    """The moment of a :class:`Time`, whose distance is from now on."""
    return datetime.now(timezone.utc) + time if isinstance(time, timedelta) else time


def ago(time: datetime | timedelta | None) -> datetime | None:
    """The moment of a :class:`Time`, whose distance is back from now."""
    return datetime.now(timezone.utc) - time if isinstance(time, timedelta) else time


_DISTANCES = "90s, 10m, 2h, 3d or 1w"


def due_options(command: FunctionT) -> FunctionT:
    """Options that pick scheduled messages."""
    return _options(
        command,
        queues_option,
        task_option,
        click.option(
            "--before", type=Time(), help=f"Only what is due before: {_DISTANCES} from now, or ISO 8601."
        ),
        click.option("--after", type=Time(), help="Only what is due then or later."),
    )


def died_options(command: FunctionT) -> FunctionT:
    """Options that pick dead letters."""
    return _options(
        command,
        queues_option,
        task_option,
        click.option("--before", type=Time(), help=f"Only what died before: {_DISTANCES} ago, or ISO 8601."),
        click.option("--after", type=Time(), help="Only what died then or later."),
    )


def many_options(command: FunctionT) -> FunctionT:
    """Options of what changes many messages."""
    return _options(command, yes_option, dry_run_option)


def _options(command: FunctionT, *options: Callable[[FunctionT], FunctionT]) -> FunctionT:
    for option in reversed(options):
        command = option(command)
    return command


def check_choice(ids: Sequence[str], every: bool, *picked: object) -> None:
    """Check that messages are chosen either by id or by options.

    Arguments:
        ids: those of the command line.
        every: whether ``--all`` is given.
        picked: the values of the other options that pick messages.

    Raises:
        click.UsageError: they are chosen by both, or by neither.
    """
    # A distance of 0 is a time, too.
    if bool(ids) == (every or any(value not in (None, ()) for value in picked)):
        raise click.UsageError(
            "Give either ids, or pick messages by -Q, --task, --before and --after, or --all."
        )


def _distance(text: str) -> timedelta | None:
    match = _SPAN.fullmatch(text)
    return match and timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])


def _timezone(context: click.Context | None) -> tzinfo:
    app = getattr(getattr(context, "obj", None), "app", None)
    return timezone.utc if app is None else app.timezone
