"""Does something to the messages of a selection, queue by queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import check_limit
from kombu_redisdelay.operations.progress import Progress, Tell
from kombu_redisdelay.operations.readers import Look, Span
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import State
from kombu_redisdelay.operations.verbs import How, Verb
from kombu_redisdelay.public import public


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
    """

    verb: str
    count: int
    by_id: Mapping[str, int] = field(default_factory=dict)
    due: datetime | None = None
    is_dry_run: bool = False

    def __bool__(self) -> bool:
        return self.count > 0


class Action:
    """A verb that is done to a selection.

    Arguments:
        limit: the largest number of messages; ``None`` for all.
        notes_ids: whether to note the ids also if messages are not selected by ids.
        asked: what the verb needs to know.

    Attributes:
        states: those in which it is done.
        by_id: id -> to how many messages it was done so far, if ids are noted.

    Raises:
        ValueError: the selection has a state that the verb does not know, *limit* is not a whole number from
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
        notes_ids: bool = False,
    ) -> None:
        check_limit(limit)
        self.verb = verb
        self.selection = selection
        self.limit = limit
        self.states = selection.states(verb.states)
        self._prepared = verb.prepare(store, **asked)
        self._store = store
        self._so_far = Progress(progress)
        self.by_id: Counter[str] = Counter(dict.fromkeys(selection.ids or (), 0))
        self._notes_ids = notes_ids or selection.ids is not None

    @property
    def done(self) -> Done:
        """What is done so far."""
        return self._result(self._so_far.count, self.by_id)

    def would(self, count: int, by_id: Mapping[str, int]) -> Done:
        """What it would do, to so many messages."""
        return replace(self._result(count, by_id), is_dry_run=True)

    def _result(self, count: int, by_id: Mapping[str, int]) -> Done:
        ids = {} if self.selection.ids is None else dict(by_id)
        return Done(self.verb.name, count, ids, self.verb.due(self._prepared))

    def run(self, names: Sequence[str]) -> Done:
        """Do it to the messages of these queues or partitions."""
        for name in names:
            for state in self.states:
                self._in_state(name, state, self.verb.how[state.name])
        return self.done

    def _in_state(self, name: str, state: State, how: How) -> None:
        is_bounded = self.limit is not None
        if how.every and self.selection.is_whole and not (is_bounded or self._notes_ids):
            self._so_far.add_step(how.every(self._store, name))
        elif how.by_ids and self.selection.ids is not None and not is_bounded:
            ids = self.selection.ids
            counts = how.by_ids(self._store, name, ids, self._prepared)
            self.by_id.update(dict(zip(ids, counts, strict=True)))
            self._so_far.add_step(sum(counts))
        else:
            look = self.selection.look(state, [name])
            for span in how.spans(look.span, self._prepared):
                self._in_span(name, state, how, look, span)

    def _in_span(self, name: str, state: State, how: How, look: Look, span: Span) -> None:
        left = None if self.limit is None else self.limit - self._so_far.count
        found = self._so_far.watching(state.reader.read(self._store, replace(look, span=span)))
        chosen = filter(self.selection.matcher(look.span), found)
        for entry in how.some(self._store, name, islice(chosen, left), self._prepared):
            self._so_far.count += 1
            if self._notes_ids:
                self.by_id[entry.content.id] += 1
        self._so_far.tell()
