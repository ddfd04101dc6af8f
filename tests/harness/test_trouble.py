"""A server says what it is to say while it is in trouble, and serves afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from redis.exceptions import RedisError

from tools.harness import trouble
from tools.harness.cluster import Cluster
from tools.harness.redis_server import RedisServer

PASSWORD = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    user = ("--user", "of-a-worker", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    with RedisServer(args=(*user, *trouble.SLOW_TO_LOAD)) as server:
        yield server


def of_a_worker(
    begin: Callable[..., AbstractContextManager[object]], *more: str
) -> Callable[[RedisServer], AbstractContextManager[object]]:
    return lambda server: begin(server, "of-a-worker", *more)


SAID: dict[str, tuple[Callable[[RedisServer], AbstractContextManager[object]], str]] = {
    "misconf": (trouble.misconf, "MISCONF"),
    "busy": (trouble.busy, "BUSY"),
    "no permission": (of_a_worker(trouble.no_permission, "-set"), "has no permissions to run"),
    "wrong password": (of_a_worker(trouble.wrong_password, PASSWORD), "WRONGPASS|invalid username-password"),
    "full": (trouble.full, "OOM|command not allowed when used memory"),
    "too many clients": (trouble.too_many_clients, "max number of clients reached"),
    "read-only": (trouble.read_only, "read only replica"),
    "without primary": (trouble.without_primary, "Link with MASTER is down"),
    "too few replicas": (trouble.too_few_replicas, "NOREPLICAS"),
    "loading": (trouble.loading, "loading"),
}


@pytest.mark.parametrize(("begin", "said"), SAID.values(), ids=SAID)
def test_a_server_in_trouble(
    server: RedisServer, begin: Callable[[RedisServer], AbstractContextManager[object]], said: str
) -> None:
    def set_key(command: str = "SET") -> None:
        words = (command, "key", "value") if command == "SET" else (command, "key")
        with trouble.asking(server, username="of-a-worker", password=PASSWORD) as client:
            client.execute_command(*words)

    set_key()
    with begin(server), pytest.raises(RedisError, match=said):
        set_key("GET" if said.startswith("Link") else "SET")
    set_key()


def test_a_cluster_that_is_down(cluster: Cluster) -> None:
    node = cluster.node_of("key")
    with trouble.cluster_down(node), pytest.raises(RedisError, match=r"CLUSTERDOWN|The cluster is down"):
        node.call("SET", "key", "value")
    node.call("SET", "key", "value")
    cluster.wait_until_ok()
