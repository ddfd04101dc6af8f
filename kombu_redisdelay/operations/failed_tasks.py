"""What has failed or died: its kinds; how failed tasks are requeued at a rate; whether one that fails again
is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from kombu_redisdelay.broker.archive import Archive, Kind, kind_of
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.operations import reading
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.acting import Action, Done
from kombu_redisdelay.operations.pace import Pace, Tell
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import ARCHIVED, FAILED, State
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.verbs import REQUEUE_SLOWLY
from kombu_redisdelay.public import public


@public
@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed tasks of one name, with one class of exceptions; or dead letters, with one kind of reasons.

    Attributes:
        task: name of the task.
        error: name of the class of the exception; the kind of the reason of dead letters, a word, such as
            "delivery-limit".
        count: how many are kept.
        first: when the first one failed, in UTC. It may have been dropped, requeued or removed since.
        last: when the last one failed.
        returned: what was lost of them, as in :attr:`MessageInfo.returned`, if they are known to have
            returned; else empty.
    """

    task: str
    error: str
    count: int
    first: datetime
    last: datetime
    returned: str = ""

    def __add__(self, other: FailureGroup) -> FailureGroup:
        first, last = min(self.first, other.first), max(self.last, other.last)
        return replace(self, count=self.count + other.count, first=first, last=last)


def failure_groups(access: Access, selection: Selection) -> list[FailureGroup]:
    """See :meth:`kombu_redisdelay.Messages.failures`."""
    states = selection.states((FAILED,) if selection.state is None else ARCHIVED)
    groups = _counted if selection.is_whole else _read
    return together(group for state in states for group in groups(access, selection, state))


def _counted(access: Access, selection: Selection, state: State) -> Iterator[FailureGroup]:
    """Those that Redis counts in each queue."""
    tasks = Archive(access.store, state.name)
    names = reading.names(access, selection)
    for name, count in zip(names, tasks.counts(names), strict=True):
        for group in tasks.groups(name) if count else ():
            first, last = from_ms(group.first_ms), from_ms(group.last_ms)
            yield FailureGroup(group.task, group.error, group.count, first, last, group.returned)


def _read(access: Access, selection: Selection, state: State) -> Iterator[FailureGroup]:
    """Those that are found."""
    look = selection.look(state, reading.names(access, selection))
    if selection.is_grouped:
        look = replace(look, of_failed=selection.fits_failed)
    matches = selection.matcher(look.span, access.store)
    found: dict[Kind, list[float]] = {}
    for entry in filter(matches, state.reader.read(access.store, look)):
        found.setdefault(kind_of(entry.raw.head) or Kind("-", "-"), []).append(entry.raw.since_ms)
    for (task, error, returned), moments in found.items():
        first, last = from_ms(min(moments)), from_ms(max(moments))
        yield FailureGroup(task, error, len(moments), first, last, returned)


def together(groups: Iterable[FailureGroup]) -> list[FailureGroup]:
    """One of each kind, those with the most tasks first."""
    found: dict[Kind, FailureGroup] = {}
    for group in groups:
        kind = Kind(group.task, group.error, group.returned)
        found[kind] = found[kind] + group if kind in found else group
    return sorted(found.values(), key=lambda group: (-group.count, group.task, group.error, group.returned))


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


#: What is said if they are not.
LOST_AGAIN = (
    "By keep_failed of this app, its workers keep no failed tasks: a task that fails again is lost, with its "
    "message."
)


def loses_what_fails_again(access: Access, selection: Selection) -> bool:
    """Whether *selection* may have failed tasks, and the options of the app say that none are kept. Workers
    of another app may have other options."""
    return access.options.kept_failed is None and FAILED in (selection.state or (FAILED,))
