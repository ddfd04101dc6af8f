"""Checks what a failover may lose."""

from __future__ import annotations

from collections.abc import Iterator

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.words import number_of

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
