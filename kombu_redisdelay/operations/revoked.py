"""Tells the result backend of tasks that were cancelled, and chords of those that were parts of one."""

from __future__ import annotations

from typing import Any

from kombu_redisdelay.operations.arguments import embedded_in
from kombu_redisdelay.operations.readers import Entry

#: What the result backend keeps as the reason.
REASON = "cancelled before it was delivered"


class RevokedTasks:
    """Tasks that were cancelled because they have expired.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._requests: list[dict[str, Any]] = []

    @staticmethod
    def cannot_be_told(entry: Entry) -> bool:
        """Whether a message may be a part of a chord, and its body cannot be read: the chord would wait for
        ever."""
        return bool(entry.content.headers.get("group")) and embedded_in(entry.payload) is None

    def note(self, entry: Entry) -> None:
        """Note a message that was cancelled."""
        headers = entry.content.headers
        chord = (embedded_in(entry.payload) or {}).get("chord") if headers.get("group") else None
        names = ("root_id", "parent_id", "group", "group_index")
        of_task = {name: headers.get(name) for name in names}
        self._requests.append({"id": entry.content.id, "task": entry.content.task, "chord": chord, **of_task})

    def tell(self) -> None:
        """Store the state ``REVOKED``. A chord learns of it, as of a part that has failed."""
        from celery.app.task import Context

        for each in self._requests:
            self._app.backend.mark_as_revoked(each["id"], REASON, request=Context(each))
