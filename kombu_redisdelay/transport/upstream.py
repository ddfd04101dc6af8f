"""Faults of Celery, kombu and redis-py that we work around: which they are, and since when they are mended.

A fault stands here if the workaround can go one day: when the oldest release that we support has it mended.
``tests/transport/test_upstream.py`` looks for each of them in the release that is installed. It fails when
one is gone there, so that its row is brought up to date, and when a workaround is not needed any more. Most
workarounds are in this file, too. The others are named by their rows: they are part of something larger.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay.broker.message import which
from kombu_redisdelay.extending import extend
from kombu_redisdelay.transport.tasks import is_terminated, message_of, name_of, note_given_up
from kombu_redisdelay.words import in_a_line

logger = logging.getLogger(__name__)


class Fault(NamedTuple):
    """What is known of a fault. What goes wrong is said beside it, or at its workaround.

    Attributes:
        mended: the first release without it; ``None`` if there is none yet.
        link: where it was reported, as far as that is known: repository and number.
        where: the file of the workaround in this directory.
        since: the first release that has it, if not all that we support have it.
        of: the package that has it.
    """

    mended: tuple[int, int] | None = None
    link: str = ""
    where: str = "upstream.py"
    since: tuple[int, int] = (0, 0)
    of: str = "celery"


FAULTS = {
    # -- how a task ends
    "unpublished_retry": Fault(),
    "end_before_settling": Fault(),
    "cancelled_too_late": Fault(),
    "lost_worker_retry": Fault(since=(5, 7)),
    "cancel_without_terminate": Fault(link="celery/celery#10490"),
    #: A task that has published its retry counts as failed if its state RETRY is not stored.
    "unstored_retry": Fault(where="returned.py"),
    # -- pools
    #: An exception that leaves a task in a thread or a greenlet is lost, and the task counts as running.
    "escapes": Fault(where="pools.py"),
    #: A pool of greenlets that grows wakes nobody who waits for a place.
    "green_pool_grows": Fault((5, 7), "celery/celery#10361", "pools.py"),
    "unseen_end_of_a_process": Fault(),
    "ended_process_is_watched": Fault(link="celery/celery#9250"),
    "flush_forgets": Fault(link="celery/celery#8541"),
    "unstarted_tasks_stay": Fault((5, 7)),
    # -- a worker that has lost its connection, or is to end
    "waiting_heartbeat": Fault(),
    "offline_event": Fault(link="celery/celery#6039"),
    "cancelled_timers": Fault(since=(5, 7)),
    "signal_in_the_loop_of_gevent": Fault(),
    # -- messages and results
    #: A part of a message with a wrong type ends the worker, or makes it forget the message.
    "unchecked_types": Fault(where="protocol.py"),
    #: An ack waits until the loop turns; from 5.7 on, only where there is an event loop.
    "deferred_acks": Fault(link="celery/celery#10263", where="settling.py"),
    #: Results of rpc:// that nobody fetches stay for ever.
    "rpc_results_stay": Fault(link="celery/celery#7801", where="../rpc_results.py"),
    #: A result backend forgets the user in the URL of sentinels.
    "sentinel_user": Fault((5, 6), where="../result_backends.py"),
    #: Polling stops for good when any connection is closed.
    "polling_stops": Fault((5, 7), "celery/kombu#2492", "transports.py", of="kombu"),
    #: What is no Base64 is left out, and something is made of the rest.
    "lax_base64": Fault(where="receive.py", of="kombu"),
    #: Each call has a client of its own, which adds a listener to the provider of the credentials.
    "client_for_each_call": Fault(where="connecting.py", of="kombu"),
    #: Most parsers do not know the errors of a cluster.
    "cluster_errors": Fault((6, 0), where="../broker/server/nodes.py", of="redis"),
    #: All processes ask the same server of a cluster for the others.
    "first_server_is_asked": Fault((8, 0), where="../broker/server/nodes.py", of="redis"),
    #: A command over a connection that is not open opens it to the address of before, at first to localhost.
    "old_primary": Fault(where="../broker/server/connections.py", since=(6, 0), of="redis"),
}


# -- how a task ends -------------------------------------------------------------------------------------


def requeue_unpublished(request: Any, exc_info: Any) -> None:
    """``unpublished_retry``: let a message come back whose task could not publish its retry."""
    # This runs in a Celery worker only.
    from celery.exceptions import Reject

    # What Celery has put around it, if it comes from another process.
    error = getattr(exc_info.exception, "exc", exc_info.exception)
    could_not = isinstance(error, Reject) and isinstance(error.reason, (OperationalError, RedisError))
    if could_not and not request.acknowledged:
        error.requeue = True


class MendedRequest:
    """Mixed into Celery's ``Request``: it settles the message, whatever is raised when a task ends.

    Attributes:
        could_not_end: whether Celery could not end the task, which counts as failed, and is settled.
    """

    could_not_end = False

    def on_failure(self: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """``end_before_settling``. By then Celery has acked the message, or is about to settle it. A pool
        would only log the error; and before Celery 5.7, the JSON of a result has no ``SystemExit``."""
        from celery.exceptions import Reject, Terminated

        try:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        except MemoryError:
            # With it, Celery ends a worker.
            raise
        except Exception:
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            # Of these, the result is stored first.
            if isinstance(error, Reject):
                self.reject(requeue=error.requeue)
            elif isinstance(error, Terminated):
                self.acknowledge()
            elif not self.acknowledged:
                raise
            self._has_not_ended()

    def on_timeout(self: Any, soft: bool, timeout: Any) -> Any:
        """``end_before_settling``."""
        try:
            return super().on_timeout(soft, timeout)  # type: ignore[misc]
        except Exception:
            # Before Celery 5.7, there is only the second one.
            if not getattr(self.task, "acks_on_timeout", self.task.acks_on_failure_or_timeout):
                raise
            self.acknowledge()
            self._has_not_ended()

    def _has_not_ended(self: Any) -> None:
        self.could_not_end = True
        logger.exception("Celery could not end a task%s", which([name_of(self.message)], 1))

    def _retry_worker_lost(self: Any, *args: Any, **kwargs: Any) -> Any:
        """``lost_worker_retry``. If this raises an error, because the result backend does not take the retry,
        or because ``on_retry`` of the task has a fault, it has published the task."""
        try:
            return super()._retry_worker_lost(*args, **kwargs)  # type: ignore[misc]
        except Exception:
            named = which([name_of(self.message)], 1)
            logger.exception("Celery could not end a task, which is tried again%s", named)
            if self.task.acks_late:
                self.acknowledge()
            return True

    def _announce_cancelled(self: Any, *args: Any, **kwargs: Any) -> Any:
        """``cancelled_too_late``. Celery stores a retry, and then notes that it has ended the task itself, as
        it does when the connection is lost. Without the note, it takes the end of the task for a revocation,
        and acks the message that has to come back."""
        try:
            return super()._announce_cancelled(*args, **kwargs)  # type: ignore[misc]
        except Exception as exc:
            self._already_cancelled = True
            named = which([name_of(self.message)], 1)
            logger.warning("Celery could not say that it has cancelled a task (%s)%s", in_a_line(exc), named)

    def cancel(self: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        """``cancel_without_terminate``: with this, a worker that is to end at once ends a task. In two pools,
        Celery raises an error in the handler of a signal: it failed the task of a solo worker, and made a
        worker with threads give back tasks that its threads went on to run.

        In the others, Celery notes that the task is cancelled after it has ended it. Before that, a killed
        greenlet reports its end, which would count as a success.

        Raises:
            WorkerTerminate: it is the solo worker whose task a signal has interrupted. This is no
                ``Exception``, and so ends the task and the worker.
        """
        from celery.exceptions import WorkerTerminate
        from celery.platforms import EX_FAILURE
        from celery.worker import state

        module = module_of(pool)
        if module == "solo":
            state.should_terminate = EX_FAILURE
            raise WorkerTerminate(EX_FAILURE)
        # A pool of threads waits for them.
        if module != "thread":
            self.message.is_being_cancelled = True
            super().cancel(pool, *args, **kwargs)  # type: ignore[misc]


# -- pools -----------------------------------------------------------------------------------------------

#: Where Celery has its pools, each in a module.
_POOLS = "celery.concurrency."

#: How often to look whether a process that is about to end has ended, and the seconds in between.
LOOKS = 50
LOOK_EVERY = 0.05


def module_of(pool: Any) -> str:
    """Which of Celery's pools it is, by the name of its module. An application may have extended its
    class."""
    modules = (each.__module__ for each in type(pool).__mro__)
    return next((name[len(_POOLS) :] for name in modules if name.startswith(_POOLS)), "")


def mend_processes(pool: Any, hub: Any) -> None:
    """Mend a prefork *pool* of Celery. Calling it again changes nothing, but a pool that was restarted is
    another one.

    Arguments:
        hub: the event loop; ``None`` if there is none.
    """
    processes = pool._pool
    if hub:
        extend(processes, "maintain_pool", LookingAgain(processes, hub))
        extend(processes, "_track_child_process", partial(track_living, processes))
    # A pool without an event loop has none.
    if pool.flush is not None:
        extend(pool, "flush", partial(_remembering, processes))


class LookingAgain:
    """``unseen_end_of_a_process``: in place of a prefork pool's ``maintain_pool``, which replaces the
    processes that have ended.

    It is called when the sentinel of a process can be read, and never again for that process. The kernel
    closes the sentinel of a killed process some moments before it says that the process has ended. Without
    this, its end goes unnoticed, and its task counts as running, until another process ends.
    """

    def __init__(self, pool: Any, hub: Any) -> None:
        self._pool = pool
        self._hub = hub
        self._tries = 0

    def __call__(self, maintain_pool: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = maintain_pool(*args, **kwargs)
        # After the sentinel was read, it is None.
        if all(getattr(process, "_sentinel_poll", 0) is not None for process in self._pool._pool):
            self._tries = 0
        elif self._tries < LOOKS:
            self._tries += 1
            self._hub.call_later(LOOK_EVERY, self._pool.maintain_pool)
        return result


def track_living(pool: Any, track: Callable[..., Any], process: Any, hub: Any) -> Any:
    """``ended_process_is_watched``: in place of a prefork pool's ``_track_child_process``, which has the
    event loop watch the sentinel of a process. When the connection is made again, it is called for all
    processes. One that was killed meanwhile may have no sentinel any more."""
    if getattr(process, "_sentinel_poll", 0) is not None:
        return track(process, hub)
    # The timer that would have looked again was cleared with the connection.
    return hub.call_later(LOOK_EVERY, pool.maintain_pool)


def _remembering(pool: Any, flush: Callable[[], Any]) -> None:
    """``flush_forgets``: in place of a prefork pool's ``flush``, which is called when the connection is lost
    and when the worker stops. It forgets what was not started, because the broker will deliver it again.

    But a task that a process was given runs there, even if the process has not yet reported its start, or
    has ended and its report was not read. If the pool has forgotten the task, its start and its end go
    unnoticed: its message is not acked, and a process that stops waits for half a minute. Before Celery 5.7,
    the pool even forgets tasks that have started. So this forgets only tasks that no process was given.
    """
    from billiard.pool import TERMINATE
    from celery.worker import state

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
    # ``unstarted_tasks_stay``: Celery calls them lost with the connection.
    for id, request in list(state.requests.items()):
        if request not in state.active_requests:
            state.requests.pop(id, None)
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


# -- a worker that has lost its connection, or is to end ---------------------------------------------------


def never_waiting(send: Callable[..., Any], self: Any, event: str, retry: bool = True) -> Any:
    """``waiting_heartbeat``: in place of the ``_send`` of Celery's heartbeat, which waits for a connection in
    the loop of the worker. Who waits there does not hear of SIGTERM. An event that cannot be sent is kept
    until Celery has connected again."""
    transport = getattr(self.eventer.connection, "transport", None)
    return send(self, event, retry and not hasattr(transport, "is_workers"))


def dropping_events(on_lost: Callable[..., Any], self: Any, *args: Any) -> Any:
    """``offline_event``: in place of Celery's ``Consumer.on_connection_error_after_connected``. Celery then
    sends the event ``worker-offline`` over another connection, which leads to the same server, and would wait
    for it. Events that cannot be sent are kept until Celery has connected again."""
    connection = getattr(getattr(self, "event_dispatcher", None), "connection", None)
    if connection is not None and hasattr(connection.transport, "is_workers"):
        connection.collect()
    return on_lost(self, *args)


def emptying_timers(on_close: Callable[..., Any], self: Any) -> Any:
    """``cancelled_timers``: in place of Celery's ``Consumer.on_close``, which forgets what was received over
    a lost connection, and cancels the timers of tasks with an ETA. Celery has a list of all timers, with the
    cancelled ones, until the next connection is lost. A timer has the request of its task, and so the
    message, which would count as in use as long."""
    # This runs in a Celery worker only.
    from celery.worker import state

    # Without an event loop, timers have threads or greenlets of their own, and are in no list.
    scheduled = list(getattr(state, "scheduled_requests", ())) if self.hub is not None else []
    result = on_close(self)
    for timer in (request._eta_timer_entry for request in scheduled):
        if timer is not None:
            timer.args = ()
    return result


def note_end_of_the_loop(error: BaseException) -> bool:
    """``signal_in_the_loop_of_gevent``: if *error* comes from gevent's loop to what waits in the main
    greenlet, note that the worker is told to stop at once: Celery's signal handler has failed in the loop. It
    could not stop the pool, and has not come to note that. Returns whether the error comes from there."""
    exceptions = sys.modules.get("gevent.exceptions")
    is_end = isinstance(error, getattr(exceptions, "BlockingSwitchOutError", ()))
    state: Any = sys.modules.get("celery.worker.state")
    if is_end and state is not None and not is_terminated():
        state.should_terminate = os.EX_SOFTWARE
    return is_end
