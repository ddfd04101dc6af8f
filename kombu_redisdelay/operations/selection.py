"""Which messages: by their ids, or by what they have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kombu_redisdelay.broker.archive import Kind
from kombu_redisdelay.broker.message import from_ms, to_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.content import has_expired
from kombu_redisdelay.operations.fair import fits_key
from kombu_redisdelay.operations.filters import FILTERS, NOT_RETURNED, Filter
from kombu_redisdelay.operations.readers import Entry, Look, Span
from kombu_redisdelay.operations.states import ARCHIVED, STATES, State
from kombu_redisdelay.operations.typed import ago, check_pattern, from_now, parse_time
from kombu_redisdelay.public import public

#: With more texts than this, it takes Redis longer to look for them in each message than to send the message.
MOST_TEXTS = 10

_PLAIN = re.compile(r"[\w-]+", re.ASCII)
_SHA1 = re.compile(r"[0-9a-f]{40}")

#: One name, or several. ``None`` is all.
Names = str | Iterable[str] | None

#: A moment, or a distance from now: ahead for a state whose moment may be ahead, else back.
Time = datetime | timedelta | str | None


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Says which messages. ``Selection()`` is all of them, to look at. Methods that change messages refuse
    it, because a variable may have been ``None``: use ``Selection(every=True)``.

    Arguments:
        ids: those with these ids. An empty sequence selects none; ``None``, the default, does not look at
            ids.
        queue: those of this queue, or of several.
        state: those in this state, or in several: "scheduled", "ready", "unacked", "failed", "dead",
            "finished". If none is named, those are looked at that can match: only "failed" with *error*. The
            last one is looked at only by ids, or with *outcome* or *slower*.
        task: tasks with this name, in which ``*``, ``?`` and ``[...]`` are wildcards. Failed tasks are also
            found by the name of their :class:`FailureGroup`, which has no whitespace.
        args: tasks with this argument: ``"42"`` is a positional or a keyword argument, ``"order_id=42"`` a
            keyword argument. Values are compared as ``str`` writes them, with the same wildcards. A task
            whose arguments are not in JSON is never selected.
        worker: what this Celery worker has taken, or has failed or finished there, such as
            ``"celery@web-1"``, or of two workers with one name the one that a list shows as
            ``"celery@web-1:123"``; with the same wildcards.
        error: tasks that have failed with an exception of this class, such as ``"KeyError"``, with the same
            wildcards.
        returned: failed tasks with this :attr:`MessageInfo.returned`, with the same wildcards; ``"*"`` is all
            that are known to have returned, ``'""'`` those that are not. Without it, methods that change
            messages leave out those that have returned, unless they get their ids.
        outcome: finished tasks with this :attr:`MessageInfo.outcome`, with the same wildcards.
        slower: finished tasks that ran for longer than this, such as ``"10s"`` or ``"2m"``.
        reason: messages with this :attr:`MessageInfo.reason`, with the same wildcards.
        key: messages with this :attr:`MessageInfo.key`, with the same wildcards; ``'""'`` is those that have
            none.
        unique: messages with this :attr:`MessageInfo.unique`, with the same wildcards.
        related: tasks of which this is the id, or that of their group, their parent or their root.
        after: those whose moment is this one or later. It is the due time of a scheduled message; of another,
            it is since when the message is in its state. A message whose moment is unknown is left out. A
            ``datetime``, or a distance from now: a ``timedelta`` or a text such as ``"10m"``, which is ahead
            for scheduled messages, and back for the others. A text may also be a time in ISO 8601, with an
            offset. A ``datetime`` without a time zone is in UTC.
        before: those whose moment is before this one.
        expired: only tasks that have expired: workers will discard them. By the server's clock. A task whose
            time cannot be read has not expired.
        every: that all messages are meant, where nothing else is selected.

    Raises:
        TypeError: *ids* is one string; an id, the name of a queue or a filter is not a string.
        ValueError: there is no such state; *after* or *before* is no time, or a text without an offset; *ids*
            are given together with a time or a filter (*task*, *args*, *worker*, *error*, *returned*,
            *outcome*, *slower*, *reason*, *key*, *unique*, *related*, *expired*); there is no such *outcome*,
            or nothing such *returned*; *slower* is no length of time; a text with wildcards has more than 500
            characters.
    """

    ids: Sequence[str] | None = None
    queue: Names = None
    state: Names = None
    task: str | None = None
    args: str | None = None
    worker: str | None = None
    error: str | None = None
    returned: str | None = None
    outcome: str | None = None
    slower: str | None = None
    reason: str | None = None
    key: str | None = None
    unique: str | None = None
    related: str | None = None
    after: Time = None
    before: Time = None
    expired: bool = False
    every: bool = False

    def __post_init__(self) -> None:
        if self.ids is not None:
            object.__setattr__(self, "ids", checked_ids(self.ids))
            if self.has_times or self.filters or self.expired:
                raise ValueError("give either ids, or what messages have in common, not both")
        for name in ("queue", "state"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        for each, value in self.filters:
            if not isinstance(value, str):
                raise TypeError(f"{each.name} must be a str, not {value!r}")
            if each.is_pattern:
                check_pattern(each.name, value)
            each.check(value)
        for state in self.state or ():
            if state not in STATES:
                raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
        for name in ("after", "before"):
            _parsed(name, getattr(self, name))

    @property
    def has_times(self) -> bool:
        return (self.after, self.before) != (None, None)

    @property
    def filters(self) -> list[tuple[Filter, str]]:
        """The filters that it has, each with its value."""
        return [(each, value) for each in FILTERS if (value := getattr(self, each.name)) is not None]

    def states(self, allowed: Sequence[str] | None = None) -> list[State]:
        """The states to look at.

        Arguments:
            allowed: the names of the states that the verb knows; ``None`` for all.

        Raises:
            ValueError: another state is selected; or a time is, and more than one state.
        """
        allowed = tuple(STATES) if allowed is None else allowed
        for name in self.state or ():
            if name not in allowed:
                raise ValueError(f"state must be {_one_of(allowed)}, not {name!r}")
        found = [state for name, state in STATES.items() if name in allowed and self._may_be_in(state)]
        if self.has_times and len(found) != 1:
            raise ValueError("after and before need one state: each state has a time of its own")
        return found

    def _may_be_in(self, state: State) -> bool:
        if self.state is not None:
            return state.name in self.state
        if not all(each.may_match([state.name]) for each, _ in self.filters):
            return False
        return not state.is_past or self.ids is not None or self._is_of_past

    @property
    def _is_of_past(self) -> bool:
        """Whether only those match that have no message any more."""
        of_some = (each.states for each, _ in self.filters if each.states)
        return any(all(STATES[name].is_past for name in names) for names in of_some)

    def span(self, state: State) -> Span:
        """Between which moments the messages are, by the present time."""
        return self._ms("after", state), self._ms("before", state)

    def _ms(self, name: str, state: State) -> float | None:
        time = _parsed(name, getattr(self, name))
        moment = from_now(time) if state.is_ahead else ago(time)
        return None if moment is None else to_ms(moment)

    def look(self, state: State, names: Sequence[str]) -> Look:
        """What to ask the reader of *state* for.

        Arguments:
            names: the queues or partitions to look at.
        """
        texts: Sequence[str] = self.ids or ()
        for each, value in self.filters:
            if each.is_contained and "[" not in value:
                texts = [value]
        is_key = None if self.key is None else partial(fits_key, pattern=self.key)
        is_brief = state.name in ARCHIVED and any(each.of_failed for each, _ in self.filters)
        of_failed = self._of_failed if is_brief else None
        return Look(
            names,
            self.span(state),
            ids=self.ids,
            texts=_plain(texts),
            is_key=is_key,
            worker=self.worker,
            of_failed=of_failed,
            only_returned=self.returned not in (None, NOT_RETURNED),
        )

    def without_returned(self) -> Selection:
        """The same without failed tasks that are known to have returned, unless it asks for them."""
        is_asked_for = self.ids is not None or self.returned is not None
        return self if is_asked_for else replace(self, returned=NOT_RETURNED)

    def _of_failed(self, kind: Kind) -> bool | None:
        # All that may match is wanted, not only that it matches.
        return False if self.fits_failed(kind) is False else None

    def fits_failed(self, kind: Kind) -> bool | None:
        """Whether a failed task matches the filters that look at the kind that is noted of it; ``None`` if
        that does not tell."""
        answers = [each.of_failed(kind, value) for each, value in self.filters if each.of_failed]
        return False if False in answers else None if None in answers else True

    def matcher(self, span: Span, store: Store) -> Callable[[Entry], bool]:
        """Tells its messages among those that a reader finds.

        Arguments:
            span: between which moments they are (:meth:`span`).
            store: has the clock that says what has expired.
        """
        ids, filters = None if self.ids is None else frozenset(self.ids), self.filters
        now_ms = store.now_ms() if self.expired else 0.0

        def matches(entry: Entry) -> bool:
            return (
                entry.matches is not False
                and (ids is None or entry.content.id in ids)
                and _is_within(entry.moment_ms, span)
                and (not self.expired or has_expired(entry.content, now_ms))
                and (entry.matches or all(each.matches(entry, value) for each, value in filters))
            )

        return matches

    @property
    def is_said(self) -> bool:
        """Whether it says which messages, or that all are meant."""
        return self.every or not self.is_whole or (self.queue, self.state) != (None, None)

    @property
    def is_whole(self) -> bool:
        """Whether it is all messages of its queues and states."""
        return self.ids is None and not self.filters and not self.has_times and not self.expired

    @property
    def is_grouped(self) -> bool:
        """Whether the kinds that are noted of failed tasks tell which of them match."""
        return self.ids is None and not self.expired and all(each.of_failed for each, _ in self.filters)

    def is_counted(self, state: State) -> bool:
        """Whether its messages in *state* can be counted without reading them."""
        if self.ids is not None or self.filters or self.expired:
            return False
        return state.counts_span or not self.has_times


def _names(what: str, value: Any) -> tuple[str, ...] | None:
    """One name, or several, as a tuple; ``None`` for all."""
    if value is None:
        return None
    try:
        names = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        names = (value,)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} must be a str, or several, not {name!r}")
    return names


def _plain(texts: Sequence[str]) -> list[str]:
    """Parts of *texts* that every JSON writes in the same way: a message that contains one of *texts* also
    contains one of these. Empty if there are no such parts."""
    found = []
    for text in texts:
        plain = max(_PLAIN.findall(text), key=len, default="")
        # An id that is the SHA-1 of an entry is not in the entry.
        if len(texts) > MOST_TEXTS or not plain or _SHA1.fullmatch(text):
            return []
        found.append(plain)
    return found


def _one_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def checked_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """The argument *ids*, each once.

    Raises:
        TypeError: it is one string, or an id is not a string.
        ValueError: an id is empty.
    """
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"ids must be several, not the {type(ids).__name__} {ids!r}")
    found = tuple(dict.fromkeys(ids))
    for id in found:
        if not isinstance(id, str):
            raise TypeError(f"an id must be a str, not {id!r}")
        if not id:
            raise ValueError("an id is empty")
    return found


def selection_of(selection: Selection | None, ids: Iterable[str] | None) -> Selection:
    """What a method that changes messages was given: a selection, or ids.

    Raises:
        TypeError: both or none were given, or *selection* is none.
        ValueError: *selection* does not say which messages.
    """
    if not isinstance(selection, Selection | None):
        raise TypeError(f"this takes a Selection, or ids=[...], not {selection!r}")
    if selection is not None and ids is None:
        if not selection.is_said:
            raise ValueError("which messages? For all messages of all queues, say Selection(every=True)")
        return selection
    if selection is None and ids is not None:
        return Selection(ids=checked_ids(ids))
    raise TypeError("give either a selection or ids; Selection(every=True) is all messages")


def _parsed(name: str, time: object) -> datetime | timedelta | None:
    if isinstance(time, str):
        try:
            return parse_time(time, None)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc
    if time is None or isinstance(time, (datetime, timedelta)):
        return time
    raise ValueError(f"{name} must be a datetime, a timedelta or a text such as '10m', not {time!r}")


def _is_within(moment_ms: float | None, span: Span) -> bool:
    after_ms, before_ms = span
    if after_ms is None and before_ms is None:
        return True
    if moment_ms is None:
        return False
    # To the microsecond, as it is shown.
    ms = to_ms(from_ms(moment_ms))
    return (after_ms is None or after_ms <= ms) and (before_ms is None or ms < before_ms)
