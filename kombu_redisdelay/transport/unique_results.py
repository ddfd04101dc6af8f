"""What Celery learns of a task that met another one with its key."""

from __future__ import annotations

import logging
from typing import Any

from celery import current_app, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from celery.utils.dispatch import Signal

from kombu_redisdelay.broker.unique import DROPPED, UNIQUE_HEADER, Conflict
from kombu_redisdelay.public import public

logger = logging.getLogger(__name__)

#: Sent when a task met another one with its key. The sender is the name of the task. Receivers get ``key``,
#: ``id`` (that of the task that was published), ``outcome``: "dropped" or "replaced", and ``holder``: the id
#: of the task that holds the key, or of the one that was replaced, which the new one has now.
unique_conflict = Signal(name="unique_conflict", providing_args={"key", "id", "holder", "outcome"})


@public
class UniqueResult(AsyncResult):  # type: ignore[misc]
    """What ``apply_async`` of a task with a key returns: the result of the task that holds the key.

    Attributes:
        id: of the task that will run. With ``"latest"``, this is the next one, not the one that runs.
        dropped: whether this one was dropped, so that nothing was published. The task that holds the key may
            still be revoked or expire; then nothing runs.
        replaced: whether this one has replaced the body of the one that waited, and has its id now.
    """

    id: str
    dropped = False
    replaced = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"dropped": self.dropped, "replaced": self.replaced})

    def __copy__(self) -> UniqueResult:
        copied: UniqueResult = super().__copy__()
        copied.dropped, copied.replaced = self.dropped, self.replaced
        return copied

    def _learn(self, conflict: Conflict | None) -> None:
        """Become the result of the task that holds the key."""
        if conflict is None:
            return
        if conflict.holder != self.id:
            # No task has the id any more, so no result will come for it.
            self.backend.remove_pending_result(self)
            self.id = conflict.holder
        self.dropped = conflict.outcome == DROPPED
        self.replaced = not self.dropped


def tell_celery(headers: dict[str, Any], id: str, conflict: Conflict) -> None:
    """Send the signal."""
    unique_conflict.send(
        sender=headers.get("task"),
        key=headers[UNIQUE_HEADER],
        id=id,
        holder=conflict.holder,
        outcome=conflict.outcome,
    )


def end_as_revoked(backend: Any, id: str, conflict: Conflict) -> None:
    """Store for the task with this *id* that it will never run: it was dropped, or it runs under the id of
    the task that it has replaced."""
    if id == conflict.holder:
        return
    reason = TaskRevokedError(f"{conflict.outcome}: task {conflict.holder} has the same key")
    try:
        backend.mark_as_failure(id, reason, request=Context(id=id), state=states.REVOKED)
    except Exception:
        # The task is where it should be; only its result cannot be stored.
        logger.warning("Could not store that task %s was %s", id, conflict.outcome, exc_info=True)


def end_by_hand(id: str, conflict: Conflict | None) -> None:
    """The same for a task that was sent without its class, unless a queue has accepted it."""
    if conflict is not None:
        end_as_revoked(current_app.backend, id, conflict)
