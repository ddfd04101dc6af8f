"""The parts of Celery's worker that we extend. A test that fails here tells what Celery has moved."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

from celery import Task
from celery.app import trace
from celery.apps import worker as apps_worker
from celery.bootsteps import Blueprint
from celery.concurrency import thread
from celery.worker import WorkController, autoscale, components, loops, state, strategy
from celery.worker.consumer import Consumer
from celery.worker.consumer.events import Events
from celery.worker.consumer.tasks import Tasks
from celery.worker.heartbeat import Heart
from celery.worker.pidbox import gPidbox
from celery.worker.request import Request, create_request_cls
from gevent.pool import Pool as GeventPool
from kombu.asynchronous.timer import Entry


def test_strategies_are_made_when_the_worker_has_connected() -> None:
    source = inspect.getsource(Tasks.start)
    assert source.index("c.update_strategies()") < source.index("c.app.amqp.TaskConsumer(")
    assert "c.connection.default_channel" in source
    assert list(inspect.signature(Consumer.update_strategies).parameters) == ["self"]


def test_a_strategy_makes_requests_of_the_class_that_its_task_names() -> None:
    """And reads it once, when it is made."""
    source = inspect.getsource(strategy.default)
    assert source.count("task.Request") == 1
    assert source.index("create_request_cls(Request, task,") < source.index("def task_message_handler(")
    assert "task.start_strategy(self.app, self)" in inspect.getsource(Consumer.update_strategies)
    assert Task.Request == "celery.worker.request:Request"


def test_each_task_is_handed_to_the_pool_by_its_request() -> None:
    assert "req.execute_using_pool(self.pool)" in inspect.getsource(WorkController._process_task)
    assert "self._process_task," in inspect.getsource(WorkController._process_task_sem)
    assert "self._quick_release()" in inspect.getsource(WorkController._process_task)
    assert WorkController.semaphore is None


def test_the_callback_of_messages_is_made_before_they_come() -> None:
    for loop in (loops.asynloop, loops.synloop):
        source = inspect.getsource(loop)
        assert source.index("obj.create_task_handler()") < source.index("consumer.consume()")


def test_connections_that_a_worker_consumes_over() -> None:
    assert "self.connection_for_read(" in inspect.getsource(Consumer.connect)
    assert "c.connection_for_read()" in inspect.getsource(gPidbox.loop)


def test_connections_that_a_worker_waits_for() -> None:
    for connect in (Consumer.connection_for_read, Consumer.connection_for_write):
        assert "self.ensure_connected(" in inspect.getsource(connect)


def test_a_worker_knows_whether_its_pool_grows() -> None:
    assert "w.autoscaler = None" in inspect.getsource(autoscale.WorkerComponent.__init__)
    source = inspect.getsource(components.Consumer.create)
    assert "controller=w," in source
    assert "prefetch_multiplier=w.prefetch_multiplier," in source


def test_what_is_done_when_the_connection_is_lost() -> None:
    source = inspect.getsource(Consumer.start)
    # The second one stops the heart, which sends an event over the connection of the dispatcher.
    lost, restart = "self.on_connection_error_after_connected(exc)", "blueprint.restart(self)"
    assert source.index(lost) < source.index(restart)
    assert "self._send('worker-offline'" in inspect.getsource(Heart.stop)
    assert "connection_for_write(" in inspect.getsource(Events.start)


def test_the_timers_of_tasks_that_are_cancelled_when_the_connection_is_lost() -> None:
    """Before Celery 5.7, nothing but the event loop has them."""
    source = inspect.getsource(Consumer.start)
    is_listed = "self.timer_entries_before_start = " in source
    assert is_listed is hasattr(state, "scheduled_requests")
    if is_listed:
        assert source.index("self.on_close()") > source.index("self.timer_entries_before_start = ")
        assert "for r in tuple(scheduled_requests):" in inspect.getsource(Consumer.on_close)
        assert inspect.getsource(strategy.default).count("req._eta_timer_entry = call_at(") == 2
    entry = Entry(print, ("a request",))
    entry.args = ()
    assert entry() is None


def test_what_the_worker_counts() -> None:
    assert isinstance(state.requests, dict)
    assert "remove_request(request.id, None)" in inspect.getsource(state.task_ready)
    assert isinstance(Request.message, property)


def test_how_a_task_ends() -> None:
    """In every pool, in the main process, by one of these. The class that is made for each task has an
    ``on_success`` of its own, and inherits the others."""
    made = inspect.getsource(create_request_cls)
    for method in ("timeout_callback=self.on_timeout", "error_callback=self.on_failure"):
        assert method in made
    assert "return self.on_failure(retval, return_ok=True)" in made
    assert "def on_failure" not in made
    assert "def on_timeout" not in made
    assert list(inspect.signature(Request.on_timeout).parameters) == ["self", "soft", "timeout"]


def test_a_lost_process_is_a_failure_if_celery_says_so() -> None:
    source = inspect.getsource(Request.on_failure)
    assert "if not requeue and (is_worker_lost or not return_ok):" in source
    assert "signals.task_failure.send(" in source.partition("if not requeue and (is_worker_lost")[2]


def test_each_end_of_a_task_comes_to_a_method_of_its_request() -> None:
    """And these two are of the class that is made for the task."""
    source = inspect.getsource(create_request_cls)
    assert "class Request(base):" in source
    assert "def execute_using_pool(self, pool, **kwargs):" in source
    assert "def on_success(self, failed__retval__runtime, **kwargs):" in source
    assert "return self.on_failure(retval, return_ok=True)" in source
    assert "self._announce_revoked(" in inspect.getsource(Request.revoked)
    parameters = inspect.signature(Request._announce_revoked).parameters
    assert list(parameters) == ["self", "reason", "terminated", "signum", "expired"]


def test_a_consumer_is_closed_when_the_worker_stops_and_only_then() -> None:
    assert "self.on_close()" in inspect.getsource(Blueprint.close)
    assert "on_close=self.on_close," in inspect.getsource(Consumer.__init__)
    # This is not what we extend.
    assert "self.on_close()" in inspect.getsource(Consumer.start)
    source = inspect.getsource(Blueprint.stop)
    assert source.index("self.close(parent)") < source.index("self.restart(")
    assert "self.pool.flush()" in inspect.getsource(Consumer.on_close)


def test_a_signal_is_told_of_under_the_name_of_the_consumer() -> None:
    source = inspect.getsource(apps_worker._shutdown_handler)
    told = source.partition("signals.worker_shutting_down.send(")[2]
    assert told.strip().startswith("sender=worker.hostname,")
    assert "hostname=w.hostname," in inspect.getsource(components.Consumer.create)


def test_a_task_is_received_before_it_can_begin() -> None:
    source = inspect.getsource(strategy.default)
    received = source.index("signals.task_received.send(sender=consumer, request=req)")
    for begins in ("limit_task(", "limit_post_eta,", "apply_eta_task,", "handle(req)"):
        assert received < source.rindex(begins)
    made = inspect.getsource(Request.__init__)
    assert "self._message = message" in made
    assert "self._task = task or " in made
    assert "self._on_ack = on_ack" in made
    assert "self._on_reject = on_reject" in made


def _source(package: str, file: str) -> str:
    """The text of a module that is not imported: eventlet warns of all that was imported before it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name(file).read_text()


def test_a_task_that_has_a_place_among_the_greenlets_has_not_run_yet() -> None:
    """Its greenlet is the latest in the map."""
    for pool in ("gevent", "eventlet"):
        source = _source("celery.concurrency", f"{pool}.py")
        assert source.index("greenlet = self._quick_put(") < source.index("self._add_to_pool_map(")
        assert "self._quick_put = self._pool.spawn" in source
        assert "self._pool_map = {}" in source
        assert "self._pool_map[pid] = greenlet" in source
    assert "self._semaphore.acquire(" in inspect.getsource(GeventPool.add)
    eventlet = _source("eventlet", "greenpool.py")
    assert "self.sem.acquire()" in eventlet
    # It has ended when all of its places are free.
    assert "if self.sem.balance == self.size:" in eventlet


def test_a_pool_of_threads_returns_what_can_be_cancelled() -> None:
    assert "return ApplyResult(f)" in inspect.getsource(thread.TaskPool.on_apply)
    assert "self.f = future" in inspect.getsource(thread.ApplyResult.__init__)


def test_what_celery_has_cancelled_is_not_acked() -> None:
    source = inspect.getsource(Request._announce_cancelled)
    assert source.index("self.task.backend.mark_as_retry(") < source.index("self._already_cancelled = True")
    acks = inspect.getsource(Request.on_failure).partition("self._announce_revoked(")
    assert acks[1]
    assert "if not self._already_cancelled and not self._already_revoked:" in acks[0]
    assert "self._announce_cancelled(" in inspect.getsource(Request.cancel)


def test_what_the_tracer_knows_of_a_task() -> None:
    """Whether its function has returned, by these variables, and where its result is stored."""
    source = inspect.getsource(trace.build_tracer)
    assert re.search(r"R = retval = fun\(\*args, \*\*kwargs\)\n +state = SUCCESS\n", source)
    assert source.count("task.backend.mark_as_done(") == 1
    assert "def trace_task(uuid, args, kwargs, request=None):" in source
    assert "task_request = Context(request or {}" in source
    assert "I, R, state, retval = on_error(task_request, exc)" in source


def test_how_the_tracer_reports_a_failure() -> None:
    """By these two, and by an error that they raise."""
    source = inspect.getsource(trace.build_tracer)
    assert "R = report_internal_error(task, exc)" in source
    assert "FAILURE: self.handle_failure," in inspect.getsource(trace.TraceInfo.handle_error_state)
    parameters = inspect.signature(Request.on_failure).parameters
    assert list(parameters) == ["self", "exc_info", "send_failed_event", "return_ok"]


def test_how_a_retry_is_published_and_reported() -> None:
    """``Retry`` has a signature if ``Task.retry()`` has published it. The tracer calls the method of the
    class while it handles ``Retry``; that asks the backend for nothing if nothing is to be stored."""
    source = inspect.getsource(Task.retry)
    made, published = "is_eager=is_eager, sig=S)", "S.apply_async()\n        except Exception as exc:"
    assert source.index(made) < source.index(published) < source.rindex("raise ret")
    assert "raise Reject(exc, requeue=False)" in source.partition(published)[2]
    assert source.count("sig=") == 1
    assert "RETRY: self.handle_retry," in inspect.getsource(trace.TraceInfo.handle_error_state)
    reports = inspect.unwrap(trace.TraceInfo.handle_retry)
    source = inspect.getsource(reports)
    assert source.index("if store_errors:") < source.index("task.backend.mark_as_retry(")
    assert source.index("task.backend.mark_as_retry(") < source.index("task.on_retry(")
    assert "reason = self.retval" in source
    assert list(inspect.signature(reports).parameters) == ["self", "task", "req", "store_errors", "kwargs"]
