"""`celery delayed timeline`."""

from __future__ import annotations

import pytest

from kombu_redisdelay.cli.table import Layout
from kombu_redisdelay.cli.timeline import timeline_table
from kombu_redisdelay.operations.timeline import EDGES, span_index, spans
from tests.cli.site import Site


def test_each_message_is_in_the_span_of_its_due_time(site: Site) -> None:
    for edge in EDGES:
        # Half a minute before the edge, whichever one that is.
        site.make_due(site.send(countdown=3600), (edge - 30) * 1000)
    site.make_due(site.send(countdown=3600, queue="other"), EDGES[-1] * 1000 + 60_000, queue="other")

    rows = site.rows("timeline")
    assert [row["messages"] for row in rows] == [1] * (len(EDGES) + 1)
    assert [row["to_seconds"] for row in rows] == [*EDGES, None]
    assert [row["from_seconds"] for row in rows] == [None, *EDGES]
    assert [row["messages"] for row in site.rows("timeline", "-Q", "other")] == [0] * len(EDGES) + [1]


@pytest.mark.parametrize("edge", range(len(EDGES)))
def test_a_due_time_on_an_edge_belongs_to_the_span_before(edge: int) -> None:
    now_ms = 1_000_000
    assert span_index(now_ms + EDGES[edge] * 1000, now_ms) == edge
    assert span_index(now_ms + EDGES[edge] * 1000 + 1, now_ms) == edge + 1


def test_by_task(site: Site) -> None:
    for countdown in (30, 40, 7200):
        site.send("shop.remind", countdown=countdown)
    site.send(countdown=7200)
    rows = site.rows("timeline", "--by", "task")
    found = {(row["task"], row["to_seconds"]): row["messages"] for row in rows if row["messages"]}
    assert found == {("shop.remind", 60): 2, ("shop.remind", 10_800): 1, ("shop.close_order", 10_800): 1}
    lines = site.text("timeline", "--by", "task").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["shop.remind", "3"], ["shop.close_order", "1"]]


def test_the_bars_are_as_long_as_the_numbers_are_large(site: Site) -> None:
    for countdown, count in ((30, 4), (200, 2), (600, 1)):
        for _ in range(count):
            site.send(countdown=countdown)
    bars = {line[:13].strip(): line.count("█") for line in site.text("timeline").splitlines()}
    assert (bars["up to 1m"], bars["up to 5m"], bars["up to 15m"], bars["up to 1h"]) == (50, 25, 12, 0)


def test_of_nothing_there_is_a_table_without_bars(site: Site) -> None:
    text = site.text("timeline")
    assert len(text.splitlines()) == len(EDGES) + 2
    assert "█" not in text


def test_it_fits_a_terminal_of_80_columns() -> None:
    table = timeline_table(spans([9_999_999] * (len(EDGES) + 1)), 80)
    lines = ["".join(text for text, _ in line) for line in Layout(table, 80).lines(table.rows)]
    assert max(map(len, lines)) <= 80
    assert all("9,999,999" in line and line.endswith("█") for line in lines)
