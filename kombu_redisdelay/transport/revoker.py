"""Takes revoked Celery tasks out of the schedule."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from threading import Lock, Thread
from time import sleep
from typing import Any

from kombu.serialization import prepare_accept_content
from kombu.transport import virtual
from kombu.utils.imports import symbol_by_name
from kombu.utils.json import loads
from redis.exceptions import RedisError

from kombu_redisdelay.broker.message import stored_id
from kombu_redisdelay.broker.schedule import Withdrawal
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.rpc_results import reply_properties
from kombu_redisdelay.transport.receive import message_in_schedule
from kombu_redisdelay.words import printable

logger = logging.getLogger(__name__)

#: Seconds between two attempts, if Redis cannot be reached.
PAUSE = 1.0

#: How often it is tried.
ATTEMPTS = 30

#: What Celery writes for a task that has no stamps.
_NO_STAMPS = b'"stamps": {}'

#: Header -> the values that are revoked.
Stamps = Mapping[str, Sequence[Any]]

#: Tells of a message that was removed. No other worker gets the message.
Announce = Callable[[bytes], None]


class Revoker:
    """Takes revoked tasks out of the schedule, in a thread, so that a worker's event loop goes on meanwhile.
    The thread ends when there is nothing left to do.

    Arguments:
        store: for this alone.
        who: name of this worker.
    """

    def __init__(self, store: Store, who: str) -> None:
        self._store = store
        self._who = who
        self._lock = Lock()
        self._is_running = False
        #: What waits to be done.
        self._queues: Sequence[str] = ()
        #: ``None`` while the thread does not run. What announces leads to the worker, and so to our channel.
        self._announce: Announce | None = None
        self._ids: dict[str, None] = {}
        self._stamps: deque[Stamps] = deque()

    def revoke(
        self,
        queues: Sequence[str],
        announce: Announce,
        ids: Iterable[str] = (),
        stamps: Stamps | None = None,
    ) -> None:
        """Begin to remove the messages of *queues* that have one of these *ids* or *stamps*."""
        with self._lock:
            self._queues, self._announce = queues, announce
            self._ids.update(dict.fromkeys(map(stored_id, ids)))
            if stamps:
                self._stamps.append(stamps)
            if self._is_running:
                return
            self._is_running = True
        Thread(target=self._run, name="redisdelay-revoker", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                queues, announce, ids, self._ids = self._queues, self._announce, list(self._ids), {}
                stamps = self._stamps.popleft() if self._stamps and not ids else None
                if announce is None or (not ids and stamps is None):
                    self._announce, self._is_running = None, False
                    self._store.disconnect()
                    return
            try:
                self._insist(announce, lambda: self._withdraw(queues, ids, stamps))  # noqa: B023
            except Exception:
                logger.exception("Could not take revoked tasks out of the schedule")

    def _insist(self, announce: Announce, withdraw: Callable[[], Iterator[bytes]]) -> None:
        for attempt in count(1):
            try:
                for payload in withdraw():
                    announce(payload)
                return
            except (RedisError, OSError):
                if attempt == ATTEMPTS:
                    raise
                sleep(PAUSE)

    def _withdraw(self, queues: Sequence[str], ids: Sequence[str], stamps: Stamps | None) -> Iterator[bytes]:
        withdrawal = Withdrawal(self._store)
        for queue in queues if ids else ():
            yield from withdrawal.by_ids(queue, ids)
        if stamps is not None:
            # To find them, all messages are read. So of the workers that are told, one does it for a queue.
            # The claims come first: they only keep away workers that are told at about the same time.
            what = json.dumps(stamps, sort_keys=True, default=repr)
            for queue in [queue for queue in queues if withdrawal.claim(queue, what, self._who)]:
                yield from withdrawal.matching(queue, partial(_is_stamped, stamps))


def _is_stamped(stamps: Stamps, payload: bytes) -> bool:
    """As ``celery.worker.request.Request.revoked``."""
    if _NO_STAMPS in payload:
        return False
    try:
        headers = loads(payload)["headers"]
        return any(
            value in stamps.get(header, ())
            for header in headers.get("stamped_headers") or ()
            for value in _as_list(headers["stamps"].get(header))
        )
    except Exception:
        # Foreign bytes may make the decoder raise any exception. They stay where they are.
        return False


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def announcer(state: Any) -> Announce:
    """Makes what announces that a task was revoked before it was due, as a worker that skips a revoked task
    does: result, event, signal, log.

    Arguments:
        state: of the worker, as Celery's remote control commands get it.
    """
    accept = prepare_accept_content(state.app.conf.accept_content)

    def announce(payload: bytes) -> None:
        try:
            message = message_in_schedule(payload)
            message.accept = accept
            _announce(state, message)
        except Exception as exc:
            logger.warning(
                "Took a revoked task out of the schedule, but could not announce it: %s", printable(str(exc))
            )

    return announce


def _announce(state: Any, message: virtual.Message) -> None:
    from celery.app.task import Context

    headers, app = message.headers, state.app
    task = app.tasks.get(headers["task"])
    if task is not None:
        request = symbol_by_name(task.Request)(
            message,
            app=app,
            hostname=state.hostname,
            eventer=state.consumer.event_dispatcher,
            task=task,
            utc=app.uses_utc_timezone(),
        )
        if request.revoked():
            return
    # The worker does not know the task, or has been told to revoke so many that it has forgotten this one.
    request = Context(headers, **reply_properties(message.properties))
    app.backend.mark_as_revoked(headers["id"], "revoked", request=request)
    task_name, id = printable(str(headers["task"])), printable(str(headers["id"]))
    logger.info("Discarding revoked task: %s[%s]", task_name, id)
