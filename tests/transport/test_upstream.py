"""Faults of Celery, kombu and redis-py: whether the installed release has them, as their rows say.

A test that fails here tells that a release has mended one, or that a workaround may go: the oldest release
that we support has it mended.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery, Task
from celery.app import trace
from celery.apps import worker as apps_worker
from celery.backends.redis import SentinelBackend
from celery.backends.rpc import RPCBackend
from celery.concurrency import base, gevent, solo, thread
from celery.concurrency.asynpool import AsynPool
from celery.worker.consumer import Consumer
from celery.worker.heartbeat import Heart
from celery.worker.request import Request
from kombu.asynchronous.hub import Hub
from kombu.transport import redis
from redis import cluster as redis_cluster
from redis.connection import Connection
from redis.sentinel import SentinelManagedConnection

from kombu_redisdelay.transport import upstream
from kombu_redisdelay.transport.upstream import FAULTS

ROOT = Path(__file__).parents[2]
HERE = Path(upstream.__file__).parent

PROBES: dict[str, Callable[[], bool]] = {}


def probe(of: Callable[[], bool]) -> Callable[[], bool]:
    """Note what says whether the installed release has a fault."""
    PROBES[of.__name__] = of
    return of


def source(of: object) -> str:
    """What it is, without what we have made of it."""
    return inspect.getsource(inspect.unwrap(of))  # type: ignore[arg-type]


def comes_first(text: str, *parts: str) -> bool:
    """Whether a *text* has these *parts*, in this order."""
    return re.search(".*".join(map(re.escape, parts)), text, re.DOTALL) is not None


@probe
def unpublished_retry() -> bool:
    return "raise Reject(exc, requeue=False)" in source(Task.retry)


@probe
def end_before_settling() -> bool:
    return comes_first(source(Request._announce_revoked), "mark_as_revoked(", "self.acknowledge()")


@probe
def cancelled_too_late() -> bool:
    of_celery = source(Request._announce_cancelled)
    return comes_first(of_celery, "mark_as_retry(", "self._already_cancelled = True")


@probe
def lost_worker_retry() -> bool:
    if not hasattr(Request, "_retry_worker_lost"):
        return False
    of_celery = source(Request._retry_worker_lost)
    return comes_first(of_celery, ").apply_async()", "return False", "mark_as_retry(", "self.acknowledge()")


@probe
def cancel_without_terminate() -> bool:
    for pool in (solo.TaskPool, thread.TaskPool):
        try:
            pool.terminate_job(SimpleNamespace(), 1)
        except NotImplementedError:
            continue
        return False
    return True


@probe
def unstored_retry() -> bool:
    of_celery = source(trace.TraceInfo.handle_retry)
    return "mark_as_retry(" in of_celery and "    except" not in of_celery


@probe
def escapes() -> bool:
    def raises() -> None:
        raise KeyError

    called: list[object] = []
    try:
        base.apply_target(raises, callback=called.append)
    except KeyError:
        return not called
    return False


@probe
def green_pool_grows() -> bool:
    return "_semaphore.counter += n" in source(gevent.TaskPool.grow)


@probe
def unseen_end_of_a_process() -> bool:
    of_celery = source(AsynPool._event_process_exit)
    return of_celery.count("self.maintain_pool()") == 1 and "call_later" not in of_celery


@probe
def ended_process_is_watched() -> bool:
    hub = Hub()
    try:
        AsynPool._track_child_process(None, SimpleNamespace(_sentinel_poll=None), hub)
    except Exception:
        return True
    finally:
        hub.close()
    return False


@probe
def flush_forgets() -> bool:
    of_celery = source(AsynPool.flush).partition("outbound_buffer.clear()")[0]
    return "if not job._accepted:" in of_celery and "_write_to" not in of_celery


@probe
def unstarted_tasks_stay() -> bool:
    # The set has requests, and no ids.
    return "for request_id in reserved_requests:" in source(Consumer.on_close)


@probe
def waiting_heartbeat() -> bool:
    return inspect.signature(inspect.unwrap(Heart._send)).parameters["retry"].default is True


@probe
def offline_event() -> bool:
    return "event_dispatcher" not in source(Consumer.on_connection_error_after_connected)


@probe
def cancelled_timers() -> bool:
    return "self.timer_entries_before_start = " in source(Consumer.start)


@probe
def signal_in_the_loop_of_gevent() -> bool:
    # It would need a greenlet.
    return "spawn" not in source(apps_worker)


@probe
def unchecked_types() -> bool:
    message = SimpleNamespace(
        headers={"id": "1", "task": "t", "timelimit": "x"},
        body=b"",
        payload=([], {}, {}),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={},
    )
    return bool(Request(message, task=Task(), app=None).time_limits == "x")


@probe
def deferred_acks() -> bool:
    later = getattr(Consumer, "call_soon_ack", None)
    return later is None or "return self.hub.call_soon(p)" in source(later)


@probe
def rpc_results_stay() -> bool:
    return "expir" not in source(RPCBackend.store_result)


@probe
def sentinel_user() -> bool:
    app = Celery("app", set_as_current=False)
    app.conf.result_backend_transport_options = {"master_name": "name"}
    try:
        return "username" not in SentinelBackend(app=app, url="sentinel://user:pw@host:26379/0").connparams
    finally:
        app.close()


@probe
def polling_stops() -> bool:
    return "loop.on_tick.remove(on_poll_start)" in source(redis.Transport.register_with_event_loop)


@probe
def lax_base64() -> bool:
    return bool(redis.Channel.codecs["base64"].decode("{}") == b"")


@probe
def client_for_each_call() -> bool:
    return "yield self._create_client()" in source(redis.Channel.conn_or_acquire)


@probe
def cluster_errors() -> bool:
    return hasattr(redis_cluster, "ClusterParser")


@probe
def first_server_is_asked() -> bool:
    return "shuffle(" not in source(redis_cluster.NodesManager.initialize)


@probe
def old_primary() -> bool:
    opens = source(Connection.send_packed_command)
    return "self.connect_check_health(" in opens and "connect_check_health" not in vars(
        SentinelManagedConnection
    )


def numbers(text: str) -> tuple[int, ...]:
    """The first two of a release."""
    return tuple(map(int, text.split(".")[:2]))


def oldest(package: str) -> tuple[int, ...]:
    """The oldest release of a *package* that we support."""
    options = ConfigParser()
    options.read(ROOT / "setup.cfg")
    needs = options["options"]["install_requires"] + options["options.extras_require"]["celery"]
    [found] = set(re.findall(rf"^\s*{package}\S*>=([\d.]+)", needs, re.MULTILINE))
    return numbers(found)


@pytest.mark.parametrize("name", FAULTS)
def test_the_installed_release_has_it_as_its_row_says(name: str) -> None:
    fault, installed = FAULTS[name], numbers(version(FAULTS[name].of))
    is_mended = fault.mended is not None and installed >= fault.mended
    has_it = PROBES[name]()
    assert has_it == (installed >= fault.since and not is_mended), (
        f"{fault.of} {version(fault.of)} {'has' if has_it else 'has no'} {name}, unlike its row"
    )


@pytest.mark.parametrize("name", FAULTS)
def test_its_workaround_is_still_needed(name: str) -> None:
    fault = FAULTS[name]
    assert fault.mended is None or fault.mended > oldest(fault.of), (
        f"{fault.of} {oldest(fault.of)} has {name} mended: its workaround in {fault.where} may go"
    )


@pytest.mark.parametrize("name", FAULTS)
def test_its_workaround_says_which_it_is(name: str) -> None:
    assert f"``{name}``" in (HERE / FAULTS[name].where).read_text()


def test_no_probe_is_left_over() -> None:
    assert PROBES.keys() == FAULTS.keys()
