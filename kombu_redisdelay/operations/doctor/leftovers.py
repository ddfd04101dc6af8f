"""Checks for messages that workers of kombu's own ``redis://`` transport have taken and not acked."""

from __future__ import annotations

from collections.abc import Iterator

from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.words import number_of

#: Seconds after which a ``redis://`` worker gives back the messages of another one, by default.
STOCK_VISIBILITY_TIMEOUT = 3600


def check_leftovers(server: Server, unacked_key: str, unacked_index_key: str) -> Iterator[Finding]:
    """
    Arguments:
        unacked_key: key of a hash: delivery tag -> message.
        unacked_index_key: key of a zset: delivery tag -> when the message was taken, seconds since the epoch.
    """
    check = "redis:// leftovers"
    try:
        count = server.call("HLEN", unacked_key)
    except NoPermissionError:
        # Only this check needs the permission.
        yield ok(check, f"not looked for: this user may not read {unacked_key!r}")
        return
    if not count:
        yield ok(check, "none")
        return
    seconds, _ = server.call("TIME")
    old = server.call("ZCOUNT", unacked_index_key, "-inf", int(seconds) - STOCK_VISIBILITY_TIMEOUT)
    found = f"{number_of(count)} in {unacked_key!r}, where redis:// workers keep what they have taken"
    if old:
        yield wrong(
            check,
            f"{found}; {old} for more than an hour",
            "Unless a redis:// worker holds them for a long countdown or task, nobody will deliver them: see "
            "`celery delayed adopt --dry-run`, which tells whether one is connected, then run it "
            "without.",
        )
    else:
        yield warning(
            check,
            found,
            "Stop redis:// workers with SIGTERM: they give these back, countdown tasks too, which then wait "
            "in the schedule. If none is left, run `celery delayed adopt`.",
        )
