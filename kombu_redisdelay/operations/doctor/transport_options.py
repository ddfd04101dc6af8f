"""Whether each transport option is one that somebody reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning
from kombu_redisdelay.transport.option_names import unknown_options


def check_transport_options(transport_options: Mapping[str, Any]) -> Iterator[Finding]:
    check = "transport options"
    unknown = unknown_options(transport_options)
    if not unknown:
        yield ok(check, "all are known")
    for name, nearest in unknown.items():
        advice = (
            "Take it out of broker_transport_options, unless another program reads it there."
            if nearest is None
            else f"Did you mean {nearest!r}?"
        )
        yield warning(check, f"{name!r} is unknown, and has no effect", advice)
