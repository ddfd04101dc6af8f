"""Checks whether messages are safe with this server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from time import time
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.server import OneServer, evicted_by
from kombu_redisdelay.broker.server.wire import clock_ms
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.operations.doctor.replication import MIN_REPLICAS
from kombu_redisdelay.operations.server_memory import CONTAINER, UNKNOWN, ServerMemory, mebibytes, memory_in
from kombu_redisdelay.words import number_of

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
    yield _eviction(memory)
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


def _eviction(memory: ServerMemory) -> Finding:
    evicted = evicted_by(memory.policy)
    if not evicted:
        return ok("eviction", f"maxmemory-policy {memory.policy}")
    return wrong(
        "eviction",
        f"maxmemory-policy {memory.policy}: when memory runs out, {evicted} may be thrown away",
        "CONFIG SET maxmemory-policy noeviction, and in the server's configuration.",
    )


def _memory(memory: ServerMemory) -> Finding:
    check, found = "memory", str(memory)
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
