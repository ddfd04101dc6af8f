"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import click
from dateutil.parser import isoparse

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
queues_option = click.option(
    "-Q", "--queue", "queues", multiple=True, help="Only this queue; may be given again."
)
queue_option = click.option("-Q", "--queue", help="Only this queue.")
task_option = click.option("--task", help="Only tasks of this name.")
all_option = click.option("--all", "every", is_flag=True, help="All queues that are known.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class FromNow(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time, given as time from now (90, 90s, 10m, 2h, 3d, 1w) or in ISO 8601. Without an offset, it is in
    UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", value)
        try:
            if match:
                seconds = float(match[1]) * _UNITS[match[2] or "s"]
                return datetime.now(timezone.utc) + timedelta(seconds=seconds)
            moment = isoparse(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is neither a time from now, such as 90s, 10m, 2h or 3d, nor ISO 8601.")
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


class Iso8601(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A time in ISO 8601. Without an offset, it is in UTC."""

    name = "iso8601"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = value if isinstance(value, datetime) else isoparse(value)
        except ValueError:
            self.fail(f"{value!r} is not a date and time in ISO 8601.")
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
