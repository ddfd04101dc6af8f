"""Checks how long a lease is, which consumers have unacked messages for very long or are lost, and whether
two workers have one name."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kombu_redisdelay.broker.delivery import taken_ms
from kombu_redisdelay.broker.options import LONG_LEASE, Options
from kombu_redisdelay.broker.processes import has_ended, host_and_pid, process_of, worker_of
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning
from kombu_redisdelay.words import first_of, number_of

#: Seconds. Most tasks take less time than this.
LONG = 3600.0

#: Processes that are named.
MOST_NAMED = 5

#: Consumers that hold more messages than this are skipped: reading so many would keep Redis busy.
MOST_MESSAGES = 10_000


def check_lease(options: Options) -> Iterator[Finding]:
    """Users who come from ``redis://`` may have kept their old setting."""
    check, timeout = "visibility_timeout", options.visibility_timeout
    if timeout <= LONG_LEASE:
        yield ok(check, f"{timeout:g} seconds")
        return
    yield warning(
        check,
        f"{timeout:g} seconds, for which the messages of a worker that dies may stay away",
        f"Take it out of broker_transport_options of our workers: the default of "
        f"{Options().visibility_timeout:g} does not limit how long a task may take or wait. Workers of "
        "redis:// need it as long as one of them runs.",
    )


def check_worker_names(store: Store, names: Collection[str], options: Options) -> Iterator[Finding]:
    """
    Arguments:
        names: of queues and partitions.
    """
    # One that was killed, and started again under its name, has not renewed its lease for a while.
    since_ms = store.now_ms() + options.lease_policy.unrenewed_ms
    commands = (("ZRANGEBYSCORE", store.keys(name).consumers, since_ms, "+inf") for name in names)
    processes: dict[str, set[str]] = {}
    for reply in store.server.call_all(*commands):
        # A queue may be unreadable, or its key of a wrong type. The check of the queues says so.
        for member in reply if isinstance(reply, list) else ():
            consumer = member.decode(errors="replace")
            worker = worker_of(consumer)
            if worker is not None and not has_ended(process_of(consumer)):
                processes.setdefault(worker, set()).add(process_of(consumer))
    for worker, its in sorted(processes.items()):
        if len(its) > 1:
            where = [_where(process) for process in sorted(its)]
            yield warning(
                "workers",
                f"{len(its)} are named {worker}: {first_of(where, MOST_NAMED)}",
                "Give each its own name, with -n: `celery inspect`, events and Flower take them for one.",
            )


def check_unacked(store: Store, queue: str) -> Iterator[Finding]:
    """Consumers whose lease has ended are left out: these are counted (:class:`.QueueStats`)."""
    now_ms = store.now_ms()
    for consumer, tags in _unacked(store, queue, now_ms).items():
        if has_ended(process_of(consumer)):
            yield warning(
                f"queue {queue}",
                f"{number_of(len(tags))} held by a process that is gone{_process(consumer)}",
                "They come back when another worker of this queue runs.",
            )
            continue
        seconds = [(now_ms - since_ms) / 1000 for since_ms in map(taken_ms, tags) if since_ms is not None]
        long = [each for each in seconds if each > LONG]
        if long:
            yield warning(
                f"queue {queue}",
                f"{number_of(len(long))} held for more than an hour, for up to {max(long) / 3600:.1f} h, by "
                f"one consumer{_process(consumer)}",
                "A long task may hold one. If no task runs that long (`celery inspect active`), restart this "
                "worker.",
            )


def _unacked(store: Store, queue: str, now_ms: float) -> dict[str, list[bytes]]:
    keys = store.keys(queue)
    members = store.server.call("ZRANGEBYSCORE", keys.consumers, f"({now_ms}", "+inf")
    consumers = [member.decode(errors="replace") for member in members]
    counts = answers(store.server, (("HLEN", keys.unacked(consumer)) for consumer in consumers))
    looked_at = [name for name, count in zip(consumers, counts, strict=True) if 0 < count <= MOST_MESSAGES]
    tags = answers(store.server, (("HKEYS", keys.unacked(consumer)) for consumer in looked_at))
    return dict(zip(looked_at, tags, strict=True))


def _process(consumer: str) -> str:
    _, _, rest = consumer.partition(":")
    pid = rest.split(":")[1:2]
    return f" (process {pid[0]})" if pid and pid[0].isdigit() else ""


def _where(process: str) -> str:
    host, pid = host_and_pid(f"{process}:")
    return f"process {pid} on {host or 'an unknown host'}"
