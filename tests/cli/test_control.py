"""`celery delayed pause`, `resume` and `limit`."""

from __future__ import annotations

import pytest

from kombu_redisdelay.operations.control import queue_controls
from tests.cli.site import QUEUE, Site


def test_pausing_and_resuming(site: Site) -> None:
    assert site.text("pause", "-Q", "a", "-Q", "b") == "a paused\nb paused\n"
    assert [row["control"]["paused_since"] is not None for row in site.rows("stats")] == [True, True, False]
    assert "a is paused, for " in site.text("stats")
    assert site.text("resume", "--all") == "a resumed\nb resumed\ncelery resumed\n"
    assert [row["control"]["paused_since"] for row in site.rows("stats")] == [None] * len(site.rows("stats"))


def test_limiting(site: Site) -> None:
    limits = ("--rate", "100/m", "--burst", "10", "--concurrency", "20")
    assert site.text("limit", "-Q", QUEUE, *limits) == "celery: 100/m, burst 10, concurrency 20\n"
    assert site.text("limit") == "celery: 100/m, burst 10, concurrency 20\n"
    [row] = site.rows("limit")
    assert (row["queue"], row["rate"], row["burst"], row["concurrency"]) == (QUEUE, "100/m", 10, 20)
    assert "celery is limited: 100/m, burst 10, concurrency 20\n" in site.text("stats")
    # The new limits replace the old ones.
    replaced = "celery: concurrency 3 (no more: 100/m, burst 10)\n"
    assert site.text("limit", "-Q", QUEUE, "--concurrency", "3") == replaced
    assert site.text("limit", "-Q", QUEUE, "--concurrency", "4") == "celery: concurrency 4\n"
    replaced = "celery: 120/m, burst 2 (no more: concurrency 4)\n"
    assert site.text("limit", "-Q", QUEUE, "--rate", "120/m") == replaced
    assert site.text("limit", "-Q", QUEUE, "--clear") == "celery: no limits (no more: 2/s, burst 2)\n"
    assert site.text("limit", "-Q", QUEUE, "--rate", "10") == "celery: 10/s, burst 10\n"
    assert site.text("limit", "-Q", QUEUE, "--clear") == "celery: no limits (no more: 10/s, burst 10)\n"
    assert site.run("limit").stderr == "No queue has a limit.\n"
    assert not queue_controls(site.store, [QUEUE])[0].is_limited


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pause",), "Name the queues with -Q, or give --all."),
        (("resume",), "Name the queues with -Q, or give --all."),
        (("pause", "--all", "-Q", "a"), "Name the queues with -Q, or give --all."),
        (("limit", "--rate", "1/s"), "Name the queue with -Q."),
        (("limit", "--clear"), "Name the queue with -Q."),
        (("limit", "-Q", "a", "--clear", "--rate", "1/s"), "--clear goes without"),
        (("limit", "-Q", "a", "--rate", "often"), "such as 10/s, 100/m or 1000/h, not 'often'"),
        (("limit", "-Q", "a", "--burst", "2"), "Burst needs a rate."),
        (("limit", "-Q", "a", "--concurrency", "0"), "Concurrency must be a whole number from 1, not 0."),
    ],
)
def test_wrong_use(site: Site, words: tuple[str, ...], message: str) -> None:
    result = site.run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not any(control.is_paused or control.is_limited for control in queue_controls(site.store, ["a"]))
