"""What Celery learns of a task that met another one with its key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery import current_app, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from celery.utils.dispatch import Signal
from kombu.messaging import Producer

from kombu_redisdelay.broker.unique import DROPPED, UNIQUE_HEADER, Conflict
from kombu_redisdelay.public import public
from kombu_redisdelay.rpc_results import is_rpc, publish, who_waits

if TYPE_CHECKING:
    from kombu_redisdelay.transport.keyed_message import Fate

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


def end(fate: Fate, backend: Any, monitored: Any) -> None:
    """Tell that no task will run under the id of *fate*, if that is so: it was dropped, or it runs under the
    id of the task that it has replaced.

    Arguments:
        backend: where its result is waited for; ``None`` if nobody knows its id.
        monitored: the app if it tells monitors of each task that is sent, else ``None``.
    """
    conflict = fate.conflict
    if conflict is None or not fate.has_ended:
        return
    reason = TaskRevokedError(f"{conflict.outcome}: task {conflict.holder} has the same key")
    try:
        if backend is not None:
            _end_as_revoked(backend, fate, reason)
        if monitored is not None:
            _send_last_event(monitored, fate)
    except Exception:
        # The task is where it should be. Only its result cannot be stored, or its event cannot be sent.
        logger.warning("Could not store that task %s was %s", fate.id, conflict.outcome, exc_info=True)


def _end_as_revoked(backend: Any, fate: Fate, reason: Exception) -> None:
    request = Context(id=fate.id, **who_waits(fate.properties))
    if is_rpc(backend):
        publish(fate.channel, backend, reason, states.REVOKED, request)
    else:
        backend.mark_as_failure(fate.id, reason, request=request, state=states.REVOKED)


def _send_last_event(app: Any, fate: Fate) -> None:
    """Celery tells monitors of each task that was sent. They wait for its end."""
    # The events that Celery sends of what it publishes have this dispatcher, too.
    app.amqp._event_dispatcher.publish(
        "task-revoked",
        {"uuid": fate.id, "terminated": False, "signum": None, "expired": False},
        Producer(fate.channel, auto_declare=False),
    )


def end_by_hand(is_ignored: bool, fate: Fate) -> None:
    """The same for a task that was sent without its class.

    Arguments:
        is_ignored: whether nobody waits for its result.
    """
    if fate.has_ended:
        is_monitored = current_app.conf.task_send_sent_event
        end(fate, None if is_ignored else current_app.backend, current_app if is_monitored else None)
