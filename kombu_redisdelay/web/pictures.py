"""Pictures as SVG: bars with a text for each, which screen readers get as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
