"""Checks the length of a lease. Users who come from ``redis://`` may have kept their old setting."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.broker.options import LONG_LEASE, Options
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning


def check_lease(options: Options) -> Iterator[Finding]:
    check, timeout = "visibility_timeout", options.visibility_timeout
    if timeout <= LONG_LEASE:
        yield ok(check, f"{timeout:g} seconds")
        return
    yield warning(
        check,
        f"{timeout:g} seconds, for which the messages of a worker that dies may stay away",
        f"Take it out of broker_transport_options: the default of {Options().visibility_timeout:g} does not "
        "limit how long a task may take or wait.",
    )
