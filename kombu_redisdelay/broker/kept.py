"""Takes out failed tasks and dead letters: they go back to their queue, or are removed for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

from kombu_redisdelay.broker.server.scripts import Script
from kombu_redisdelay.broker.server.wire import Argument, Caller

KeptT = TypeVar("KeptT")

#: What is done with one that is taken out.
REQUEUE, REMOVE = "requeue", "drop"


def take_out(
    server: Caller,
    script: Script,
    keys: Sequence[str],
    begin: Sequence[Argument],
    parts: Iterable[Sequence[KeptT]],
    of_each: Callable[[KeptT], Sequence[Argument]],
    stays: Callable[[KeptT, str], object],
) -> Iterator[KeptT]:
    """Have a *script* take out messages, part by part. Yields those that were still there.

    Arguments:
        begin: the first ARGV: what is done, and the separator.
        of_each: the ARGV of a message.
        stays: called with each one that is not requeued because another message holds its key, and the id of
            that message.
    """
    for some in parts:
        reply = script(server, keys, (*begin, *chain.from_iterable(map(of_each, some))))
        for message, done in zip(some, reply, strict=True):
            if done == 1:
                yield message
            elif isinstance(done, bytes):
                stays(message, done.decode(errors="replace"))
