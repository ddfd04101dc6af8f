"""`celery delayed history`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest

from kombu_redisdelay.broker.known_queues import record
from tests.cli.site import QUEUE, Site


def _write(site: Site, queue: str, unit: str, *lines: tuple[timedelta, int, str]) -> None:
    """Write periods that have ended: how long ago each began, how many seconds it had, and its counts."""
    text = "\n".join(
        f"{site.now_ms() // 1000 - int(ago.total_seconds())} {seconds} {counts}"
        for ago, seconds, counts in lines
    )
    site.redis.hset(site.store.keys(queue).history, unit, text)


def test_what_has_happened_in_the_minute_that_has_not_ended(site: Site) -> None:
    with site.app.connection_for_read() as connection:
        channel = connection.channel()
        site.send()
        channel.basic_get(QUEUE).ack()
        # It begins now.
        record(site.store, [QUEUE])
        site.send()
        site.send()
        channel.basic_get(QUEUE).reject(requeue=True)
        channel.basic_get(QUEUE).ack()
        [row] = site.rows("history")
    began = datetime.fromisoformat(row.pop("start"))
    assert timedelta(0) <= datetime.now(timezone.utc) - began < timedelta(minutes=1)
    assert row.pop("seconds") < 60
    counts = {
        "published": 2,
        "delivered": 2,
        "failures": 1,
        "dead": 0,
        "dropped": 0,
        "replaced": 0,
        "failed": 0,
        "failed_dropped": 0,
        "returned": 0,
        "continuations": 0,
    }
    assert row == {"queue": QUEUE, **counts}


@pytest.mark.parametrize(
    ("by", "unit", "ago"),
    [("minute", "minutes", timedelta(minutes=1)), ("hour", "hours", timedelta(hours=1))],
)
def test_the_queues_are_shown_together_and_summed(site: Site, by: str, unit: str, ago: timedelta) -> None:
    seconds = int(ago.total_seconds())
    _write(
        site, "emails", unit, (5 * ago, seconds, "4 40 0 0 0 0 0 0"), (2 * ago, seconds, "1 20 2 1 0 0 0 0")
    )
    _write(site, "letters", unit, (5 * ago, seconds, "10 0 3 0 0 0 0 0"))
    for queue in ("emails", "letters"):
        site.store.remember(queue)
        site.redis.zadd(site.store.keys(queue).schedule, {"id": 2**50})
    periods, _, queues = site.text("history", "--by", by).partition("\n\n")
    lines = [line.split() for line in periods.replace("AT (UTC)", "AT").splitlines()]
    # A day and a time, or a time.
    at = 1 if by == "minute" else 2
    assert lines[0] == ["AT", "BEGAN", "PUBLISHED", "DELIVERED", "FAILURES", "DEAD"]
    assert [line[at:][2:6] for line in lines[1:]] == [["14", "40", "3", "0"], ["1", "20", "2", "1"]]
    assert [len(line[at:][6]) for line in lines[1:]] == [20, 10]
    assert [line.split() for line in queues.splitlines()] == [
        ["QUEUE", "PUBLISHED", "DELIVERED", "FAILURES", "DEAD"],
        ["emails", "5", "60", "2", "1"],
        ["letters", "10", "0", "3", "0"],
    ]
    rows = site.rows("history", "--by", by, "-Q", "letters")
    assert [(row["queue"], row["seconds"], row["published"]) for row in rows] == [("letters", seconds, 10)]


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("Asia/Tokyo", 9)])
def test_the_time_of_the_day_is_that_of_the_app(site: Site, zone: str, hours: int) -> None:
    site.app.conf.timezone = zone
    began = timedelta(minutes=40)
    _write(site, QUEUE, "minutes", (began, 60, "1 2 3 4 0 0 0 0"))
    [row] = site.rows("history")
    expected = datetime.fromisoformat(row["start"]) + timedelta(hours=hours)
    header, line, *_ = site.text("history").splitlines()
    assert header.startswith(f"AT ({zone}) ")
    assert line.startswith(f"{expected:%H:%M:%S} ")


def test_a_period_without_anything_is_left_out(site: Site) -> None:
    with site.app.connection_for_read() as connection:
        site.send()
        connection.channel().basic_get(QUEUE).ack()
        # The minute that begins now has not ended.
        record(site.store, [QUEUE])
    assert site.rows("history") == []
    result = site.run("history", "--json")
    assert (result.stdout, result.stderr.partition(".")[0]) == ("", "Nothing is recorded of the last hour")
    _write(site, QUEUE, "minutes", (timedelta(minutes=3), 60, "1 2 3 4 0 0 0 0"))
    assert len(site.rows("history")) == 1
    assert len(site.text("history").partition("\n\n")[0].splitlines()) == 2


def test_a_period_that_was_longer_says_so(site: Site) -> None:
    _write(site, QUEUE, "minutes", (timedelta(minutes=40), 1500, "1 2 3 4 0 0 0 0"))
    line = site.text("history").splitlines()[1]
    assert re.match(r"\d\d:\d\d:\d\d +40m\d*s? ago, for 25m +1 +2 +3 +4 ", line)


def test_without_a_history_it_says_so(site: Site) -> None:
    site.send()
    result = site.run("history")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("Nothing is recorded of the last hour. ")
    assert site.rows("history") == []


def test_what_was_dropped_and_replaced_has_columns_where_there_is_any(site: Site) -> None:
    minute = timedelta(minutes=1)
    _write(site, "sync", "minutes", (3 * minute, 60, "1 0 0 0 12 0 0 0"), (2 * minute, 60, "1 0 0 0 3 0 0 0"))
    site.store.remember("sync")
    site.redis.zadd(site.store.keys("sync").schedule, {"id": 2**50})
    periods, _, queues = site.text("history").replace("AT (UTC)", "AT").partition("\n\n")
    header, *lines = [line.split() for line in periods.splitlines()]
    assert header[-3:] == ["FAILURES", "DEAD", "DROPPED"]
    assert [line[-2:] for line in lines] == [["0", "12"], ["0", "3"]]
    assert [line.split()[-1] for line in queues.splitlines()] == ["DROPPED", "15"]
    assert [(row["dropped"], row["replaced"]) for row in site.rows("history")] == [(12, 0), (3, 0)]
