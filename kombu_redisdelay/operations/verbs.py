"""What can be done to messages: the verbs, and how each of them is done in each state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from kombu_redisdelay.broker import paging
from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.paging import IDS_PER_CALL
from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Schedule
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.archive_reader import ArchiveReader
from kombu_redisdelay.operations.changed import (
    NOW_MS,
    Move,
    Stays,
    foresee_rescheduled,
    may_be_in_chord,
    moving_to,
    renewed,
    reschedule,
    reschedule_ids,
    with_raw,
)
from kombu_redisdelay.operations.parameters import (
    FLAG,
    LIMIT,
    MOMENT,
    RATE,
    RATE_EXAMPLES,
    SECONDS,
    SHIFT,
    TIME,
    Parameter,
)
from kombu_redisdelay.operations.readers import Entry, Look, Span
from kombu_redisdelay.operations.states import ARCHIVED, FAILED, READY, SCHEDULED, UNACKED
from kombu_redisdelay.words import ACKED_EARLY

#: Does it to messages of one queue or partition, in the order given. Yields those that were still there.
Some = Callable[[Store, str, Iterable[Entry], Any, Stays], Iterator[Entry]]


@dataclass(frozen=True, slots=True)
class How:
    """How a verb is done in one state. The functions get what the verb has prepared.

    Attributes:
        some: does it to some messages.
        by_ids: does it to those with some ids, and returns for each how many there were; ``None`` if that is
            not faster.
        every: does it to all messages of a queue or partition at once, and returns how many there were, or
            ``None`` if it has done nothing, because they cannot all be treated alike. ``None`` if that can
            never be.
        spans: parts of a span to go through one after the other, so that nothing is met twice.
        each: turns what is prepared into what *some* needs for one queue or partition. Its last argument
            counts the messages there that it is done to.
        identity: tells a message that may be met again after it was done; ``None`` if none is.
        foresee: tells, without doing it, which of the messages of a look will stay as they are because
            another one holds their unique key, or they were kept without their messages, by what is prepared.
            ``None`` if it is done to such messages, too.
        leaves_chord: whether a message leaves its chord, whose body does not run because of it.
        runs_again: whether a task whose function has returned runs once more.
    """

    some: Some
    by_ids: Callable[[Store, str, Sequence[str], Any, Stays], Sequence[int]] | None = None
    every: Callable[[Store, str], int | None] | None = None
    spans: Callable[[Span, Any], Iterable[Span]] = lambda span, prepared: (span,)
    each: Callable[[Any, Callable[[], int]], Any] = lambda prepared, how_many: prepared
    identity: Callable[[Any], Callable[[Entry], Any] | None] = lambda prepared: None
    foresee: Callable[[Store, Look, Callable[[Entry], bool], Stays, Any], None] | None = None
    leaves_chord: Callable[[bytes], bool] = lambda payload: False
    runs_again: Callable[[Entry], bool] = lambda entry: False


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that can be done to messages.

    Attributes:
        name: as it is in Python, on the command line and in JSON.
        done, doing: its forms, for "cancelled 3 messages" and for "cancelling".
        help: what it does, for the help of the command line.
        how: name of a state -> how it is done there.
        parameters: what its method also asks for.
        prepare: turns the arguments into what the functions of *how* need. Raises ``ValueError``.
        removes: whether the messages do not exist afterwards.
        needs_state: whether a selection that is not by ids must say the states.
        needs_app: whether it needs the Celery app, which *prepare* gets as the argument *app*.
        remark: what is said beside what was done; empty for nothing.
        not_found: what is said if a message was not found; empty for nothing.
        due: when messages are due afterwards, by what is prepared; ``None`` if that is not the same for all.
    """

    name: str
    done: str
    doing: str
    help: str
    how: Mapping[str, How]
    parameters: tuple[Parameter, ...] = ()
    prepare: Callable[..., Any] = lambda store: None
    removes: bool = False
    needs_state: bool = False
    needs_app: bool = False
    remark: str = ""
    not_found: str = ""
    due: Callable[[Any], datetime | None] = lambda prepared: None

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states that it knows."""
        return tuple(self.how)

    @property
    def options(self) -> tuple[Parameter, ...]:
        """What the command line asks for."""
        return tuple(each for each in self.parameters if each.help)

    @property
    def fields(self) -> tuple[Parameter, ...]:
        """What a form on the page asks for."""
        return tuple(each for each in self.parameters if each.label)

    def prepared(self, store: Store, given: Mapping[str, Any]) -> Any:
        """What the functions of *how* need, of what its method was *given*. A text is read as a person writes
        it.

        Raises:
            ValueError: it makes no sense.
        """
        types = {each.name: each.type for each in self.parameters}
        read = {
            name: types[name].read(value, None) if isinstance(value, str) and name in types else value
            for name, value in given.items()
        }
        return self.prepare(store, **read)


def _cancel_scheduled(
    store: Store, name: str, entries: Iterable[Entry], prepared: None, stays: Stays
) -> Iterator[Entry]:
    return with_raw(partial(Schedule(store).remove, name), entries)


def _cancel_ready(
    store: Store, name: str, entries: Iterable[Entry], prepared: None, stays: Stays
) -> Iterator[Entry]:
    return with_raw(partial(ReadyLists(store).remove_all, name), entries)


def _requeue(state: str, how: str = paging.REQUEUE) -> Some:
    def some(
        store: Store, name: str, entries: Iterable[Entry], prepared: Any, stays: Stays
    ) -> Iterator[Entry]:
        # A dead letter is requeued as it is.
        renew = renewed if state == FAILED else bytes
        take_out = partial(Archive(store, state).take_out, name, how, renewed=renew, stays=stays)
        return with_raw(take_out, entries)

    return some


def _remove(state: str) -> Some:
    def some(
        store: Store, name: str, entries: Iterable[Entry], prepared: None, stays: Stays
    ) -> Iterator[Entry]:
        return with_raw(partial(Archive(store, state).take_out, name, paging.REMOVE), entries)

    return some


def _until(span: Span, now_ms: float) -> Iterable[Span]:
    """The part of a span before *now_ms*: what fails or dies again meanwhile is not requeued twice."""
    from_ms, before_ms = span
    return [(from_ms, now_ms if before_ms is None else min(before_ms, now_ms))]


def _foresee_kept(
    state: str, store: Store, look: Look, matches: Callable[[Entry], bool], stays: Stays, prepared: Any
) -> None:
    """Which of those that are kept will not be requeued. Of several with the same key, the first one takes
    it."""
    # What one script has found out, the next one does not know.
    takes: dict[tuple[str, str | None], str] = {}

    def special() -> Iterator[Entry]:
        for entry in filter(matches, ArchiveReader(state).read(store, look)):
            if not entry.raw.is_whole:
                yield entry
            elif (entry.name, entry.content.unique) in takes:
                stays(entry.raw, takes[entry.name, entry.content.unique])
            elif entry.content.unique:
                yield entry

    for name, of_queue in groupby(special(), attrgetter("name")):
        for entry in _requeue(state, paging.FORESEE)(store, name, of_queue, prepared, stays):
            takes[name, entry.content.unique] = entry.content.id


def _clear(state: str) -> Callable[[Store, str], int | None]:
    return lambda store, name: Archive(store, state).clear(name)


@dataclass(frozen=True, slots=True)
class _Revoking:
    """How workers are told.

    Attributes:
        app: the Celery app.
        terminate: whether tasks that run are ended, too.
    """

    app: Any
    terminate: bool


def _revoking(store: Store, app: Any = None, terminate: bool = False) -> _Revoking:
    if app is None:
        raise TypeError("revoke needs the Celery app, to tell its workers")
    return _Revoking(app, terminate)


def _revoke(
    store: Store, name: str, entries: Iterable[Entry], how: _Revoking, stays: Stays
) -> Iterator[Entry]:
    tasks = (entry for entry in entries if entry.content.task is not None)
    for some in portions(tasks, lambda _: 1, IDS_PER_CALL, IDS_PER_CALL):
        how.app.control.revoke([entry.content.id for entry in some], terminate=how.terminate)
        yield from some


CANCEL = Verb(
    "cancel",
    "cancelled",
    "cancelling",
    "Remove messages that wait. They will not run.",
    {
        SCHEDULED: How(
            _cancel_scheduled,
            by_ids=lambda store, name, ids, prepared, stays: Schedule(store).cancel(name, ids),
            every=lambda store, name: Schedule(store).clear(name),
        ),
        READY: How(_cancel_ready, every=lambda store, name: ReadyLists(store).clear(name)),
    },
    parameters=(
        Parameter(
            "mark_revoked",
            FLAG,
            "Also set the state REVOKED in the app's result backend.",
            stops_if="the result backend could not be told",
        ),
    ),
    removes=True,
)

#: How the due times of scheduled messages change.
_MOVED = How(
    reschedule,
    by_ids=reschedule_ids,
    spans=lambda span, move: move.spans(span),
    each=lambda move, how_many: move.target(how_many),
    # Those with due times of their own may come later in the same list.
    identity=lambda move: None if move.due else lambda entry: entry.raw.member,
    foresee=foresee_rescheduled,
)

RESCHEDULE = Verb(
    "reschedule",
    "rescheduled",
    "rescheduling",
    "Deliver scheduled messages at another time.",
    {SCHEDULED: _MOVED},
    parameters=(
        Parameter("countdown", SECONDS, "Time from now: 90, 90s, 10m, 2h, 3d or 1w."),
        Parameter("eta", MOMENT, "A moment in ISO 8601, such as 2027-01-01T09:00."),
        Parameter("by", SHIFT, "Shift each by this time: 2h, or -30m."),
        Parameter(
            "over",
            SECONDS,
            "Spread them evenly over this time, which begins at --countdown, --eta or now.",
        ),
        Parameter(
            "time",
            TIME,
            label="New time",
            placeholder="10m, 2h, 3d from now, or 2027-01-31T12:00",
            is_required=True,
            argument=lambda time: "eta" if isinstance(time, datetime) else "countdown",
            # Whatever the new time will be: what is blocked stays.
            foreseen=0,
        ),
    ),
    prepare=moving_to,
    due=lambda move: move.due,
)

DELIVER_NOW = Verb(
    "deliver_now",
    "delivered",
    "delivering",
    "Move scheduled messages to their queues now. They go there in the order in which they are due.",
    {SCHEDULED: _MOVED},
    prepare=lambda store: Move(NOW_MS),
)

REQUEUE = Verb(
    "requeue",
    "requeued",
    "requeueing",
    "Put failed tasks, or dead letters, back into their queues. They count as if they had never failed.",
    {
        **{
            state: How(_requeue(state), spans=_until, foresee=partial(_foresee_kept, state))
            for state in ARCHIVED
        },
        FAILED: How(
            _requeue(FAILED),
            spans=_until,
            foresee=partial(_foresee_kept, FAILED),
            leaves_chord=may_be_in_chord,
            runs_again=lambda entry: bool(entry.known["returned"]),
        ),
    },
    parameters=(
        Parameter(
            "rate",
            RATE,
            "Requeue failed tasks slowly, such as 10/s or 100/m. Stops when too many fail again.",
            stops_if="too many have failed again",
        ),
    ),
    prepare=lambda store: store.now_ms(),
    needs_state=True,
)

#: At a rate, while some fail again.
REQUEUE_SLOWLY = replace(
    REQUEUE,
    how={FAILED: REQUEUE.how[FAILED]},
    parameters=tuple(
        # Its pace says what is wrong with a rate.
        replace(rate, type=LIMIT, label="Rate", placeholder=RATE_EXAMPLES, is_required=True)
        for rate in REQUEUE.parameters
    ),
)

REMOVE = Verb(
    "remove",
    "removed",
    "removing",
    "Remove failed tasks, or dead letters, for good.",
    {state: How(_remove(state), every=_clear(state)) for state in ARCHIVED},
    removes=True,
    needs_state=True,
)

REVOKE = Verb(
    "revoke",
    "revoked",
    "revoking",
    "Have workers skip tasks that they have taken and not begun. What runs goes on.",
    {UNACKED: How(_revoke)},
    parameters=(
        Parameter(
            "terminate",
            FLAG,
            "Also end tasks that run (prefork).",
            warning="Some of them may run. End these in the middle of what they do?",
        ),
    ),
    prepare=_revoking,
    needs_app=True,
    remark="Tasks that run go on, unless they are terminated. With the pools threads, gevent and eventlet, "
    "so do those that wait in the pool.",
    not_found=ACKED_EARLY,
)

#: Name -> verb.
VERBS = {verb.name: verb for verb in (CANCEL, RESCHEDULE, DELIVER_NOW, REVOKE, REQUEUE, REMOVE)}
