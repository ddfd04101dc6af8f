"""What `celery delayed top` shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from rich.console import Console

from kombu_redisdelay.cli.table import Line
from kombu_redisdelay.cli.terminal import colored, key_presses
from kombu_redisdelay.cli.top import View
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.fairness import Fairness
from kombu_redisdelay.operations.history import Counts, QueueHistory
from kombu_redisdelay.operations.limits import UNLIMITED, QueueLimits
from kombu_redisdelay.operations.queue_reasons import KEY_LIMITS
from kombu_redisdelay.operations.states import STATES
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.operations.timeline import EDGES, spans

SIZE = (80, 24)
_SPANS = spans([1_000_000] * (len(EDGES) + 1))
_COUNTS: dict[str, Any] = {**dict.fromkeys(STATES, 0), "ready": 10, "scheduled": 1000}
_QUEUE = QueueStats(
    queue="celery",
    **_COUNTS,
    overdue=0,
    consumers=1,
    consumers_lost=0,
    next_due=datetime(2099, 1, 1, tzinfo=timezone.utc),
    lateness=0.0,
    waiting=0.0,
    limits=UNLIMITED,
    reason=None,
)


def lines(shown: Sequence[Line], width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(colored(shown))
    return capture.get().splitlines()


def _row(shown: Sequence[Line], queue: str) -> list[str]:
    [line] = [line for line in lines(shown) if line.startswith(queue)]
    return line.split()


def render(
    view: View, stats: Sequence[QueueStats], now: float, published: int = 0, delivered: int = 0
) -> Sequence[Line]:
    totals = Counts(published - 1, delivered, 0, 0)
    queues = [(queue, QueueHistory(queue.queue, totals, 1, [], [])) for queue in stats]
    return view.render(queues, _SPANS, now, *SIZE)


def test_it_names_the_key_that_ends_it() -> None:
    assert lines(render(View("redisdelay://"), [_QUEUE], 1.0))[0].endswith("Press q to end.")
    # As pytest, some have no keyboard that can be read.
    with key_presses() as typed:
        assert typed is None
    shown = lines(render(View("redisdelay://", "Ctrl-C"), [_QUEUE], 1.0))
    assert shown[0].endswith("Press Ctrl-C to end.")


def test_rates_are_per_second_and_since_the_last_look() -> None:
    view = View("redisdelay://")
    first = render(view, [replace(_QUEUE, waiting=90.0)], 100.0, published=7000, delivered=70)
    assert _row(first, "celery")[:4] == ["celery", "10", "1m30s", "1,000"]
    second = render(view, [replace(_QUEUE, waiting=None)], 102.0, published=9000, delivered=80)
    assert _row(second, "celery")[:6] == ["celery", "10", "?", "1,000", "5", "1,000"]
    third = render(view, [_QUEUE], 103.0, published=8000, delivered=81)
    assert _row(third, "celery")[:5] == ["celery", "10", "-", "1", "1,000"]


def test_it_fits_80_columns_and_24lines() -> None:
    large = replace(
        _QUEUE,
        ready=99_999,
        waiting=3599.0,
        scheduled=9_999_999,
        unacked=99_999,
        dead=10_000,
        consumers=1000,
    )
    queues = [replace(large, queue=f"a queue with a long name, the {n}th of many of them") for n in range(30)]
    view = View("redisdelay://" + 100 * "x")
    render(view, queues, 0.0)
    found = lines(render(view, queues, 1.0, published=9999, delivered=9998))
    assert max(map(len, found)) <= 80
    assert len(found) <= 24
    assert found[-1].startswith("more than 28d")
    [*_, row] = [line for line in found if line.startswith("a que")]
    # Nothing but the name, which gets what the time of day leaves.
    assert row.count("…") == 1
    for cell in ("99,999", "59m59s", "9,999", "9,998", "9,999,999", "10,000", "1,000"):
        assert cell in row


def test_the_queues_with_most_to_do_are_shown_in_their_order() -> None:
    queues = [replace(_QUEUE, queue=f"q{n:02}", scheduled=n % 20) for n in range(40)]
    found = lines(render(View(""), queues, 0.0))
    shown = [line.split()[0] for line in found if line.startswith("q")]
    assert shown == ["q17", "q18", "q19", "q37", "q38", "q39"]
    assert "and 34 more" in found


def test_what_is_paused_is_shown_before_what_is_busy_and_the_timeline_shrinks_first() -> None:
    queues = [replace(_QUEUE, queue=f"q{n:02}", ready=n) for n in range(40)]
    queues[3] = replace(queues[3], limits=QueueLimits(paused_since=datetime.now(timezone.utc)))
    with_history = [(queue, QueueHistory(queue.queue, Counts(0, 0, 0, 0), 0, [], [])) for queue in queues]
    counts = [0] * (len(EDGES) + 1)
    for in_timeline, expected in ((0, 19), (1, 16)):
        counts[2] = in_timeline
        found = lines(View("").render(with_history, spans(counts), 0.0, *SIZE))
        shown = [line.split()[0] for line in found if re.match(r"q\d\d +\d", line)]
        assert len(shown) == expected
        assert shown[0] == "q03"
        assert shown[-1] == "q39"
        assert sum("up to" in line for line in found) == in_timeline
        assert len(found) <= SIZE[1]


def test_many_remarks_leave_room_for_queues() -> None:
    limits = QueueLimits(rate="100/m", burst=10)
    queues = [replace(_QUEUE, queue=f"q{n:02}", limits=limits) for n in range(40)]
    found = lines(render(View(""), queues, 0.0))
    assert len(found) <= SIZE[1]
    assert sum(re.match(r"q\d\d +\d", line) is not None for line in found) >= 3


def test_while_redis_is_silent_the_last_numbers_stay() -> None:
    view = View("redisdelay://")
    before = lines(render(view, [_QUEUE], 100.0))
    after = lines(view.silent("no reply from localhost:6379", 112.0))
    assert after[1] == "Redis does not answer, these numbers are 12s old: no reply from localhost:6379"
    assert (after[0], after[2:]) == (before[0], before[2:])
    assert lines(render(view, [_QUEUE], 113.0)) == before


def test_nothing_to_show() -> None:
    found = lines(View("redisdelay://").render([], spans([0] * (len(EDGES) + 1)), 0.0, *SIZE))
    assert "█" not in "".join(found)
    assert "No queues found." in found


def test_what_is_late_is_called_so() -> None:
    late = replace(_QUEUE, next_due=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert _row(render(View(""), [late], 0.0), "celery")[-1] == "late"


def test_pauses_and_limits_are_said_below_the_queues() -> None:
    limits = QueueLimits(rate="100/m", burst=10, concurrency=20)
    shown = lines(render(View("redisdelay://"), [replace(_QUEUE, limits=limits)], 100.0))
    assert "celery is limited: 100/m, burst 10, concurrency 20" in shown
    assert len(shown) <= SIZE[1]


def test_fair_queues_are_said_below_them() -> None:
    fairness = Fairness("on", 3, 0, KeyLimits(rate="10/m", burst=1))
    fair = replace(_QUEUE, fairness=fairness)
    shown = lines(render(View("redisdelay://"), [fair, replace(_QUEUE, queue="plain")], 100.0))
    assert "celery is fair: 3 keys wait" in shown
    assert "each key of celery is limited: 10/m, burst 1" in shown
    assert "key limits" not in " ".join(shown)
    held = replace(fair, fairness=replace(fairness, keys_at_limit=3), reason=KEY_LIMITS)
    busier = [replace(_QUEUE, queue=f"q{n:02}", ready=1000) for n in range(40)]
    shown = lines(render(View("redisdelay://"), [*busier, held], 100.0))
    assert "celery is fair: 3 keys wait, 3 of them paused or at a limit" in shown
    assert "all ready messages of celery wait because of key limits" in shown
    # It is held back, so it has room.
    assert any(re.match(r"celery +10", line) for line in shown)
    assert len(shown) <= SIZE[1]
