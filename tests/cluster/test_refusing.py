"""Servers of a cluster that refuse what is asked at first: which server has which slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from kombu.connection import Connection
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.refusals import refusal_of
from tools.harness import trouble
from tools.harness.cluster import Cluster
from tools.harness.cluster_node import Node
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST


def connect(*ports: int) -> None:
    url = ";".join(f"redisdelay-cluster://{HOST}:{port}" for port in ports)
    with Connection(url) as connection:
        connection.connect()


@contextmanager
def all_of(cluster: Cluster, begin: Callable[[Node], AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for node in cluster.nodes:
            stack.enter_context(begin(node))
        yield


@pytest.mark.parametrize(
    ("begin", "reason"),
    [(trouble.too_many_clients, "maxclients"), (trouble.busy, "busy")],
    ids=["too many clients", "busy"],
)
def test_a_server_that_refuses_is_not_taken_for_one_without_a_cluster(
    cluster: Cluster, begin: Callable[[Node], AbstractContextManager[object]], reason: str
) -> None:
    """A worker would end: to try again would not help."""
    errors = Connection("redisdelay-cluster://").connection_errors
    with all_of(cluster, begin), pytest.raises(errors) as caught:
        connect(*(node.port for node in cluster.nodes))
    refusal = refusal_of(caught.value)
    # Some releases of redis-py do not read what is said to one client too many.
    assert (refusal and refusal.reason) in ({reason, None} if reason == "maxclients" else {reason})
    connect(cluster.nodes[0].port)
    cluster.wait_until_ok()


def test_one_that_refuses_does_not_matter(cluster: Cluster) -> None:
    with trouble.too_many_clients(cluster.nodes[0]):
        connect(*(node.port for node in cluster.nodes))
    cluster.wait_until_ok()


def test_what_is_said_otherwise(cluster: Cluster) -> None:
    with Proxy(cluster.nodes[0].port) as proxy:
        proxy.refuse("ERR the disks are on strike", but=(b"CLIENT", b"HELLO"))
        with pytest.raises(ResponseError, match="on strike"):
            connect(proxy.port)
        proxy.refuse("NOPERM this user has no permissions", but=(b"CLIENT", b"HELLO"))
        with pytest.raises(NoPermissionError):
            connect(proxy.port)
