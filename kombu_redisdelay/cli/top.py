"""``celery delayed top``"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from time import monotonic, sleep

import click

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.options import queues_option
from kombu_redisdelay.cli.output import fixed, flexible, right, table, terminal
from kombu_redisdelay.cli.queues import fairness_remarks, figure, heading, remarks
from kombu_redisdelay.cli.table import Cell, Layout, Line, Table
from kombu_redisdelay.cli.timeline import timeline_table
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.columns import QUEUE_COLUMNS
from kombu_redisdelay.operations.history import QueueHistory, queue_history
from kombu_redisdelay.operations.queue_reasons import KEY_LIMITS
from kombu_redisdelay.operations.stats import QueueStats, queue_stats, read_each
from kombu_redisdelay.operations.timeline import Span, timeline
from kombu_redisdelay.operations.viewers import BROKER_ERRORS, may_pass, why
from kombu_redisdelay.words import printable, span

#: The number of lines that show neither a queue nor the timeline: the title, headers, blank lines.
_OTHER_LINES = 4

_EMPTY: Line = []

#: The columns of queues on the left of the rates, and on their right. Only `stats` has room for the others.
_ONLY_IN_STATS = ("overdue", "bound", "reason")
_BEFORE_RATES = tuple(QUEUE_COLUMNS)[:2]
_AFTER_RATES = tuple(name for name in QUEUE_COLUMNS if name not in (*_BEFORE_RATES, *_ONLY_IN_STATS))


@click.command("top")
@queues_option
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def command(queues: tuple[str, ...], interval: float) -> None:
    """Show the queues and the timeline, live. The key q ends it, as Ctrl-C does (on Windows, only Ctrl-C).

    WAIT is the time that the next ready message has waited. IN/S and OUT/S are how many messages were
    published and delivered per second since the last update. Pauses, limits and fair queues are told below.
    Lines of the timeline without a message are left out. While Redis does not answer, the last numbers stay.
    """
    # Not at the top, because rich need not be installed, and the help needs none.
    from rich.live import Live

    from kombu_redisdelay.cli.terminal import colored, key_presses

    target = terminal()
    if target is None:
        raise click.UsageError("`top` needs a terminal. See `stats` and `timeline`, which have --json, too.")
    access = connect(Access)
    # Without this, Python would end and leave the terminal as it is.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with key_presses() as typed, Live(console=target, screen=True, auto_refresh=False) as live:
            view = View(access.address, "q" if typed else "Ctrl-C")
            while True:
                try:
                    found, refused = read_each(_look, access.store, queue_names(access, queues))
                    spans = timeline(access.store, [stats.queue for stats, _ in found])
                except BROKER_ERRORS as exc:
                    if not may_pass(exc):
                        raise
                    shown = view.silent(why(exc), monotonic())
                else:
                    unread = [f"Cannot read queue {name!r}: {why(error)}" for name, error in refused.items()]
                    shown = view.render(found, spans, monotonic(), target.width, target.height, unread)
                live.update(colored(shown), refresh=True)
                if typed is None:
                    sleep(interval)
                elif b"q" in typed(interval):
                    break
    except KeyboardInterrupt:
        pass


def _look(store: Store, queues: Sequence[str]) -> list[tuple[QueueStats, QueueHistory]]:
    return list(zip(queue_stats(store, queues), queue_history(store, queues), strict=True))


class View:
    """The screen of `top`. It remembers the last numbers, to show how much they have changed.

    Arguments:
        ends: the key that ends it.
    """

    def __init__(self, title: str, ends: str = "q") -> None:
        self._title = title
        self._ends = ends
        self._before: Mapping[str, QueueHistory] = {}
        self._looked_at = float("-inf")
        self._shown: list[Line] = []

    def silent(self, why: str, now: float) -> list[Line]:
        """The last numbers, and that there are no new ones.

        Arguments:
            why: what the error says.
            now: as for :meth:`render`.
        """
        ago = f", these numbers are {span(now - self._looked_at)} old" if self._shown else ""
        line = [Cell(printable(f"Redis does not answer{ago}: {why}"), "bold red")]
        return [*self._shown[:1], line, *self._shown[2:]]

    def render(
        self,
        queues: Sequence[tuple[QueueStats, QueueHistory]],
        spans: Sequence[Span],
        now: float,
        width: int,
        height: int,
        unread: Sequence[str] = (),
    ) -> list[Line]:
        """
        Arguments:
            now: the present time, seconds of the monotonic clock.
            width, height: the size of the terminal.
            unread: a line for each queue that cannot be read.
        """
        seconds = now - self._looked_at
        moment = datetime.now(timezone.utc)
        ahead = [part for part in spans if part.messages]
        # Its header and a blank line.
        room = height - _OTHER_LINES - (len(ahead) + 2 if ahead else 0)
        stats = [each for each, _ in queues]
        said = [
            *unread,
            *(remark for queue in stats for remark in _remarks(queue, moment)),
        ]
        said = said[: max(1, room // 2)]
        room = max(1, room - len(said))
        # If there is no room for all queues, show those that are held back and then those with the most
        # messages, always in the same order.
        first = sorted(stats, key=_rank)[:room]
        shown = [queue for queue in stats if queue in first]
        by_name = {history.queue: history for _, history in queues}
        rows = self._queue_table(shown, by_name, seconds)
        title = table(flexible(""), fixed(""))
        title.add_row(Cell(self._title, "bold"), Cell(f"Press {self._ends} to end.", "dim"))
        lines = [*_lines(title, width), _EMPTY, *_lines(rows, width)]
        if not stats:
            lines.append([Cell("No queues found.")])
        if len(shown) < len(stats):
            lines.append([Cell(f"and {len(stats) - len(shown)} more", "dim")])
        lines += [[Cell(printable(remark), "yellow")] for remark in said]
        self._before = by_name
        self._looked_at = now
        if ahead:
            lines += [_EMPTY, *_lines(timeline_table(ahead, width), width)]
        self._shown = lines
        return lines

    def _queue_table(
        self, stats: Sequence[QueueStats], histories: Mapping[str, QueueHistory], seconds: float
    ) -> Table:
        now = datetime.now(timezone.utc)
        before, after = ([QUEUE_COLUMNS[name] for name in names] for names in (_BEFORE_RATES, _AFTER_RATES))
        headings = (*map(heading, before), right("IN/S"), right("OUT/S"), *map(heading, after))
        rows = table(flexible("QUEUE", least=5), *headings, gap=1)
        for queue in stats:
            history = histories[queue.queue]
            grown = history.now - self._before.get(queue.queue, history).now
            rows.add_row(
                queue.queue,
                *(figure(column, queue, now) for column in before),
                _rate(grown.published, seconds),
                _rate(grown.delivered, seconds),
                *(figure(column, queue, now) for column in after),
            )
        return rows


def _remarks(queue: QueueStats, now: datetime) -> Iterator[str]:
    yield from remarks(queue.queue, queue.limits, now)
    yield from fairness_remarks(queue)
    if queue.reason == KEY_LIMITS:
        yield f"all ready messages of {queue.queue} wait because of {KEY_LIMITS}"


def _rank(queue: QueueStats) -> tuple[bool, int]:
    """A sort key: the queue with most to see comes first."""
    is_free = queue.limits.paused_since is None and not queue.limits.is_limited
    return is_free and queue.reason != KEY_LIMITS, -(queue.ready + queue.scheduled + queue.unacked)


def _lines(rows: Table, width: int) -> Iterator[Line]:
    layout = Layout(rows, width)
    yield from layout.header()
    yield from layout.lines(rows.rows)


def _rate(difference: int, seconds: float) -> Cell:
    # What a stock worker takes makes the number of published messages shrink until the next record.
    rate = max(0, round(difference / seconds))
    return Cell(f"{rate:,}" if rate else "", "dim")
