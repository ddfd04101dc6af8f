"""What an action acts on, or a list shows: what the fields of a form or of an address say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from kombu_redisdelay.operations.filters import FILTERS
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import STATES, State
from kombu_redisdelay.operations.typed import ago, from_now, parse_time

#: How lone surrogates are written and read.
_SURROGATES = "surrogatepass"


def quoted(text: str) -> str:
    """*text* as plain ASCII, for a field of a form or a cookie."""
    return quote(text, errors=_SURROGATES)


def unquoted(text: str) -> str:
    """The text from which :func:`quoted` made *text*."""
    try:
        return unquote(text, errors=_SURROGATES)
    except UnicodeDecodeError:
        return unquote(text, errors="replace")


def to_query(fields: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """The query of an address. Fields that are empty are left out."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    return urlencode([(name, value) for name, value in pairs if value], errors=_SURROGATES)


def of_query(query: str, most: int | None = None) -> list[tuple[str, str]]:
    """The fields of a query, or of a form. Bytes that are no UTF-8 are replaced.

    Raises:
        ValueError: there are more than *most*.
    """
    try:
        return parse_qsl(query, keep_blank_values=True, errors=_SURROGATES, max_num_fields=most)
    except UnicodeDecodeError:
        return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=most)


def well_formed(text: str) -> str:
    """*text*, with a mark in place of what UTF-8 cannot carry. No queue has a name with that."""
    return text.encode(errors=_SURROGATES).decode(errors="replace")


#: The order of a list whose last messages come first. It is empty for the other one.
LAST_FIRST = "last"

#: The field that picks tasks that have expired.
EXPIRED = "expired"

#: The state whose list is shown first.
FIRST = next(iter(STATES))


@dataclass(frozen=True, slots=True)
class Choice:
    """Messages in one state.

    Attributes:
        state: the name of the state.
        queue: only this queue; empty for all.
        filters: names of filters, each with its value.
        after, before: only messages of this time or later, and before a time: 90s, 10m, 2h, 3d from now for
            scheduled messages, else ago; or ISO 8601. Empty for all.
        is_expired: whether only tasks that have expired.
        order: :data:`LAST_FIRST` if those come first that are due last, or that came last; else empty.
    """

    state: str = FIRST
    queue: str = ""
    filters: tuple[tuple[str, str], ...] = ()
    after: str = ""
    before: str = ""
    is_expired: bool = False
    order: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Choice:
        """The choice that the *fields* of a form or an address make."""
        state = fields.get("state", "")
        return cls(
            state if state in STATES else FIRST,
            well_formed(fields.get("queue", "")),
            # Spaces stay: without them, the id of a group may be that of another one.
            tuple((each.name, fields[each.name]) for each in FILTERS if fields.get(each.name)),
            fields.get("after", "").strip(),
            fields.get("before", "").strip(),
            bool(fields.get(EXPIRED)),
            LAST_FIRST if fields.get("order") == LAST_FIRST else "",
        )

    @property
    def its_state(self) -> State:
        return STATES[self.state]

    def in_state(self, state: str) -> Choice:
        return replace(self, state=state)

    @property
    def is_last_first(self) -> bool:
        return self.order == LAST_FIRST

    @property
    def turned(self) -> Choice:
        """The same in the other order."""
        return replace(self, order="" if self.is_last_first else LAST_FIRST)

    @property
    def fields(self) -> dict[str, str]:
        """What makes the same choice again."""
        return {
            "state": self.state,
            "queue": self.queue,
            **dict(self.filters),
            "after": self.after,
            "before": self.before,
            EXPIRED: "1" if self.is_expired else "",
            "order": self.order,
        }

    @property
    def query(self) -> str:
        """The same as the query of an address."""
        return to_query(self.fields)

    def fixed(self, zone: tzinfo) -> Choice:
        """The same choice with moments in place of distances from now.

        Raises:
            ValueError: *after* or *before* is no time.
        """
        after, before = ("" if moment is None else moment.isoformat() for moment in self.span(zone))
        return replace(self, after=after, before=before)

    @property
    def is_filtered(self) -> bool:
        return bool(self.queue) or self.picks_some

    @property
    def picks_some(self) -> bool:
        """Whether it may leave out messages of its queue."""
        return bool(self.filters or self.after or self.before or self.is_expired)

    def selection(self, zone: tzinfo) -> Selection:
        """What it selects.

        Arguments:
            zone: that of a time without an offset.

        Raises:
            ValueError: *after* or *before* is no time.
        """
        after, before = self.span(zone)
        filters: dict[str, Any] = dict(self.filters)
        return Selection(
            queue=self.queue or None,
            state=self.state,
            after=after,
            before=before,
            expired=self.is_expired,
            **filters,
        )

    def span(self, zone: tzinfo) -> tuple[datetime | None, datetime | None]:
        """The moments that *after* and *before* are.

        Arguments:
            zone: that of a time without an offset.

        Raises:
            ValueError: one of them is no time.
        """
        return self._moment("after", self.after, zone), self._moment("before", self.before, zone)

    def _moment(self, name: str, text: str, zone: tzinfo) -> datetime | None:
        if not text:
            return None
        try:
            time = parse_time(text, zone)
        except ValueError as exc:
            raise ValueError(f"{name.capitalize()}: {exc}") from exc
        return from_now(time) if self.its_state.is_ahead else ago(time)
