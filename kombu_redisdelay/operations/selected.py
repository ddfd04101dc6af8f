"""Finds messages that somebody has selected from a list."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from kombu_redisdelay.operations.access import Selection
from kombu_redisdelay.operations.queued import SCHEDULED, QueuedMessage, without_repetitions
from kombu_redisdelay.operations.queues import Queues
from kombu_redisdelay.operations.reading import Reading


def find_selected(
    queues: Queues, queue: Selection, ids: Collection[str], states: Collection[str], most: int
) -> list[QueuedMessage]:
    """The messages with these *ids* that are in one of these *states*.

    Arguments:
        most: in the other states than "scheduled", so many messages are looked at.
    """
    reading, names = Reading(queues), queues.names(queue)
    found: list[QueuedMessage] = []
    for state in states:
        if state == SCHEDULED:
            some = reading.scheduled_with_ids(names, list(ids))
        else:
            some = islice(reading.in_state(state, names, None, None), most)
        found += (message for message in without_repetitions(some) if message.id in ids)
    return found
