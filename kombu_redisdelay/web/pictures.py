"""Pictures as SVG: bars with a text for each, which screen readers get as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kombu_redisdelay.operations.history import Counts, Period

MINUTE, HOUR, DAY, WEEK = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: what it stands for.
        value: how much it is.
        style: its class in the style sheet.
        x, y, width, height: where it is, of a picture of 100 x 100.
    """

    label: str
    value: int
    style: str
    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[tuple[str, int]], style: str = "bar", gap: float = 0.15) -> list[Bar]:
    """Return a bar for each label and value, from left to right. The highest one is as high as the picture;
    each value above 0 can be seen."""
    largest = max((value for _, value in values), default=0) or 1
    step = 100 / max(1, len(values))
    found = []
    for index, (label, value) in enumerate(values):
        height = max(1.5, 100 * value / largest) if value > 0 else 0.0
        found.append(
            Bar(
                label,
                value,
                style,
                round(index * step + step * gap / 2, 3),
                round(100 - height, 3),
                round(step * (1 - gap), 3),
                round(height, 3),
            )
        )
    return found


def happened(
    periods: Sequence[Period],
    number: Callable[[Counts], int],
    now: datetime,
    unit: timedelta,
    long: timedelta,
) -> list[Bar]:
    """How much has happened, as a bar for each minute or hour. A period that took longer, because the queue
    had no maintenance, is where it began.

    Arguments:
        number: which of the numbers of a period.
        unit: :data:`MINUTE` or :data:`HOUR`.
        long: how far back it goes.
    """
    count = long // unit
    last = int(now.timestamp() // unit.total_seconds())
    values = [0] * count
    for period in periods:
        if period.start + timedelta(seconds=period.seconds) <= now - long:
            continue
        # It may have begun before the first bar. The server's clock may be ahead of ours.
        age = max(0, last - int(period.start.timestamp() // unit.total_seconds()))
        values[count - 1 - min(age, count - 1)] += number(period.counts)
    begins = (now - (count - 1 - index) * unit for index in range(count))
    form = "%a %H:%M UTC" if unit < HOUR else "%a %H:00 UTC"
    return bars([(f"{begin:{form}}", value) for begin, value in zip(begins, values, strict=True)])
