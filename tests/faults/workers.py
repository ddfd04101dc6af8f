"""What the tests that run Celery workers have in common."""

from __future__ import annotations

import socket
import time

from kombu_redisdelay.broker.server.line import REST
from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST

#: What a worker logs when a connection is lost. kombu meets an IndexError whenever it opens a channel, and
#: a traceback of what then went wrong shows it.
LOST_CONNECTION = (
    r"Traceback|Connect\w*Error|TimeoutError|BrokenPipeError|_SocketError|Cannot connect|\bUnreachable"
    r"|renew the lease|ack was not confirmed|IndexError: pop from empty list"
)


def start_a_worker_for_each(installation: Installation, *pools: str) -> list[CeleryWorker]:
    """Workers that lose connections, each with a pool of two that has a queue of its own."""
    workers = [
        installation.start_worker(pool=pool, concurrency=2, queues=[pool], expected=LOST_CONNECTION)
        for pool in pools
    ]
    for worker in workers:
        worker.wait_ready()
    return workers


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


def lose_connections(installation: Installation, worker: CeleryWorker) -> None:
    """Kill all connections as soon as *worker* waits for messages, and wait until it has connected again.

    A connection that it opens after the kill is not lost, so Celery would notice nothing.
    """

    def waits() -> bool:
        return any(each["cmd"] == "bzpopmin" for each in installation.redis.client_list())

    def connected() -> int:
        # With gevent and eventlet, remote control tells the same of a connection of its own.
        return worker.log().count("MainProcess] Connected to")

    wait_until(waits, 30, "that it waits for messages")
    before = connected()
    kill_connections(installation)
    wait_until(lambda: connected() > before, 30, "that it connects again")


def wait_closed(port: int) -> None:
    """Wait until all connections to a server that was killed are closed, and are checked before their use.

    A process that it has forked has its connections, too, and may end later. A connection that was used just
    now is not checked: what is published over it may be there.
    """
    killed = time.monotonic()

    def is_closed() -> bool:
        with socket.socket() as client:
            return client.connect_ex((HOST, port)) != 0 and time.monotonic() > killed + 2 * REST

    wait_until(is_closed, 30, "the end of its connections")
