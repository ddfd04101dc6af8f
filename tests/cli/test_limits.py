"""`celery delayed pause`, `resume` and `limit`."""

from __future__ import annotations

import pytest

from kombu_redisdelay.operations.limits import queue_limits
from tests.cli.site import QUEUE, Site


def test_pausing_and_resuming(site: Site) -> None:
    assert site.text("pause", "-Q", "a", "-Q", "b", "--force") == "a paused\nb paused\n"
    assert [row["limits"]["paused_since"] is not None for row in site.rows("stats")] == [True, True, False]
    assert "a has been paused for " in site.text("stats")
    since = [row["limits"]["paused_since"] for row in site.rows("stats")]
    assert site.text("pause", "-Q", "a") == "a was paused already\n"
    assert [row["limits"]["paused_since"] for row in site.rows("stats")] == since
    assert site.text("resume", "--all") == "a resumed\nb resumed\n"
    assert site.text("resume", "-Q", "a") == "a was not paused\n"
    assert site.rows("resume", "-Q", "a") == [{"queue": "a", "resumed": False}]
    assert site.run("resume", "--all").stderr == "No queue was paused.\n"
    assert [row["limits"]["paused_since"] for row in site.rows("stats")] == [None] * len(site.rows("stats"))


@pytest.mark.parametrize("words", [("pause",), ("resume",), ("limit", "--rate", "1/s"), ("limit", "--clear")])
def test_a_misspelt_queue_is_a_usage_error(site: Site, words: tuple[str, ...]) -> None:
    result = site.run(*words, "-Q", QUEUE, "-Q", "typo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "obody has used a queue 'typo' yet" in result.stderr
    assert ("--force" in result.stderr) == (words != ("resume",))
    assert [row["queue"] for row in site.rows("stats")] == [QUEUE]
    assert site.redis.keys("*control*") == []


def test_pausing_when_redis_is_out_of_memory(site: Site) -> None:
    site.send()
    site.redis.config_set("maxmemory", "1")
    try:
        for command, is_paused in (("pause", True), ("resume", False)):
            site.text(command, "-Q", QUEUE)
            [row] = site.rows("stats")
            assert (row["limits"]["paused_since"] is not None) is is_paused
    finally:
        site.redis.config_set("maxmemory", "0")


def test_a_queue_that_nobody_uses_yet(site: Site) -> None:
    assert site.text("pause", "-Q", "later", "--force") == "later paused\n"
    assert site.text("limit", "-Q", "soon", "--rate", "1/s", "--force") == "soon: 1/s, burst 1\n"
    # What was paused or limited is known.
    site.redis.delete(*(key for key in site.redis.keys("*") if not key.endswith(":control")))
    assert site.text("resume", "-Q", "later") == "later resumed\n"
    assert site.text("limit", "-Q", "soon", "--clear") == "soon: no limits\n"


@pytest.mark.parametrize(
    "words",
    [("pause",), ("limit", "--rate", "1/s", "--force"), ("list",), ("cancel",), ("requeue",), ("stats",)],
)
def test_a_name_that_is_empty_is_a_usage_error(site: Site, words: tuple[str, ...]) -> None:
    result = site.run(*words, "-Q", "")
    assert result.exit_code == 2
    assert "he name of a queue is empty" in result.stderr
    assert site.redis.keys("*control*") == []


def test_limiting(site: Site) -> None:
    def limited(*words: str) -> str:
        return site.text("limit", "-Q", QUEUE, *words)

    limits = ("--rate", "100/m", "--burst", "10", "--concurrency", "20")
    assert limited(*limits) == "celery: 100/m, burst 10, concurrency 20\n"
    assert "celery is limited: 100/m, burst 10, concurrency 20\n" in site.text("stats")
    assert limited("--concurrency", "3") == "celery: 100/m, burst 10, concurrency 3\n"
    assert limited("--rate", "120/m") == "celery: 2/s, burst 10, concurrency 3\n"
    assert limited("--burst", "none") == "celery: 2/s, burst 2, concurrency 3\n"
    assert limited("--rate", "none") == "celery: concurrency 3\n"
    assert limited("--concurrency", "none") == "celery: no limits\n"
    assert limited("--rate", "10") == "celery: 10/s, burst 10\n"
    [row] = site.rows("limit", "-Q", QUEUE, "--concurrency", "4")
    assert (row["queue"], row["rate"], row["burst"], row["concurrency"]) == (QUEUE, "10/s", 10, 4)
    assert limited("--clear") == "celery: no limits\n"
    assert not queue_limits(site.store, [QUEUE])[0].is_limited


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pause",), "Name the queues with -Q, or give --all."),
        (("resume",), "Name the queues with -Q, or give --all."),
        (("pause", "--all", "-Q", QUEUE), "Give -Q or --all, not both."),
        (("limit", "--rate", "1/s"), "Name the queue with -Q."),
        (("limit", "--clear"), "Name the queue with -Q."),
        (
            ("limit", "-Q", QUEUE, "--clear", "--rate", "1/s"),
            "Give limits or --clear, not both. To clear one, give it as none.",
        ),
        (("limit", "-Q", QUEUE), "Give a limit (--rate, --burst, --concurrency), or --clear."),
        (("limit", "-Q", QUEUE, "--burst", "1e99"), "Burst needs a rate"),
        (("limit", "-Q", QUEUE, "--rate", "none", "--burst", "2"), "Burst needs a rate."),
        (("limit", "-Q", QUEUE, "--concurrency", "2x"), "not '2x'."),
        (("limit", "-Q", QUEUE, "--rate", "often"), "such as 10/s, 100/m or 1000/h, not 'often'"),
        (("limit", "-Q", QUEUE, "--burst", "2"), "Burst needs a rate."),
        (
            ("limit", "-Q", QUEUE, "--concurrency", "0"),
            "Concurrency must be a whole number from 1 to 1,000,000,000, not 0: to stop it, pause it.",
        ),
    ],
)
def test_wrong_use(site: Site, words: tuple[str, ...], message: str) -> None:
    result = site.run(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not any(control.is_paused or control.is_limited for control in queue_limits(site.store, [QUEUE]))
