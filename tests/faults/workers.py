"""What the tests that run Celery workers have in common."""

from __future__ import annotations

import celery

from tests.end_to_end.installation import Installation

#: What a worker logs when a connection is lost.
LOST_CONNECTION = (
    r"Traceback|Connect\w*Error|TimeoutError|BrokenPipeError|_SocketError|Cannot connect"
    r"|renew the lease|ack was not confirmed"
)

#: Celery 5.5 never acks a late-ack task that ends after prefork's connection was lost.
PREFORK_ACKS_LATE = tuple(int(part) for part in celery.__version__.split(".")[:2]) >= (5, 6)


def late_ack_pools(*pools: str) -> list[str]:
    """Those of *pools* in which a late-ack task may be expected to be acked after a reconnect."""
    return [pool for pool in pools if pool != "prefork" or PREFORK_ACKS_LATE]


def connections(installation: Installation) -> list[str]:
    """The ids of all connections to the server but ours."""
    ours = str(installation.redis.client_id())
    clients: list[dict[str, str]] = installation.redis.client_list()
    return [client["id"] for client in clients if client["id"] != ours]


def kill_connections(installation: Installation) -> None:
    """Kill all connections to the server but ours, at once."""
    with installation.redis.pipeline() as pipe:
        for connection in connections(installation):
            pipe.execute_command("CLIENT", "KILL", "ID", connection)
        pipe.execute()
