"""Tells the result backend of tasks that were cancelled, and chords of those that were parts of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu_redisdelay.operations.arguments import embedded_in
from kombu_redisdelay.operations.readers import Entry

#: What the result backend keeps as the reason.
REASON = "cancelled before it was delivered"


#: What the result backend must know of a part of a chord.
HEADERS = ("root_id", "parent_id", "group", "group_index")


class RevokedTasks:
    """Tasks that were cancelled because they have expired.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        #: Id -> what Celery must know of it; ``None`` if it is in no group.
        self._requests: list[tuple[str, Mapping[str, Any] | None]] = []
        self._kept: set[int] = set()

    def cannot_be_told(self, entry: Entry) -> bool:
        """Whether a message may be a part of a chord, and its body cannot be read: the chord would wait for
        ever."""
        is_kept = _is_in_group(entry) and embedded_in(entry.payload) is None
        if is_kept:
            # It may be read again.
            self._kept.add(hash((entry.name, entry.content.tag or entry.payload)))
        return is_kept

    @property
    def kept(self) -> int:
        """How many messages could not be told so far."""
        return len(self._kept)

    def note(self, entry: Entry) -> None:
        """Note a message that was cancelled."""
        self._requests.append((entry.content.id, _request(entry) if _is_in_group(entry) else None))

    def tell(self) -> None:
        """Store the state ``REVOKED``. A chord learns of it, as of a part that has failed."""
        from celery.app.task import Context

        for id, request in self._requests:
            context = None if request is None else Context(request)
            self._app.backend.mark_as_revoked(id, REASON, request=context)


def _is_in_group(entry: Entry) -> bool:
    return bool(entry.content.headers.get("group"))


def _request(entry: Entry) -> Mapping[str, Any]:
    content, embedded = entry.content, embedded_in(entry.payload) or {}
    of_task = {name: content.headers.get(name) for name in HEADERS}
    return {"id": content.id, "task": content.task, "chord": embedded.get("chord"), **of_task}
