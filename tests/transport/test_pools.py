"""Celery's prefork pool hears of the end of each process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kombu_redisdelay.transport.pools import LOOK_EVERY, LOOKS, _looking_again, _without_the_ended


class Hub:
    """kombu's event loop, as far as it is used here."""

    def __init__(self) -> None:
        self.later: list[Callable[[], object]] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        assert seconds == LOOK_EVERY
        self.later.append(call)


@pytest.mark.parametrize("after", [1, 3, LOOKS])
def test_a_process_whose_sentinel_closed_before_it_had_ended(after: int) -> None:
    """Each time that it is looked at, it is there, but for the last."""
    tracked, dying = SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None)
    pool, hub, looks = SimpleNamespace(_pool=[tracked, dying]), Hub(), 0

    def maintain_pool() -> str:
        nonlocal looks
        looks += 1
        if looks > after:
            pool._pool = [tracked]
        return "done"

    maintain = _looking_again(maintain_pool, pool, hub)
    assert maintain() == "done"
    while hub.later:
        hub.later.pop()()
    assert looks == after + 1
    maintain()
    assert hub.later == [], "there is nothing to look for"


def test_one_that_never_ends_is_not_looked_for_for_ever() -> None:
    pool, hub = SimpleNamespace(_pool=[SimpleNamespace(_sentinel_poll=None)]), Hub()
    _looking_again(lambda: None, pool, hub)()
    looks = 0
    while hub.later:
        looks += 1
        hub.later.pop()()
    assert looks == LOOKS


def test_a_process_that_has_ended_is_not_watched_by_a_new_connection() -> None:
    living, ended = SimpleNamespace(), SimpleNamespace(_sentinel_poll=None)
    pool, hub, watched = SimpleNamespace(maintain_pool=lambda: None), Hub(), []
    track = _without_the_ended(lambda process, hub: watched.append(process), pool)
    for process in (living, ended):
        track(process, hub)
    assert watched == [living]
    # It is replaced soon.
    assert hub.later == [pool.maintain_pool]
