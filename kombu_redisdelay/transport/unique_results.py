"""What Celery learns of a task with a unique key: whether it met another one, and which one will run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

from celery import current_app, states
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from celery.utils.dispatch import Signal
from kombu.messaging import Producer

from kombu_redisdelay.broker.outgoing import Outgoing
from kombu_redisdelay.broker.unique import DROPPED, REPLACED, UNIQUE_HEADER, Conflict
from kombu_redisdelay.public import public
from kombu_redisdelay.rpc_results import is_rpc, publish, reply_properties

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


class PublishResult:
    """What became of the task with this *id* in the queues that its message went to.

    Attributes:
        learned: called with this when the message is published.
        channel: that it was published over; ``None`` before that.
        properties: those that it was published with.
        outcomes: those of its message.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.learned: Callable[[PublishResult], object] | None = None
        self.channel: Any = None
        self.properties: Mapping[str, Any] = {}
        self.outcomes: Sequence[Conflict | None] = ()

    @property
    def is_accepted(self) -> bool:
        """Whether a queue has accepted it."""
        return None in self.outcomes

    @property
    def conflict(self) -> Conflict | None:
        """The result for all queues: none if one of them has accepted it, and it counts as dropped only if it
        was dropped in each of them."""
        conflicts = [each for each in self.outcomes if each is not None]
        if self.is_accepted or not conflicts:
            return None
        return next((each for each in conflicts if each.outcome == REPLACED), conflicts[0])

    @property
    def has_ended(self) -> bool:
        """Whether no task will run under its id: it was dropped, or runs under the id of the task that it has
        replaced, and no other task is known to have its id."""
        conflict = self.conflict
        return conflict is not None and not any(each and each.is_of(self.id) for each in self.outcomes)

    def tell(self) -> None:
        """Tell the result to the publisher that waits for it."""
        if self.learned is not None:
            self.learned(self)


_awaited: ContextVar[PublishResult | None] = ContextVar("redisdelay_publish_result", default=None)


class Awaiting:
    """What becomes of the message of *published* is noted there, if it is published in the ``with`` block.

    Each task with a key is published in one: :func:`contextlib.contextmanager` takes three times as long.
    """

    __slots__ = ("_published", "_token")

    def __init__(self, published: PublishResult) -> None:
        self._published = published

    def __enter__(self) -> None:
        self._token = _awaited.set(self._published)

    def __exit__(self, *exc_info: object) -> None:
        _awaited.reset(self._token)


def attach_result(channel: Any, message: Outgoing) -> None:
    """Have Celery told what becomes of *message*, which has a unique key and is published over *channel*. If
    no block of :class:`Awaiting` is for it, it is a task that is sent without its class, or no task: if the
    task is dropped in each queue, its id ends as revoked."""
    published = _awaited.get()
    if published is None or published.id != message.id:
        published, headers = PublishResult(message.id), message.headers
        if "task" in headers and isinstance(headers.get("id"), str):
            published.learned = partial(_end_by_hand, bool(headers.get("ignore_result")))
    published.channel, published.properties = channel, message.properties
    published.outcomes = message.outcomes
    message.tell = partial(_tell, published, message.headers)


def _tell(published: PublishResult, headers: Mapping[str, Any]) -> None:
    """Send the signal for each queue in which there was a conflict, and tell the publisher."""
    for conflict in published.outcomes:
        if conflict is not None:
            unique_conflict.send(
                sender=headers.get("task"),
                key=headers[UNIQUE_HEADER],
                id=published.id,
                holder=conflict.holder,
                outcome=conflict.outcome,
            )
    published.tell()


def end(published: PublishResult, backend: Any, monitored: Any) -> None:
    """Tell that no task will run under the id of *published*, if that is so: it was dropped, or it runs under
    the id of the task that it has replaced.

    Arguments:
        backend: where its result is waited for; ``None`` if nobody knows its id.
        monitored: the app if it tells monitors of each task that is sent, else ``None``.
    """
    conflict = published.conflict
    if conflict is None or not published.has_ended:
        return
    reason = TaskRevokedError(f"{conflict.outcome}: task {conflict.holder} has the same key")
    try:
        if backend is not None:
            _end_as_revoked(backend, published, reason)
        if monitored is not None:
            _send_last_event(monitored, published)
    except Exception:
        # The task is where it should be. Only its result cannot be stored, or its event cannot be sent.
        logger.warning("Could not store that task %s was %s", published.id, conflict.outcome, exc_info=True)


def _end_as_revoked(backend: Any, published: PublishResult, reason: Exception) -> None:
    request = Context(id=published.id, **reply_properties(published.properties))
    if is_rpc(backend):
        publish(published.channel, backend, reason, states.REVOKED, request)
    else:
        backend.mark_as_failure(published.id, reason, request=request, state=states.REVOKED)


def _send_last_event(app: Any, published: PublishResult) -> None:
    """Celery tells monitors of each task that was sent. They wait for its end."""
    # The events that Celery sends of what it publishes have this dispatcher, too.
    app.amqp._event_dispatcher.publish(
        "task-revoked",
        {"uuid": published.id, "terminated": False, "signum": None, "expired": False},
        Producer(published.channel, auto_declare=False),
    )


def _end_by_hand(is_ignored: bool, published: PublishResult) -> None:
    """The same for a task that was sent without its class.

    Arguments:
        is_ignored: whether nobody waits for its result.
    """
    if published.has_ended:
        is_monitored = current_app.conf.task_send_sent_event
        end(published, None if is_ignored else current_app.backend, current_app if is_monitored else None)
