"""Checks whether each transport option has an effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning


def check_transport_options(unknown: Mapping[str, str | None]) -> Iterator[Finding]:
    """
    Arguments:
        unknown: unknown option -> the known option that it resembles, ``None`` if there is no such option.
    """
    check = "transport options"
    if not unknown:
        yield ok(check, "all are known")
    for name, nearest in unknown.items():
        advice = (
            "Take it out of broker_transport_options, unless another program reads it there."
            if nearest is None
            else f"Did you mean {nearest!r}?"
        )
        yield warning(check, f"{name!r} is unknown, and has no effect", advice)
