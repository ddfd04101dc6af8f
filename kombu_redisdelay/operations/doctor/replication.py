"""Checks what a failover may lose."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong

_SETTING = "min-replicas-to-write"


def check_replication(server: OneServer, options: Options, *, fails_over: bool) -> Iterator[Finding]:
    """Check the replicas.

    Arguments:
        fails_over: whether the broker goes over to a replica by itself, because sentinels say so.
    """
    wanted = options.confirm_replicas
    if not fails_over and not wanted:
        return
    replicas = int(server.info("replication").get("connected_slaves", 0))
    if wanted > replicas:
        yield wrong(
            "confirm_replicas",
            f"{wanted} replicas have to confirm a message, and the primary has {replicas}: publishing fails",
            "Start the replicas that are missing, or lower confirm_replicas.",
        )
    elif wanted:
        yield ok("confirm_replicas", f"{wanted} of {replicas} replica(s) confirm each message")
    if fails_over:
        yield _refusing(server.setting(_SETTING), replicas)


def _refusing(setting: str | None, replicas: int) -> Finding:
    advice = f"CONFIG SET {_SETTING} 1, and in the configuration of each server."
    if setting is None:
        return warning(_SETTING, "may not be asked (CONFIG)", f"See that it is 1 or more: {advice}")
    if replicas and setting == "0":
        return warning(
            _SETTING,
            "0: a primary that was replaced and does not know it yet takes messages, and loses them",
            advice,
        )
    return ok(_SETTING, setting)
