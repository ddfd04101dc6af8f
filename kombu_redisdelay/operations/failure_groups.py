"""What has failed or died, by task and exception. Tasks that are known to have returned are apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from kombu_redisdelay.broker.archive import Archive, Kind, kind_of
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.operations import reading
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import ARCHIVED, FAILED, State
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
