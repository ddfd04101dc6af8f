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
from kombu_redisdelay.transport.tasks import Gate, forget_task, is_end_of_greenlet
from kombu_redisdelay.transport.upstream import mend_processes, module_of

#: The pool of the worker that consumes now.
_current: Callable[[], Any] = lambda: None  # noqa: E731


def forget_nothing(consumer: Any, gate: Gate) -> None:
    """Extend the pool of Celery's *consumer*. Calling it again changes nothing.

    Arguments:
        gate: of the same worker.
    """
    pool = consumer.pool
    module = module_of(pool)
    if module in ("thread", "gevent", "eventlet") and not hasattr(pool.on_apply, "extends_celery"):
        pool.on_apply = _told_of_escapes(pool.on_apply, consumer, gate)
    if module == "prefork":
        mend_processes(pool, consumer.hub)


def _told_of_escapes(on_apply: Callable[..., Any], consumer: Any, gate: Gate) -> Callable[..., Any]:
    """``escapes``: in place of a pool's ``on_apply``, which runs a task in a thread or a greenlet.

    Celery loses an exception that leaves it. There is one when a hook of the task raises, such as
    ``on_failure``; when the task raises what is no ``Exception``, such as ``asyncio.CancelledError`` or
    ``SystemExit``; or when the result backend is away. Here, the task has then failed, as with prefork.
    """
    from billiard.einfo import ExceptionInfo

    pool = consumer.pool
    limit = _time_limit(pool)
    has_futures = module_of(pool) == "thread"

    # Not by `extend()`: each task comes here.
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

        def tried(passes: Any, function: Callable[..., Any], *args: Any) -> Any:
            try:
                return function(*args)
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

        def finish(result: Any) -> Any:
            # Celery's callback does not know the first: it expects a result.
            if isinstance(result, ExceptionInfo):
                return request.on_failure(result)
            if was_killed:
                return _in_the_loop(consumer, message, _was_killed, request, partial(callback, result))
            try:
                return callback(result)
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
        if gate.is_shut:
            _send_away(consumer.pool)
        else:
            message.is_let_in = True
        return applied

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def make_room(pool: Any) -> None:
    """Add a place to a *pool* of greenlets. If the gate is shut, all that wait for one come forward, one
    after the other, and each is sent away. The loop of the worker may be among them. A signal handler may
    call this."""
    module = module_of(pool)
    if module in ("gevent", "eventlet"):
        # ``green_pool_grows``: as `grow()` does it from Celery 5.7 on.
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
    if module_of(pool) != "gevent":
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


def _busy() -> int:
    state = sys.modules.get("celery.worker.state")
    return 0 if state is None else len(state.active_requests)


def _free() -> int:
    pool = _current()
    return 0 if pool is None else max(0, int(pool.num_processes or 0) - _busy())
