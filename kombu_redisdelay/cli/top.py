"""``celery delayed top``"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from time import monotonic, sleep

import click
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kombu_redisdelay.cli.broker import connect, queue_names
from kombu_redisdelay.cli.control import remarks
from kombu_redisdelay.cli.options import queues_option
from kombu_redisdelay.cli.output import (
    STYLES,
    console,
    count,
    cut,
    flexible,
    next_due,
    right,
    styled,
    table,
    waiting,
)
from kombu_redisdelay.cli.timeline import timeline_table
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.history import QueueHistory, queue_history
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.operations.timeline import EDGES, Span, timeline

#: The number of lines that do not show a queue: the title, headers, blank lines and the timeline.
_OTHER_LINES = len(EDGES) + 7


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
    """Show the queues and the timeline, live. Ctrl-C ends it.

    WAIT is the time that the next ready message has waited. IN/S and OUT/S are how many messages were
    published and delivered per second since the last update.
    """
    target = console()
    if not target.is_terminal:
        raise click.UsageError("top needs a terminal; see `stats` and `timeline`, which have --json, too.")
    access = connect(Access)
    view = View(access.address)
    try:
        with Live(console=target, screen=True, auto_refresh=False) as live:
            while True:
                names = queue_names(access, queues)
                stats, histories = queue_stats(access.store, names), queue_history(access.store, names)
                spans = timeline(access.store, names)
                live.update(view.render(stats, histories, spans, monotonic(), target.size), refresh=True)
                sleep(interval)
    except KeyboardInterrupt:
        pass


class View:
    """The screen of `top`. It remembers the last numbers, to show how much they have changed."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._before: Mapping[str, QueueHistory] = {}
        self._looked_at = float("-inf")

    def render(
        self,
        stats: Sequence[QueueStats],
        histories: Sequence[QueueHistory],
        spans: Sequence[Span],
        now: float,
        size: ConsoleDimensions,
    ) -> RenderableType:
        """
        Arguments:
            histories: those of the same queues.
            now: the present time, seconds of the monotonic clock.
            size: the size of the terminal.
        """
        seconds = now - self._looked_at
        moment = datetime.now(timezone.utc)
        said = [remark for queue in stats for remark in remarks(queue.queue, queue.control, moment)]
        room = max(1, size.height - _OTHER_LINES - len(said))
        # If there is no room for all queues, show those with the most messages, always in the same order.
        busiest = sorted(stats, key=lambda queue: -(queue.ready + queue.scheduled + queue.unacked))[:room]
        shown = [queue for queue in stats if queue in busiest]
        by_name = {history.queue: history for history in histories}
        queues = self._queue_table(shown, by_name, seconds)
        parts: list[RenderableType] = [cut(self._title, "bold"), styled(""), queues]
        if len(shown) < len(stats):
            parts.append(styled(f"and {len(stats) - len(shown)} more", "dim"))
        parts += [cut(remark, "yellow") for remark in said]
        self._before = by_name
        self._looked_at = now
        return Group(*parts, styled(""), timeline_table(spans, size.width))

    def _queue_table(
        self, stats: Sequence[QueueStats], histories: Mapping[str, QueueHistory], seconds: float
    ) -> Table:
        now = datetime.now(timezone.utc)
        rows = table(
            flexible("QUEUE"),
            right("READY"),
            right("WAIT"),
            right("IN/S"),
            right("OUT/S"),
            right("SCHEDULED"),
            right("UNACKED"),
            right("DEAD"),
            right("CONSUMERS"),
            right("NEXT DUE"),
        )
        rows.padding = (0, 1, 0, 0)
        for queue in stats:
            history = histories[queue.queue]
            grown = history.now - self._before.get(queue.queue, history).now
            rows.add_row(
                cut(queue.queue),
                count(queue.ready, STYLES["ready"]),
                waiting(queue.waiting),
                _rate(grown.published, seconds),
                _rate(grown.delivered, seconds),
                count(queue.scheduled, STYLES["scheduled"]),
                count(queue.unacked, STYLES["unacked"]),
                count(queue.dead, STYLES["dead"]),
                count(queue.consumers, STYLES["consumers"]),
                next_due(queue.next_due, now),
            )
        return rows


def _rate(difference: int, seconds: float) -> Text:
    # What a stock worker takes makes the number of published messages shrink until the next record.
    rate = max(0, round(difference / seconds))
    return styled(f"{rate:,}" if rate else "", "dim")
