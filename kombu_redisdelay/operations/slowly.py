"""Requeues failed tasks at a rate, and says which of them no worker will run."""

from __future__ import annotations

from dataclasses import replace

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.operations import reading
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.acting import Action, Done
from kombu_redisdelay.operations.pace import Pace
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.verbs import REQUEUE_SLOWLY


def requeueing(
    access: Access, selection: Selection, pace: Pace, limit: int | None = None, progress: Tell | None = None
) -> Action:
    """Requeues failed tasks at the rate of *pace*.

    Raises:
        ValueError: another state than "failed" is selected, or none where one is needed.
    """
    _check_state(selection)
    return Action(access.store, REQUEUE_SLOWLY, selection, limit, progress, {}, pace=pace)


def requeue_slowly(access: Access, selection: Selection, pace: Pace, progress: Tell) -> Done:
    """Requeue failed tasks, as :meth:`kombu_redisdelay.Messages.requeue` does."""
    action = requeueing(access, selection, pace, progress=progress)
    return action.run(reading.names(access, selection))


def unattended(access: Access, selection: Selection) -> list[str]:
    """The queues that failed tasks of *selection* would go to, and that no worker consumes from.

    Raises:
        ValueError: another state than "failed" is selected.
    """
    _check_state(selection)
    store = access.store
    names = reading.names(access, selection)
    counts = zip(names, Archive(store, FAILED).counts(names), strict=True)
    queues = list(dict.fromkeys(store.partitions.queue_of(name) for name, count in counts if count))
    idle = [each.queue for each in queue_stats(store, queues) if not each.consumers]
    states, selection = selection.states((FAILED,)), selection.without_returned()
    return [queue for queue in idle if reading.count(access, replace(selection, queue=queue), states)]


def _check_state(selection: Selection) -> None:
    for name in selection.state or ():
        if name != FAILED:
            raise ValueError(f"with rate, state must be {FAILED}, not {name!r}")
