"""What `celery delayed top` shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from rich.console import Console, ConsoleDimensions, RenderableType

from kombu_redisdelay.cli.top import View
from kombu_redisdelay.operations.stats import QueueStats
from kombu_redisdelay.operations.timeline import EDGES, spans

SIZE = ConsoleDimensions(80, 24)
_SPANS = spans([1_000_000] * (len(EDGES) + 1))
_QUEUE = QueueStats("celery", 10, 1000, 0, 0, 0, 1, 0, datetime(2099, 1, 1, tzinfo=timezone.utc), 0.0, 0.0)


def lines(shown: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().splitlines()


def _row(shown: RenderableType, queue: str) -> list[str]:
    [line] = [line for line in lines(shown) if line.startswith(queue)]
    return line.split()


def test_rates_are_per_second_and_since_the_last_look() -> None:
    view = View("redisdelay://")
    first = view.render([_QUEUE], _SPANS, 100.0, SIZE)
    assert _row(first, "celery")[:3] == ["celery", "10", "1,000"]
    second = view.render([replace(_QUEUE, ready=50, scheduled=980)], _SPANS, 102.0, SIZE)
    assert _row(second, "celery")[:5] == ["celery", "50", "+20", "980", "-10"]
    third = view.render([replace(_QUEUE, ready=50, scheduled=981)], _SPANS, 103.0, SIZE)
    assert _row(third, "celery")[:4] == ["celery", "50", "981", "+1"]


def test_it_fits_80_columns_and_24lines() -> None:
    large = replace(_QUEUE, ready=99_999, scheduled=9_999_999, unacked=99_999, dead=10_000, consumers=1000)
    queues = [replace(large, queue=f"a queue with a long name, the {n}th of many of them") for n in range(30)]
    view = View("redisdelay://" + 100 * "x")
    view.render([replace(queue, ready=90_000, scheduled=9_990_000) for queue in queues], _SPANS, 0.0, SIZE)
    found = lines(view.render(queues, _SPANS, 1.0, SIZE))
    assert max(map(len, found)) <= 80
    assert len(found) <= 24
    assert found[-1].startswith("more than 28d")
    [*_, row] = [line for line in found if line.startswith("a queue")]
    # Nothing but the name, which gets what the time of day leaves.
    assert row.count("…") == 1
    for cell in ("99,999", "+9,999", "9,999,999", "10,000", "1,000"):
        assert cell in row


def test_the_queues_with_most_to_do_are_shown_in_their_order() -> None:
    queues = [replace(_QUEUE, queue=f"q{n:02}", scheduled=n % 20) for n in range(40)]
    found = lines(View("").render(queues, _SPANS, 0.0, SIZE))
    shown = [line.split()[0] for line in found if line.startswith("q")]
    assert shown == ["q17", "q18", "q19", "q37", "q38", "q39"]
    assert "and 34 more" in found


def test_nothing_to_show() -> None:
    found = lines(View("redisdelay://").render([], spans([0] * (len(EDGES) + 1)), 0.0, SIZE))
    assert "█" not in "".join(found)


def test_what_is_late_is_called_so() -> None:
    late = replace(_QUEUE, next_due=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert _row(View("").render([late], _SPANS, 0.0, SIZE), "celery")[-1] == "late"
