"""The pools of Celery's workers: they forget no task whose message is unacked, and their places are counted.

A message of a forgotten task would keep its place among those that the worker may hold, and that a limit of
the queue allows, until the worker ends. A worker with a few of them takes nothing any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from weakref import ref

from kombu.transport import virtual

from kombu_redisdelay import metrics
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.tasks import (
    Door,
    forget_task,
    forget_unstarted,
    is_end_of_greenlet,
    message_of,
    note_given_up,
)

#: Where Celery has its pools, each in a module.
_POOLS = "celery.concurrency."

#: How often to look whether a process that is about to end has ended, and the seconds in between.
LOOKS = 50
LOOK_EVERY = 0.05

#: The pool of the worker that consumes now.
_current: Callable[[], Any] = lambda: None  # noqa: E731


def forget_nothing(consumer: Any, door: Door) -> None:
    """Extend the pool of Celery's *consumer*. Calling it again changes nothing.

    Arguments:
        door: of the same worker.
    """
    pool = consumer.pool
    module = _module_of(pool)
    if module in ("thread", "gevent", "eventlet") and not hasattr(pool.on_apply, "extends_celery"):
        pool.on_apply = _told_of_escapes(pool.on_apply, consumer, door)
    # A pool that was restarted is another one.
    if module == "prefork" and consumer.hub and not hasattr(pool._pool.maintain_pool, "extends_celery"):
        pool._pool.maintain_pool = _looking_again(pool._pool.maintain_pool, pool._pool, consumer.hub)
        pool._pool._track_child_process = _without_the_ended(pool._pool._track_child_process, pool._pool)
    # A pool without an event loop has no flush().
    flush = pool.flush if module == "prefork" else None
    if flush is not None and not hasattr(flush, "extends_celery"):
        pool.flush = _remembering(flush, pool._pool)


def cancelling(cancel: Callable[..., Any]) -> Callable[..., Any]:
    """In place of Celery's ``Request.cancel``, with which a worker that is to end at once ends a task.

    Celery notes that the task is cancelled after it has ended it. Before that, a killed greenlet reports its
    end, which would count as a success. And two pools cannot end a task. There, Celery raises an error in the
    handler of a signal: it failed the task of a solo worker, and made a worker with threads give back tasks
    that its threads went on to run.
    """

    @wraps(cancel)
    def extended(self: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(getattr(self.message, "channel", None), Channel):
            return cancel(self, pool, *args, **kwargs)
        module = _module_of(pool)
        if module == "solo":
            return _end_now()
        if module == "thread":
            # The pool waits for it.
            return None
        self.message.is_being_cancelled = True
        return cancel(self, pool, *args, **kwargs)

    return extended


def _end_now() -> None:
    """End the solo worker whose task a signal has interrupted.

    Raises:
        WorkerTerminate: always. It is no ``Exception``, and so ends the task and the worker.
    """
    from celery.exceptions import WorkerTerminate
    from celery.platforms import EX_FAILURE
    from celery.worker import state

    state.should_terminate = EX_FAILURE
    raise WorkerTerminate(EX_FAILURE)


def _module_of(pool: Any) -> str:
    """Which of Celery's pools it is, by the name of its module. An application may have extended its
    class."""
    modules = (each.__module__ for each in type(pool).__mro__)
    return next((name[len(_POOLS) :] for name in modules if name.startswith(_POOLS)), "")


def _told_of_escapes(on_apply: Callable[..., Any], consumer: Any, door: Door) -> Callable[..., Any]:
    """In place of a pool's ``on_apply``, which runs a task in a thread or a greenlet.

    Celery loses an exception that leaves it. There is one when a hook of the task raises, such as
    ``on_failure``; when the task raises what is no ``Exception``, such as ``asyncio.CancelledError`` or
    ``SystemExit``; or when the result backend is away. Here, the task has then failed, as with prefork.
    """
    from billiard.einfo import ExceptionInfo

    pool = consumer.pool
    limit = _time_limit(pool)
    has_futures = _module_of(pool) == "thread"

    @wraps(on_apply)
    def extended(
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        timeout_callback: Any = None,
        **options: Any,
    ) -> Any:
        request: Any = getattr(callback, "__self__", None)
        message: Any = getattr(request, "message", None)
        if not isinstance(getattr(message, "channel", None), Channel):
            return on_apply(target, args, kwargs, callback, timeout_callback=timeout_callback, **options)

        # A time limit may strike in an ack, too. Then the pool fails the task.
        time_limit = limit if limit and (options.get("timeout") or pool.timeout) else ()

        def tried(passes: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except passes:
                raise
            except BaseException as exc:
                _in_the_loop(consumer, message, _has_failed, message, exc)
                raise

        was_killed = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal was_killed
            try:
                return target(*args, **kwargs)
            except BaseException as exc:
                was_killed = is_end_of_greenlet(exc)
                # Other errors go to the callback, and a time limit to a callback of its own.
                if isinstance(exc, Exception) or not _has_repr(exc):
                    tried(time_limit, request.on_failure, ExceptionInfo())
                raise

        def finish(result: Any, **kwargs: Any) -> Any:
            # Celery's callback does not know the first: it expects a result.
            if isinstance(result, ExceptionInfo):
                return request.on_failure(result)
            if was_killed:
                return _in_the_loop(
                    consumer, message, _was_killed, request, partial(callback, result, **kwargs)
                )
            try:
                return callback(result, **kwargs)
            except (SystemExit, KeyboardInterrupt):
                # The task has raised it.
                return request.on_failure(ExceptionInfo())

        done = partial(tried, time_limit, finish)
        late = timeout_callback and partial(tried, (), timeout_callback)
        if has_futures:
            applied = on_apply(run, args, kwargs, done, timeout_callback=late, **options)
            message.future = applied.f
            return applied
        # Until there is a place for its greenlet, the task is outside.
        message.is_let_in = False
        applied = on_apply(run, args, kwargs, done, timeout_callback=late, **options)
        if door.is_shut:
            _send_away(consumer.pool)
        else:
            message.is_let_in = True
        return applied

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def make_room(pool: Any) -> None:
    """Add a place to a *pool* of greenlets. If the door is shut, all that wait for one come forward, one
    after the other, and each is sent away. The loop of the worker may be among them. A signal handler may
    call this."""
    module = _module_of(pool)
    if module in ("gevent", "eventlet"):
        # As `grow()` does it from Celery 5.7 on. Before, it wakes nobody.
        pool._pool.size += 1
        (pool._pool._semaphore if module == "gevent" else pool._pool.sem).release()


def watch_pool(pool: Any) -> None:
    """Have the metrics of this process tell the places of a worker's *pool*, whenever they are asked."""
    global _current
    _current = ref(pool)
    metrics.watch_pool(_busy, _free)


def _send_away(pool: Any) -> None:
    """Keep the task from beginning that has just got a place in a *pool* of greenlets. Its greenlet, the
    latest one, has not run yet."""
    next(reversed(pool._pool_map.values())).kill()


def _time_limit(pool: Any) -> Any:
    """What a time limit raises in the greenlet of a task. Of these pools, only that of gevent limits the
    time."""
    if _module_of(pool) != "gevent":
        return ()
    from gevent import Timeout

    return Timeout


def _has_repr(error: BaseException) -> bool:
    """Whether Celery can write *error* as a text. Otherwise it does not reach the callback."""
    try:
        repr(error)
    except Exception:
        return False
    return True


def _in_the_loop(consumer: Any, message: virtual.Message, call: Callable[..., None], *args: Any) -> None:
    """Have the loop of the *consumer* make this call. A time limit must not interrupt it."""
    consumer.call_soon(call, *args)
    transport = message.channel.connection
    if transport is not None:
        transport.cycle.interrupt()


def _was_killed(request: Any, callback: Callable[[], Any]) -> None:
    """The greenlet of a task was killed. Celery takes that for a success, and acks a message that it has
    just cancelled because the connection was lost. Celery relies on a failure of this ack."""
    if request._already_cancelled or getattr(request.message, "is_being_cancelled", False):
        # It will not be acked, so that it is recovered.
        request.message.is_cancelled = True
    elif not request._already_revoked:
        callback()


def _has_failed(message: virtual.Message, error: BaseException) -> None:
    # An ack that waits for the loop may come after this.
    if message.acknowledged or getattr(message, "is_settling", False):
        forget_task(message)
        return
    try:
        raise error
    except BaseException:
        message.channel.qos.has_failed(message)


def _looking_again(maintain_pool: Callable[..., Any], pool: Any, hub: Any) -> Callable[..., Any]:
    """In place of a prefork pool's ``maintain_pool``, which replaces the processes that have ended.

    It is called when the sentinel of a process can be read, and never again for that process. The kernel
    closes the sentinel of a killed process some moments before it says that the process has ended. Without
    this, its end goes unnoticed, and its task counts as running, until another process ends.
    """
    tries = 0

    @wraps(maintain_pool)
    def extended(*args: Any, **kwargs: Any) -> Any:
        nonlocal tries
        result = maintain_pool(*args, **kwargs)
        # After the sentinel was read, it is None.
        if all(getattr(process, "_sentinel_poll", 0) is not None for process in pool._pool):
            tries = 0
        elif tries < LOOKS:
            tries += 1
            hub.call_later(LOOK_EVERY, extended)
        return result

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def _without_the_ended(track: Callable[..., Any], pool: Any) -> Callable[..., Any]:
    """In place of a prefork pool's ``_track_child_process``, which has the event loop watch the sentinel of a
    process. When the connection is made again, it is called for all processes. One that was killed meanwhile
    may have no sentinel any more: that ended the worker."""

    @wraps(track)
    def extended(process: Any, hub: Any) -> Any:
        if getattr(process, "_sentinel_poll", 0) is not None:
            return track(process, hub)
        # The timer that would have looked again was cleared with the connection.
        return hub.call_later(LOOK_EVERY, pool.maintain_pool)

    return extended


def _remembering(flush: Callable[[], Any], pool: Any) -> Callable[[], Any]:
    """In place of a prefork pool's ``flush``, which is called when the connection is lost and when the worker
    stops. It forgets what was not started, because the broker will deliver it again.

    But a task that a process was given runs there, even if the process has not yet reported its start, or
    has ended and its report was not read. If the pool has forgotten the task, its start and its end go
    unnoticed: its message is not acked, and a process that stops waits for half a minute. Before Celery 5.7,
    the pool even forgets tasks that have started. So this forgets only tasks that no process was given.
    """
    from billiard.pool import TERMINATE

    @wraps(flush)
    def extended() -> None:
        if pool._state == TERMINATE:
            return
        # Reads the reports of ended processes, and takes back the tasks that these have not read.
        pool.maintain_pool()
        waiting = set(pool.outbound_buffer)
        for job in list(pool._cache.values()):
            # A task that was taken back still names a process.
            if job in waiting or not (job._write_to or job._accepted):
                job.discard()
                if (message := message_of(job)) is not None:
                    note_given_up(message)
        pool.outbound_buffer.clear()
        forget_unstarted()
        for index in (pool._fileno_to_inq, pool._fileno_to_outq, pool._fileno_to_synq):
            # The pool has closed the pipes of a process that had not read its task, and leaves them here. It
            # would watch what has the same numbers now, and wait in a read for ever.
            for fd in [fd for fd, process in index.items() if process.dead]:
                del index[fd]
        given = [job for job in pool._cache.values() if job._write_to]
        for job in given:
            # A task that is half written must be completed: a process cannot find where the next one begins.
            writer = getattr(job, "_writer", lambda: None)()
            if writer in pool._active_writers:
                pool._flush_writer(job._write_to, writer)
        pool._active_writers.clear()
        pool._active_writes.clear()
        busy = (job._write_to.inqW_fd for job in given if job._write_to._is_alive())
        pool._busy_workers.intersection_update(busy)

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def _busy() -> int:
    state = sys.modules.get("celery.worker.state")
    return 0 if state is None else len(state.active_requests)


def _free() -> int:
    pool = _current()
    return 0 if pool is None else max(0, int(pool.num_processes or 0) - _busy())
