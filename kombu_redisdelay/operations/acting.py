"""Does something to the messages of a selection, queue by queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, filterfalse, islice, takewhile
from threading import Event
from typing import Any

from kombu_redisdelay.broker.archive import Archived
from kombu_redisdelay.broker.schedule import Scheduled
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unacked import holder_of
from kombu_redisdelay.broker.unique import written
from kombu_redisdelay.operations.access import check_limit
from kombu_redisdelay.operations.content import Content
from kombu_redisdelay.operations.pace import ASKED, Pace, Progress, Tell
from kombu_redisdelay.operations.readers import Entry, Look
from kombu_redisdelay.operations.revoked import RevokedTasks
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED, STATES, State
from kombu_redisdelay.operations.verbs import How, Verb
from kombu_redisdelay.public import public

#: For as many messages, the holder of their unique key is named.
MOST_HOLDERS = 20

#: Why it stops if the result backend cannot be told.
BACKEND = "backend"


@public
@dataclass(frozen=True, slots=True)
class Done:
    """What was done, or with *dry_run* would be done. It is true if that is at least one message.

    Attributes:
        verb: the name of what was done, such as "cancel".
        count: to how many messages.
        by_id: if they were selected by ids: id -> to how many messages with this id.
        due: when they are due now, if all are due at the same time.
        is_dry_run: whether nothing was changed.
        blocked: how many other messages stay as they are, because another one holds their unique key.
        holders: id of some of these, 20 at most -> id of the message that holds the key.
        untold: how many other tasks were not cancelled, because they may be parts of chords, and their bodies
            cannot be read: their chords could not be told, and would wait for ever.
        without_message: how many failed tasks stay, because they were kept without their messages.
        left: with a rate: how many other messages of the selection are still where they were, also those
            above the limit. Else ``None``.
        failed_again: with a rate: how many have failed again so far.
        waiting: with a rate: how many of those that were sent wait in queues that no worker consumes from.
        stopped: why it has stopped before all was done: ``"asked"`` if it was asked to; ``"failing"`` if too
            many have failed again, with a rate; ``"backend"`` if the result backend could not be told. Else
            empty.
        unmarked: how many messages were cancelled, and the result backend could not be told.
        marked: of how many that were cancelled the result backend was told.
        chord_parts: how many of those that it was done to are parts of chords, or may be: the bodies of these
            chords will not run because of them.
        returned: how many other failed tasks of the selection stay, because they are known to have returned,
            and it does not ask for them (:attr:`Selection.returned`).
        run_again: how many of those that it was done to are known to have returned, and run once more.
        unknown: with a rate: how many of the last ones that were sent have not failed again, and may still
            run.
    """

    verb: str
    count: int
    by_id: Mapping[str, int] = field(default_factory=dict)
    due: datetime | None = None
    is_dry_run: bool = False
    blocked: int = 0
    holders: Mapping[str, str] = field(default_factory=dict)
    untold: int = 0
    without_message: int = 0
    left: int | None = None
    failed_again: int = 0
    waiting: int = 0
    stopped: str = ""
    unmarked: int = 0
    marked: int = 0
    chord_parts: int = 0
    returned: int = 0
    run_again: int = 0
    unknown: int = 0

    def __bool__(self) -> bool:
        return self.count > 0


class Action:
    """A verb that is done to a selection.

    Arguments:
        limit: the largest number of messages that it is done to; ``None`` for all.
        revoked: tells of what is cancelled, and spares what it could not tell; ``None`` if nobody is told.
        asked: the arguments of the verb.
        stop: set by any thread to have it stop between two portions; ``None`` for never.
        pace: says when it is done to how many; ``None`` if it is done as fast as it can be.

    Attributes:
        states: those in which it is done.
        by_id: id -> to how many messages it was done so far, if they are selected by ids.

    Raises:
        ValueError: the selection has a state that the verb does not know, or has no state though the verb
            needs one; *limit* is not a whole number from
            0, or *asked* makes no sense.
    """

    def __init__(
        self,
        store: Store,
        verb: Verb,
        selection: Selection,
        limit: int | None,
        progress: Tell | None,
        asked: Mapping[str, Any],
        *,
        revoked: RevokedTasks | None = None,
        stop: Event | None = None,
        pace: Pace | None = None,
    ) -> None:
        check_limit(limit)
        self.verb = verb
        self.selection = selection
        self.limit = limit
        self.states = selection.states(verb.states)
        #: What it leaves out: those that have returned. ``None`` if it was asked for them, or finds none.
        self._left_out: Selection | None = None
        self._is_whole = selection.is_whole
        if STATES[FAILED] in self.states and selection.without_returned() is not selection:
            self._left_out = replace(selection, state=FAILED, returned="*")
            self.selection = selection.without_returned()
        if verb.needs_state and selection.ids is None and selection.state is None:
            known = " or ".join(verb.states)
            raise ValueError(f"which state? To {verb.name} messages other than by their ids, say {known}")
        self._prepared = verb.prepared(store, asked)
        self._store = store
        self._so_far = Progress(progress)
        self.by_id: Counter[str] = Counter(dict.fromkeys(selection.ids or (), 0))
        self._revoked = revoked
        self._stop = stop
        self._stopped = ""
        self._pace = pace
        self._blocked: Counter[str] = Counter()
        self._blocked_so_far: set[int] = set()
        self._without_message: set[tuple[str, bytes]] = set()
        self._holders: dict[str, str] = {}
        self._chord_parts = self._run_again = self._returned = 0

    @property
    def _needs_messages(self) -> bool:
        """Whether who is told must see what is done."""
        return self._revoked is not None and self._revoked.needs_messages

    @property
    def done(self) -> Done:
        """What is done so far."""
        return self._result(self._so_far.count, self.by_id)

    def would(self, count: int, by_id: Mapping[str, int]) -> Done:
        """The result of a dry run, for *count* messages."""
        return replace(self._result(count, by_id), is_dry_run=True)

    def _result(self, count: int, by_id: Mapping[str, int]) -> Done:
        return Done(
            *(self.verb.name, count, dict(by_id), self.verb.due(self._prepared)),
            blocked=len(self._blocked_so_far),
            holders=dict(self._holders),
            untold=0 if self._revoked is None else self._revoked.kept,
            without_message=len(self._without_message),
            stopped=self._stopped,
            unmarked=0 if self._revoked is None else self._revoked.unmarked,
            marked=0 if self._revoked is None else self._revoked.marked,
            chord_parts=min(self._chord_parts, count),
            returned=self._returned,
            run_again=min(self._run_again, count),
        )

    def foresee(self, names: Sequence[str]) -> Counter[str]:
        """Find the messages of these queues or partitions that will stay as they are, because another one
        holds their unique key, they were kept without their messages, or have returned. Returns their ids, if
        messages are selected by ids."""
        self._count_left_out(names)
        for state in self.states:
            how = self.verb.how[state.name]
            if how.foresee is not None:
                look = self.selection.look(state, names)
                matches = self._noting(how, self.selection.matcher(look.span, self._store))
                how.foresee(self._store, look, matches, self._stay, self._prepared)
        return self._blocked

    def _count_left_out(self, names: Sequence[str]) -> None:
        """Find how many stay in these queues or partitions because they have returned."""
        if self._left_out is not None:
            state = STATES[FAILED]
            look = self._left_out.look(state, names)
            if self._left_out.is_grouped:
                look = replace(look, of_failed=self._left_out.fits_failed)
            matches = self._left_out.matcher(look.span, self._store)
            self._returned = sum(1 for _ in filter(matches, state.reader.read(self._store, look)))

    def _noting(self, how: How, matches: Callable[[Entry], bool]) -> Callable[[Entry], bool]:
        """The same as *matches*. It notes what is special of them."""

        def noting(entry: Entry) -> bool:
            does_match = matches(entry)
            if does_match:
                self._note(how, entry)
            return does_match

        return noting

    def _note(self, how: How, entry: Entry) -> None:
        self._chord_parts += how.leaves_chord(entry.payload)
        self._run_again += how.runs_again(entry)

    def _stay(self, message: Scheduled | Archived, holder: str | None) -> None:
        if isinstance(message, Archived) and not message.is_whole:
            identity_there = message.queue, message.name
            if self.selection.ids is not None and identity_there not in self._without_message:
                self._blocked[message.id] += 1
            self._without_message.add(identity_there)
            return
        content = Content.of(message.payload, "")
        identity = hash((message.queue, content.tag or message.payload, content.id))
        if identity in self._blocked_so_far:
            return
        self._blocked_so_far.add(identity)
        if self.selection.ids is not None:
            self._blocked[content.id] += 1
        if len(self._holders) < MOST_HOLDERS and content.unique is not None:
            holder = holder or holder_of(self._store, message.queue, written(content.unique))
            if holder is not None:
                self._holders[content.id] = holder

    def run(self, names: Sequence[str]) -> Done:
        """Do it to the messages of these queues or partitions."""
        for name in names:
            for state in self.states:
                if not self._stops():
                    self._in_state(name, state, self.verb.how[state.name])
        self._count_left_out(names)
        if self._pace is None:
            return self.done
        self._pace.look()
        staying = len(self._blocked_so_far) + len(self._without_message)
        return replace(
            self.done,
            left=max(0, self.count(names) - staying),
            failed_again=self._pace.failed_again,
            waiting=(waiting := self._pace.waiting()),
            unknown=max(0, self._pace.unknown() - waiting),
            stopped=self._pace.stopped,
        )

    def _in_state(self, name: str, state: State, how: How) -> None:
        is_bounded, every = self.limit is not None, None
        if how.every and self._is_whole and not (is_bounded or self._revoked):
            every = how.every(self._store, name)
        if every is not None:
            self._so_far.add_portion(every)
        elif how.by_ids and self.selection.ids is not None and not (is_bounded or self._needs_messages):
            ids = self.selection.ids
            counts = how.by_ids(self._store, name, ids, self._prepared, self._stay)
            by_id = dict(zip(ids, counts, strict=True))
            self.by_id.update(by_id)
            if self._revoked is not None:
                self._revoked.tell_ids(id for id, count in by_id.items() if count)
            self._so_far.add_portion(sum(counts))
        else:
            look = self.selection.look(state, [name])
            matches = self.selection.matcher(look.span, self._store)
            prepared = how.each(self._prepared, lambda: self._count(state, look, matches))
            for span in how.spans(look.span, self._prepared):
                found = self._matching(state, replace(look, span=span), matches)
                self._to_each(name, how, found, prepared)

    def _to_each(self, name: str, how: How, entries: Iterator[Entry], prepared: Any) -> None:
        identity = how.identity(self._prepared)
        done: set[int] = set()
        if identity is not None:
            entries = (entry for entry in entries if hash(identity(entry)) not in done)
        following: list[Entry] = []
        while (room := self._room()) != 0:
            rest = islice(entries, None if room is None else room - len(following))
            for entry in how.some(self._store, name, chain(following, rest), prepared, self._stay):
                self._so_far.count += 1
                if identity is not None:
                    # A million hashes need 60 MB, a million names twice as much.
                    done.add(hash(identity(entry)))
                if self.selection.ids is not None:
                    self.by_id[entry.content.id] += 1
                self._note(how, entry)
                if self._revoked is not None:
                    self._revoked.tell(entry)
                if self._pace is not None:
                    self._pace.note(entry.raw)
            # Some may stay, or have moved on: the limit is for what was done.
            following = [] if self._pace is None and self._left() is None else list(islice(entries, 1))
            if not following:
                break
        self._so_far.tell()

    def _matching(self, state: State, look: Look, matches: Callable[[Entry], bool]) -> Iterator[Entry]:
        read = takewhile(lambda _: not self._stops(), state.reader.read(self._store, look))
        found = filter(matches, self._so_far.watching(read))
        return found if self._revoked is None else filterfalse(self._revoked.cannot_be_told, found)

    def _stops(self) -> bool:
        """Whether it does not go on. What was selected by ids is cancelled also if nobody can be told: the
        caller has the ids."""
        if self._stop is not None and self._stop.is_set():
            self._stopped = ASKED
        elif self._revoked is not None and self._revoked.is_away and self.selection.ids is None:
            self._stopped = BACKEND
        return bool(self._stopped)

    def count(self, names: Sequence[str]) -> int:
        """To how many messages of these queues or partitions it would be done without a limit."""
        count = 0
        for state in self.states:
            look = self.selection.look(state, names)
            matches = self.selection.matcher(look.span, self._store)
            for span in self.verb.how[state.name].spans(look.span, self._prepared):
                count += self._count_all(state, replace(look, span=span), matches)
        return count

    def _count_all(self, state: State, look: Look, matches: Callable[[Entry], bool]) -> int:
        if self.selection.is_counted(state):
            return state.reader.count(self._store, look.names, look.span)
        return sum(1 for _ in self._matching(state, look, matches))

    def _count(self, state: State, look: Look, matches: Callable[[Entry], bool]) -> int:
        """To how many messages of the *look* it will be done."""
        count, left = self._count_all(state, look, matches), self._left()
        return count if left is None else min(left, count)

    def _room(self) -> int | None:
        """To how many messages it may be done now; ``None`` for any number. With a pace, this waits."""
        left = self._left()
        if self._pace is None or left == 0:
            return left
        may_go = self._pace.wait(self._so_far.tell)
        return may_go if left is None else min(left, may_go)

    def _left(self) -> int | None:
        """To how many more messages it may be done; ``None`` for any number."""
        return None if self.limit is None else self.limit - self._so_far.count
