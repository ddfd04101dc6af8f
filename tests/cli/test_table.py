"""Where the columns of a table go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kombu_redisdelay.cli import output
from kombu_redisdelay.cli.output import fixed, flexible, right, show_json, show_pages, table, unusual
from kombu_redisdelay.cli.table import Cell, Column, Layout, Table


def _of(*rows: tuple[str, ...], below: int = 0) -> Table:
    found = table(right("N"), flexible("QUEUE"), flexible("TASK", least=10), below=below)
    for row in rows:
        found.add_row(*row)
    return found


def _lines(rows: Table, width: int | None, layout: Layout | None = None) -> list[str]:
    layout = layout or Layout(rows, width)
    return ["".join(text for text, _ in line) for line in [*layout.header(), *layout.lines(rows.rows)]]


ROWS = (("1", "celery", "shop.close_order"), ("1000", "a queue with a long name", "t"))


def test_without_a_width_nothing_is_cut() -> None:
    expected = [
        "   N  QUEUE                     TASK",
        "   1  celery                    shop.close_order",
        "1000  a queue with a long name  t",
    ]
    rows = _of(*ROWS)
    assert _lines(rows, None) == expected
    assert list(Layout(rows).texts(rows.rows)) == expected[1:]


def test_where_there_is_room_nothing_is_cut() -> None:
    assert _lines(_of(*ROWS), 48) == _lines(_of(*ROWS), None)


def test_the_widest_is_cut_first() -> None:
    assert _lines(_of(*ROWS), 40) == [
        "   N  QUEUE             TASK",
        "   1  celery            shop.close_order",
        "1000  a queue with a …  t",
    ]
    assert _lines(_of(*ROWS), 26)[1:] == ["   1  celery    shop.clos…", "1000  a queue…  t"]


def test_where_there_is_too_little_room_a_row_has_two_lines() -> None:
    assert _lines(_of(*ROWS, below=2), 26) == _lines(_of(*ROWS), 26)
    assert _lines(_of(*ROWS, below=1), 25) == [
        "   N  QUEUE",
        "      TASK",
        "   1  celery",
        "      shop.close_order",
        "1000  a queue with a lon…",
        "      t",
    ]


def test_a_later_page_has_the_columns_of_the_first() -> None:
    later = _of(("2", "another queue with a long name", "shop.remind"), ("30000", "q", "t"))
    assert _lines(later, None, Layout(_of(*ROWS)))[1:] == [
        "   2  another queue with a long name  shop.remind",
        "30000  q                         t",
    ]
    assert _lines(later, None, Layout(_of(*ROWS), 40))[1:] == [
        "   2  another queue w…  shop.remind",
        "30000  q                 t",
    ]


def test_what_the_first_page_leaves_is_for_the_last_column() -> None:
    layout = Layout(_of(("1", "q", "t")), 40)
    assert _lines(_of(("1", "q", "x" * 40)), None, layout)[1] == f"1  q      {'x' * 29}…"


def test_a_last_column_of_numbers_stays_beside_the_others() -> None:
    rows = table(flexible("QUEUE"), right("DEAD"))
    rows.add_row("celery", "2")
    assert _lines(rows, 40) == ["QUEUE   DEAD", "celery     2"]


def test_one_long_cell_pushes_its_own_row_only() -> None:
    rows = _of(("1", "q" * 120, "t"), ("1", "q", "t"))
    assert _lines(rows, None)[1:] == [f"1  {'q' * 120}  t", f"1  q{' ' * 59}  t"]


@pytest.mark.parametrize("width", [None, 40])
def test_an_unusual_column_is_left_out_where_nothing_is_unusual(width: int | None) -> None:
    def page(*priorities: str) -> Table:
        rows = table(unusual("PRIORITY", "0"), flexible("QUEUE"))
        for priority in priorities:
            rows.add_row(priority, "celery")
        return rows

    assert _lines(page("0", "0"), width) == ["QUEUE", "celery", "celery"]
    assert _lines(page("0", "3"), width) == ["PRIORITY  QUEUE", "       0  celery", "       3  celery"]
    layout = Layout(page("0"), width)
    assert _lines(page("3"), width, layout) == ["QUEUE", "celery"]
    if width is None:
        assert list(layout.texts(page("3").rows)) == ["celery"]


def test_wide_characters_have_two_columns() -> None:
    rows = _of(("1", "日本日本日本", "t"), ("1", "e\u0301", "t"), ("1", "celery", "t"))
    assert _lines(rows, None) == [
        "N  QUEUE         TASK",
        "1  日本日本日本  t",
        "1  e\u0301             t",
        "1  celery        t",
    ]
    # Half a character cannot be shown.
    assert _lines(rows, 17)[1] == "1  日本日…   t"


def test_what_wraps_goes_on_below() -> None:
    rows = table(fixed(""), Column(wraps=True), gap=1)
    rows.add_row("wrong", Cell("a restart of the server loses every message", "red"))
    rows.add_row("ok", "日本" * 12)
    assert _lines(rows, 30) == [
        "wrong a restart of the server",
        "      loses every message",
        f"ok    {'日本' * 6}",
        f"      {'日本' * 6}",
    ]


def test_what_is_not_printable_is_measured_as_it_is_shown() -> None:
    rows = _of(("1", "\x1b[2J\x1b[2J", "t"), ("1", "celery", "t"))
    assert _lines(rows, None)[1:] == [r"1  \x1b[2J\x1b[2J  t", "1  celery          t"]


class TestPages:
    """What is shown as it is read."""

    class Item(dict[str, int]):
        """Something that one can see being forgotten."""

        alive = 0

        def __init__(self, number: int) -> None:
            super().__init__(number=number)
            type(self).alive += 1

        def __del__(self) -> None:
            type(self).alive -= 1

    @pytest.fixture(params=["text", "json"])
    def mode(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def _show(self, items: Iterator[Item], mode: str) -> None:
        def page(some: list[TestPages.Item]) -> Table:
            rows = table(right("NUMBER"))
            for item in some:
                rows.add_row(str(item["number"]))
            return rows

        if mode == "text":
            assert show_pages(items, page)  # type: ignore[arg-type]
        else:
            show_json(items)

    def test_rows_are_written_and_forgotten_while_others_are_read(
        self, mode: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        written, most_alive = "", 0

        def items() -> Iterator[TestPages.Item]:
            nonlocal written, most_alive
            for number in range(5 * output.PAGE):
                yield self.Item(number)
                most_alive = max(most_alive, self.Item.alive)
                if number % output.PAGE == 1 and number > 1:
                    written += capsys.readouterr().out
                    assert len(written.splitlines()) in (number - 1, number)

        self._show(items(), mode)
        written += capsys.readouterr().out
        assert len(written.splitlines()) == 5 * output.PAGE + (mode == "text")
        assert most_alive < 2.1 * output.PAGE

    def test_what_takes_long_to_be_read_is_shown_as_far_as_it_is_there(
        self, mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "PAGE_SECONDS", 0)

        def items() -> Iterator[TestPages.Item]:
            for number in range(10, 13):
                yield self.Item(number)
                assert str(number) in capsys.readouterr().out

        self._show(items(), mode)
