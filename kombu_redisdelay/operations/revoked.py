"""Tells the result backend of tasks that were cancelled, and chords of those that were parts of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kombu_redisdelay.operations.content import embedded_in, properties_of
from kombu_redisdelay.operations.readers import Entry
from kombu_redisdelay.rpc_results import is_rpc, let_results_expire, reply_properties

#: What the result backend keeps as the reason.
REASON = "cancelled before it was delivered"


#: What the result backend must know of a part of a chord.
HEADERS = ("root_id", "parent_id", "group", "group_index")


#: If so many tasks in a row cannot be told, the result backend is taken to be away.
MOST_IN_A_ROW = 3

#: The ids of as many tasks that could not be told are kept, so that memory is bounded.
MOST_IDS = 1000


class RevokedTasks:
    """Tells of each task as soon as it was cancelled: what ends the process leaves few of them untold.

    Arguments:
        app: the Celery app.
        tells_chords: whether a chord learns of it, as of a part that has failed.

    Attributes:
        marked: how many tasks were told.
        unmarked: how many tasks could not be told.
        unmarked_ids: the ids of the first 1,000 of these.
        error: why the last one of them could not be told.
        needs_messages: whether it must see the messages, and not their ids only.

    Raises:
        ValueError: the app keeps no results, or has a result backend that cannot be made.
    """

    def __init__(self, app: Any, *, tells_chords: bool) -> None:
        from celery.backends.base import DisabledBackend

        try:
            self._backend = app.backend
        except Exception as exc:
            # Each kind of backend has errors of its own.
            raise ValueError(f"mark_revoked needs the result backend of the app: {exc}") from exc
        if isinstance(self._backend, DisabledBackend):
            raise ValueError("mark_revoked: the app has no result backend, so there is nobody to be told")
        self.needs_messages = is_rpc(self._backend)
        if self.needs_messages:
            let_results_expire()
        self._tells_chords = tells_chords
        self._kept: set[int] = set()
        self._in_a_row = 0
        self.marked = self.unmarked = 0
        self.unmarked_ids: list[str] = []
        self.error: Exception | None = None

    @property
    def is_away(self) -> bool:
        """Whether the result backend seems to be away. Then it is not tried any more."""
        return self._in_a_row >= MOST_IN_A_ROW

    def cannot_be_told(self, entry: Entry) -> bool:
        """Whether a message may be a part of a chord, and its body cannot be read: the chord would wait for
        ever."""
        is_kept = self._tells_chords and _is_in_group(entry) and embedded_in(entry.payload) is None
        if is_kept:
            # It may be read again.
            self._kept.add(hash((entry.name, entry.content.tag or entry.payload)))
        return is_kept

    @property
    def kept(self) -> int:
        """How many messages could not be told so far."""
        return len(self._kept)

    def tell(self, entry: Entry) -> None:
        """Tell of a message that was cancelled."""
        is_part = self._tells_chords and _is_in_group(entry)
        self._tell(entry.content.id, entry if is_part or self.needs_messages else None)

    def tell_ids(self, ids: Iterable[str]) -> None:
        """Tell of messages with these ids that were cancelled, but not their chords."""
        for id in ids:
            self._tell(id, None)

    def _tell(self, id: str, entry: Entry | None) -> None:
        from celery.app.task import Context

        request = None if entry is None else Context(_request(entry))
        names_somebody = request is not None and isinstance(request.reply_to, str) and request.reply_to
        if self.needs_messages and not names_somebody:
            # Celery would do nothing. The next one may name somebody.
            self.error = ValueError("with results in rpc://, the message names nobody to be told (reply_to)")
        elif not self.is_away:
            try:
                self._backend.mark_as_revoked(id, REASON, request=request)
            except Exception as exc:
                # As above.
                self.error = exc
                self._in_a_row += 1
            else:
                self._in_a_row = 0
                self.marked += 1
                return
        self.unmarked += 1
        if len(self.unmarked_ids) < MOST_IDS:
            self.unmarked_ids.append(id)


def _is_in_group(entry: Entry) -> bool:
    return bool(entry.content.headers.get("group"))


def _request(entry: Entry) -> Mapping[str, Any]:
    content, embedded = entry.content, embedded_in(entry.payload) or {}
    of_task = {name: content.headers.get(name) for name in HEADERS}
    waiting = reply_properties(properties_of(entry.payload))
    return {"id": content.id, "task": content.task, "chord": embedded.get("chord"), **of_task, **waiting}
