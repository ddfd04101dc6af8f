"""Checks a server: is it there, are messages safe with it, what may a failover lose, and what fills it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from time import time
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.server import OneServer, evicted_by
from kombu_redisdelay.broker.server.wire import clock_ms
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.memory import memory_use
from kombu_redisdelay.operations.memory_report import (
    MemoryUse,
    fill_of,
    key_in_words,
    kind_of,
    of_redis,
    unknown_bytes,
)
from kombu_redisdelay.operations.server_memory import (
    CONTAINER,
    UNKNOWN,
    ServerMemory,
    mebibytes,
    memories,
    memory_in,
)
from kombu_redisdelay.words import number_of, size


class Reach(NamedTuple):
    """Queues, by whether they can be looked at."""

    within: list[str]
    away: list[str]


def divide(store: Store, queues: Iterable[str], silent: Collection[str]) -> Reach:
    """See which *queues* can be looked at. A queue is away if one of its partitions is.

    Arguments:
        silent: addresses of servers that do not answer. They are not asked again: each time may take seconds.
    """
    reach = Reach([], [])
    has_failed = set(silent)
    for queue in queues:
        answers = all(_answers(store, name, has_failed) for name in store.partitions.names(queue))
        (reach.within if answers else reach.away).append(queue)
    return reach


def _answers(store: Store, name: str, has_failed: set[str]) -> bool:
    if not store.server.has_slots:
        return True
    try:
        address = store.server.server_of(store.keys(name).schedule).address
    except ConnectionError:
        return False
    if address in has_failed:
        return False
    try:
        # A server that answers may refuse: the cluster is down.
        with store.server.hurrying():
            store.server.call("EXISTS", store.keys(name).schedule)
    except TimeoutError:
        has_failed.add(address)
        return False
    except ConnectionError:
        return False
    return True


#: The setting of a server: how many replicas must follow, or it writes nothing.
MIN_REPLICAS = "min-replicas-to-write"


def check_replication(
    server: OneServer, options: Options, *, has_sentinels: bool, is_cluster: bool
) -> Iterator[Finding]:
    """Check the replicas.

    Arguments:
        has_sentinels: whether the broker goes over to a replica when sentinels say so.
        is_cluster: whether a cluster does so.
    """
    wanted = options.confirm_replicas
    if not (has_sentinels or is_cluster or wanted):
        return
    replicas = int(server.info("replication").get("connected_slaves", 0))
    if wanted > replicas:
        yield wrong(
            "confirm_replicas",
            f"{wanted} replicas have to confirm a message, and the primary has {replicas}: publishing fails",
            "Start the replicas that are missing, or lower confirm_replicas.",
        )
    elif wanted:
        yield ok("confirm_replicas", f"{wanted} of {number_of(replicas, 'replica')} confirm each message")
    if (has_sentinels or is_cluster) and not replicas:
        yield warning(
            "replicas",
            "none: if this server dies, no other one can take over",
            "Start a replica of it, or see why it has gone.",
        )
    if has_sentinels:
        yield _refusing(server.setting(MIN_REPLICAS), replicas)


def _refusing(setting: str | None, replicas: int) -> Finding:
    advice = f"CONFIG SET {MIN_REPLICAS} 1, and in the configuration of each server."
    if setting is None:
        return warning(MIN_REPLICAS, "may not be asked (CONFIG)", f"See that it is 1 or more: {advice}")
    if replicas and setting == "0":
        return warning(
            MIN_REPLICAS,
            "0: a primary that was replaced and does not know it yet takes messages, and loses them",
            advice,
        )
    return ok(MIN_REPLICAS, setting)


#: Below this share of its memory, nothing is looked at.
LEAST_SHARE = 0.5

#: A server that will be full in less than so many seconds is worth a warning.
SOON = 6 * 3600.0

#: What is named: tasks at most, and what else has this part of what Redis uses.
MOST_TASKS, LEAST_OF_REDIS = 3, 0.05


def check_filling(access: Access) -> Iterator[Finding]:
    """What fills the servers, if one is more than half full."""
    fullest = max((memory.share for _, memory in memories(access.store)), default=0.0)
    if fullest < LEAST_SHARE:
        return
    found = memory_use(access)
    said = _said(found)
    soon = [server for server in found.servers if server.full_in is not None and server.full_in < SOON]
    if not soon:
        yield ok("what fills Redis", said)
        return
    for server in soon:
        yield warning(
            "what fills Redis",
            f"{server.server}: {fill_of(server)}; {said}",
            "See `celery delayed memory`. Remove what is not needed, have fewer tasks published, start more "
            "workers, or bound the queue.",
        )


def _said(found: MemoryUse) -> str:
    """The parts of what Redis uses, the largest first."""
    tasks = [
        f"{kind_of(task)}, {task.state} in {task.queue}, {_part(task.bytes, found)}"
        for task in found.tasks[:MOST_TASKS]
    ]
    queues = f"queues {_part(found.bytes, found)}{', of it ' if tasks else ''}{', '.join(tasks)}"
    parts = [(found.bytes, queues)]
    for each in found.others:
        if each.bytes >= LEAST_OF_REDIS * found.used:
            about = " about " if each.is_about else " "
            of_these = f": {key_in_words(each.largest[0])}" if each.largest else ""
            parts.append((each.bytes, f"{each.what}{about}{_part(each.bytes, found)}{of_these}"))
    if rest := unknown_bytes(found):
        parts.append((rest, f"Redis itself, and keys that were not looked at, {_part(rest, found)}"))
    said = [text for _, text in sorted(parts, key=lambda part: -part[0])]
    if found.unread:
        said.append(f"{number_of(len(found.unread), 'queue')} could not be read")
    return f"of what Redis uses: {'; '.join(said)}"


def _part(bytes: int, found: MemoryUse) -> str:
    return f"{size(bytes)} ({of_redis(bytes, found)})"


OLDEST_VERSION = (6, 2)

#: From this share of its memory on, there is a warning.
MEMORY_SHARE = 0.8

#: A larger ``maxmemory`` than this share of the limit of the server's container leaves no room for a rewrite.
ROOM_SHARE = 0.75

_WHAT_FILLS_IT = "`celery delayed memory` tells what fills it."

_HALF = (
    "Set maxmemory to about half of the limit. A rewrite of its file may need as much again, and the kernel "
    "kills a server that needs more than the limit."
)

#: Seconds that the clocks of this machine and of the server may differ. Tasks run early or late by the
#: difference.
SKEW_LIMIT = 1.0


#: What a server replies to a script if it has no Lua: Valkey from 9.1 on without its module, or one whose
#: commands for scripts are switched off.
_NO_LUA = re.compile("could not find scripting engine|unknown command", re.IGNORECASE)


def check_server(server: OneServer) -> Iterator[Finding]:
    yield _clock(server)
    yield from _lua(server)
    try:
        info: Mapping[str, Any] = server.info()
    except ResponseError as exc:
        yield warning("server", f"could not be asked: {exc}", "ACL SETUSER <user> +info")
        return
    yield _version(info)
    yield _role(info)
    yield from _too_few_replicas(info, server)
    yield from _saving(info, server)
    yield _persistence(info, server.setting("save"), server.setting("appendfsync"))
    memory = memory_in(info)
    yield _eviction(memory, int(info.get("evicted_keys", 0)))
    yield _memory(memory)


def _clock(server: OneServer) -> Finding:
    before = time()
    reply = server.call("TIME")
    after = time()
    at = clock_ms(reply) / 1000
    # The server has read its clock at some moment between `before` and `after`.
    skew = max(0.0, before - at, at - after)
    if skew <= SKEW_LIMIT:
        return ok("clock", "the server's clock and this machine's agree")
    return wrong(
        "clock",
        f"the server's clock and this machine's are {skew:.1f} s apart",
        "Run NTP on both. Tasks are due by the server's clock, and their eta comes from the producer's.",
    )


def _lua(server: OneServer) -> Iterator[Finding]:
    try:
        server.call("EVAL", "return 1", 0)
    except ResponseError as exc:
        # The check of the permissions reports other errors.
        if _NO_LUA.search(str(exc)):
            yield wrong(
                "Lua",
                f"the server runs no Lua scripts, so nothing can be scheduled or consumed: {exc}",
                "From Valkey 9.1 on, Lua is a module: install it, and have the server load it "
                "(loadmodule libvalkeylua.so). Elsewhere, EVAL and EVALSHA are switched off.",
            )


def _version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = str(info.get("valkey_version") or info["redis_version"])
    if tuple(map(int, str(info["redis_version"]).split(".")[:2])) >= OLDEST_VERSION:
        return ok("version", f"{name} {text}")
    oldest = ".".join(map(str, OLDEST_VERSION))
    return wrong("version", f"{name} {text}", f"Upgrade: {oldest} is the oldest version that works.")


def _role(info: Mapping[str, Any]) -> Finding:
    if info.get("role") == "master":
        replicas = info.get("connected_slaves", 0)
        return ok("role", f"primary, {number_of(replicas, 'replica')}")
    return wrong("role", "a replica, which is read-only", "Point the broker URL to the primary.")


def _too_few_replicas(info: Mapping[str, Any], server: OneServer) -> Iterator[Finding]:
    # Only where a number of replicas is wanted, the server tells how many there are.
    good = info.get("min_slaves_good_slaves")
    if good is None:
        return
    wanted = server.setting(MIN_REPLICAS)
    if wanted is not None and int(good) < int(wanted):
        yield wrong(
            "replicas",
            f"{good} replicas follow, and the server writes nothing with less than {wanted} (NOREPLICAS)",
            "Start the replicas that are missing, or see why they lag behind.",
        )


def _saving(info: Mapping[str, Any], server: OneServer) -> Iterator[Finding]:
    """What fails to save the data. Some of it has Redis refuse to write."""
    check, advice = "saving", "See the server's log; is the disk full?"
    stops = "Redis writes nothing until it succeeds (MISCONF)"
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        yield wrong(check, f"writing the append-only file fails, and {stops}", advice)
    if info.get("aof_enabled") and info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield warning(check, "the last rewrite of the append-only file failed: it grows", advice)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        if server.setting("save") == "" or server.setting("stop-writes-on-bgsave-error") == "no":
            yield warning(check, "the last snapshot failed; Redis still writes", advice)
        else:
            yield wrong(check, f"the last snapshot failed, and {stops}", advice)


def _persistence(info: Mapping[str, Any], save: str | None, fsync: str | None) -> Finding:
    check = "persistence"
    if info.get("loading"):
        return wrong(check, "the server is still loading its data", "Wait until it has.")
    if info.get("aof_enabled"):
        if fsync == "no":
            return warning(
                check,
                "append-only file, appendfsync no: a crash of the machine loses up to half a minute",
                "CONFIG SET appendfsync everysec",
            )
        return ok(check, f"append-only file, appendfsync {fsync or 'unknown'}")
    advice = "CONFIG SET appendonly yes, and in the server's configuration."
    if save == "":
        return wrong(check, "none: a restart of the server loses every message, scheduled ones too", advice)
    if save is None:
        found = "no append-only file; whether there are snapshots may not be asked (CONFIG)"
        return warning(check, found, "Turn the append-only file on where the server is configured.")
    return warning(check, "snapshots only: a crash loses what came after the last one", advice)


def _eviction(memory: ServerMemory, count: int) -> Finding:
    """
    Arguments:
        count: how many keys the server has evicted.
    """
    check, policy, evicted = "eviction", f"maxmemory-policy {memory.policy}", evicted_by(memory.policy)
    lost = f"{number_of(count, 'key')} thrown away since its start, or the last CONFIG RESETSTAT"
    if evicted:
        found = f"{policy}: when memory runs out, {evicted} may be thrown away"
        return wrong(
            check,
            f"{found}; {lost}" if count else found,
            "CONFIG SET maxmemory-policy noeviction, and in the server's configuration.",
        )
    if count:
        return warning(
            check, f"{policy}, but {lost}", "If it has nothing but queues, messages were among them."
        )
    return ok(check, policy)


def _memory(memory: ServerMemory) -> Finding:
    check, found = "memory", str(memory)
    if memory.is_full and memory.policy.startswith("allkeys-"):
        return wrong(check, f"{found}: it is full, and keys are thrown away", _WHAT_FILLS_IT)
    if memory.is_full:
        advice = f"Give it more. Workers go on, and messages that wait can be cancelled. {_WHAT_FILLS_IT}"
        return wrong(check, f"{found}: it is full, and publishing fails", advice)
    if memory.of_what == UNKNOWN:
        return warning(check, found, _HALF)
    if memory.share > MEMORY_SHARE:
        return warning(check, found, f"Give it more: when it is full, publishing fails. {_WHAT_FILLS_IT}")
    if memory.of_what == CONTAINER:
        return warning(check, found, _HALF)
    if memory.container and memory.limit > ROOM_SHARE * memory.container:
        return warning(check, f"{found}, in a container or unit with {mebibytes(memory.container)}", _HALF)
    return ok(check, found)
