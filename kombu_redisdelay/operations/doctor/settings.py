"""Checks the settings of the app: URL, transport options, prefetch count, partitions, result backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Thread
from typing import Any
from uuid import uuid4

from kombu_redisdelay.broker.keys import MARK
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.doctor.server import Reach
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.registration import TAKEN_OVER
from kombu_redisdelay.words import in_a_line, number_of


def check_url(access: Access) -> Iterator[Finding]:
    scheme = access.scheme
    if scheme not in TAKEN_OVER:
        return
    found = f"{scheme}:// uses this transport in this process (KOMBU_REDISDELAY, or use_for_redis_urls)"
    given, used = access.transport_options.get("visibility_timeout"), access.options.visibility_timeout
    if given is not None and given != used:
        found += f"; the visibility_timeout of {given:g} seconds is meant for kombu's, and does not count"
    yield ok("broker URL", found)


def check_transport_options(unknown: Mapping[str, str | None], is_unverified: bool) -> Iterator[Finding]:
    """
    Arguments:
        is_unverified: whether TLS is used, and any certificate accepted.
        unknown: unknown option -> the known option that it resembles, ``None`` if there is no such option.
    """
    check = "transport options"
    if not unknown:
        yield ok(check, "all are known")
    if is_unverified:
        yield warning(
            "TLS",
            "the certificate of the server is not verified (`ssl_cert_reqs`): a machine between you and "
            "the server can read the password, and every message",
            "Take `ssl_cert_reqs` out. If a private authority has signed the certificate, name it in "
            "`ssl_ca_certs`.",
        )
    for name, nearest in unknown.items():
        advice = (
            "Take it out of broker_transport_options, unless another program reads it there."
            if nearest is None
            else f"Did you mean {nearest!r}?"
        )
        yield warning(check, f"{name!r} is unknown, and has no effect", advice)


GREEN = ("gevent", "eventlet")


def check_prefetch(app: Any) -> Iterator[Finding]:
    """Look at the settings of *app*; ``None`` if there is none. A pool that only the command line of a worker
    names is not known here, nor whether it has ``--autoscale``: the worker's log says it."""
    if app is None:
        return
    settings = app.conf
    reduces = settings.worker_enable_prefetch_count_reduction and settings.worker_prefetch_multiplier
    if settings.worker_pool in GREEN and reduces:
        yield warning(
            "prefetch count",
            f"Celery lowers it after a lost connection, and with {settings.worker_pool} it stays low",
            "Set worker_enable_prefetch_count_reduction = False.",
        )
    elif reduces == 1:
        yield ok(
            "prefetch count",
            "Celery lowers it after a lost connection. Workers with --autoscale and "
            "worker_prefetch_multiplier = 1 need worker_enable_prefetch_count_reduction = False: else their "
            "pools may never grow again",
        )


def check_partitions(store: Store, known: Reach, queues: Sequence[str]) -> Iterator[Finding]:
    """
    Arguments:
        known: names of all queues and partitions that Redis knows of or that the app declares.
        queues: names of the queues to check; all queues if it is empty.
    """
    used = set(map(store.partitions.queue_of, (*known.within, *known.away)))
    for queue in store.partitions.spread:
        if queue not in used and (not queues or queue in queues):
            yield warning(
                f"queue {queue}",
                "it is in the option `partitions`, and nobody has used it yet",
                "See whether its name is misspelt there.",
            )
    for stats in _unattended(store, known.within):
        queue, number = split(stats.queue)
        if queues and queue not in queues:
            continue
        count = len(store.partitions.names(queue))
        yield warning(
            f"queue {queue}",
            f"{number_of(stats.messages)} in the partition {stats.queue}, which no worker takes: the "
            f"option `partitions` says {count} here",
            "If producers have a larger number, deploy it to the workers, and here. If it was lowered, give "
            f"the workers at least {number + 1} again until the partition is empty.",
        )


def attended(store: Store, known: Sequence[str]) -> list[str]:
    """Those of the *known* queues that :func:`check_partitions` does not report."""
    reported = {stats.queue for stats in _unattended(store, known)}
    return [name for name in known if name not in reported]


def split(name: str) -> tuple[str, int]:
    """The queue and the number of a partition, 0 if *name* cannot be one's."""
    queue, _, number = name.rpartition(MARK)
    return (queue, int(number)) if queue and number.isdecimal() else (name, 0)


def _unattended(store: Store, known: Iterable[str]) -> list[QueueStats]:
    """Partitions that the option does not have, with messages and without a worker."""
    known = set(known)
    others = [name for name in sorted(known) if store.partitions.queue_of(name) == name and split(name)[1]]
    beyond = [name for name in others if split(name)[0] in known.union(store.partitions.spread)]
    return [stats for stats in queue_stats(store, beyond) if stats.messages and not stats.consumers]


#: Between two tries, Celery waits 5 seconds on average, and less at first: so many take five minutes.
MAX_RETRIES = 70

#: Seconds in which a backend has to answer.
PATIENCE = 5.0


def check_result_backend(app: Any) -> Iterator[Finding]:
    """A result that does not exist is asked for.

    Arguments:
        app: the Celery app.
    """
    check = "result backend"
    try:
        where = app.backend.as_uri()
    except Exception as exc:
        yield wrong(check, f"Celery cannot use it: {exc}", "Correct the setting result_backend.")
        return
    is_disabled = where.partition("://")[0] == "disabled"
    why = "" if is_disabled else _silence(app.backend)
    if why:
        yield wrong(check, f"{where}: {why}", "Results are lost, or wait in the workers, until it answers.")
    else:
        yield ok(check, "none, results are not kept" if is_disabled else where)
    if not (is_disabled or app.conf.task_ignore_result or app.conf.result_backend_always_retry):
        yield from _check_retries(check, app.backend)


def _silence(backend: Any) -> str:
    """Why the backend does not say what is kept of a task; empty if it does, or there is nothing to ask, as
    with ``rpc://``."""
    ask = getattr(backend, "_get_task_meta_for", None)
    if ask is None:
        return ""
    why = [f"it does not answer within {PATIENCE:g} s"]

    def try_to_ask() -> None:
        try:
            ask(str(uuid4()))
            why[:] = [""]
        except Exception as exc:
            why[:] = [in_a_line(exc)]

    # Nobody waits for it any longer, whatever its own limits are.
    thread = Thread(target=try_to_ask, name="redisdelay-result-backend", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return why[0]


def _check_retries(check: str, backend: Any) -> Iterator[Finding]:
    from celery.backends.base import Backend

    # Others know no error after which they may try again.
    if type(backend).exception_safe_to_retry is not Backend.exception_safe_to_retry:
        yield warning(
            check,
            "a result is lost if it cannot be stored at once, though its task has returned",
            "Set result_backend_always_retry = True, so that Celery goes on trying, and "
            f"result_backend_max_retries = {MAX_RETRIES}, so that it does for about five minutes. So long, a "
            "place of the pool waits, and a warm shutdown, too.",
        )
