"""``celery delayed mend``"""

from __future__ import annotations

from collections.abc import Iterator

import click

from kombu_redisdelay.broker.unlisted import Unlisted
from kombu_redisdelay.cli.broker import connect
from kombu_redisdelay.cli.echo import echo, echo_all
from kombu_redisdelay.cli.options import json_option
from kombu_redisdelay.cli.output import busy, show_json
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.mending import mend
from kombu_redisdelay.words import number_of


@click.command("mend")
@json_option
def command(as_json: bool) -> None:
    """List again what Redis has lost track of.

    If keys of ours were deleted or evicted, messages may be left that no key lists any more: what a killed
    worker held, messages of a fair queue without a turn, failed tasks or dead letters. This looks at all keys
    of the database, and lists such messages again. Workers do it for their queues each hour. Nothing else is
    changed, so it does not ask.
    """
    access = connect(Access)
    with busy("Looking at all keys"):
        found = mend(access.store, access.options, access.declared_queues)
    if as_json:
        show_json(
            {
                "queue": queue,
                "consumers": some.consumers,
                "unacked": some.unacked,
                "keys": some.lists,
                "messages": some.sorted_by_key,
                "scheduled": some.scheduled,
                "kept": some.kept,
                "is_unknown": some.is_unknown,
            }
            for queue, some in sorted(found.queues.items())
        )
    else:
        lines = [line for queue, some in sorted(found.queues.items()) for line in _said(queue, some)]
        echo_all(lines)
        if not lines and found.is_whole:
            echo("There is nothing to list again.", err=True)
    if found.is_refused:
        raise click.ClickException("The user of the broker URL may not look at all keys: it needs +scan.")
    if not found.is_whole:
        echo("Some keys could not be looked at.", err=True)
        raise click.exceptions.Exit(1)


def _said(queue: str, some: Unlisted) -> Iterator[str]:
    if some.consumers:
        is_or_are = "is" if some.consumers == 1 else "are"
        count = number_of(some.consumers, "consumer")
        yield f"{queue}: {count} with {number_of(some.unacked)} {is_or_are} listed again"
    if some.lists:
        have, turns = ("has", "a turn") if some.lists == 1 else ("have", "turns")
        keys = f"{number_of(some.lists, 'key')} with {number_of(some.sorted_by_key)}"
        yield f"{queue}: {keys} {have} {turns} again"
    if some.scheduled:
        have = "has the one that it says, or is a dead letter"
        if some.scheduled > 1:
            have = "have the ones that they say, or are dead letters"
        yield f"{queue}: {number_of(some.scheduled, 'scheduled message')} without a due time {have}"
    if some.kept:
        is_or_are = "is" if some.kept == 1 else "are"
        yield f"{queue}: {number_of(some.kept, 'kept message')} {is_or_are} listed again"
    if some.is_unknown:
        yield f"{queue} is among the known queues again"
