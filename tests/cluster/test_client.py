"""The client that kombu uses at a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu.connection import Connection
from redis.exceptions import NoScriptError

from tools.harness.cluster import Cluster
from tools.harness.cluster_view import slot_of

KEY = "{q}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(primaries=3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    with Connection(cluster.url()) as connection, connection.channel().conn_or_acquire() as client:
        yield client


@pytest.mark.parametrize("how", ["by itself", "in a pipeline"])
def test_a_script_that_a_new_server_does_not_know(cluster: Cluster, client: Any, how: str) -> None:
    """The slot moves to it, and no server that was known by then had a reason to tell of it."""
    script = client.register_script("return redis.call('INCR', KEYS[1])")
    first = int(script(keys=[KEY]))
    new = cluster.add_node()
    with cluster.moving(slot_of(KEY), to=new) as move:
        move.move_keys(count=1)
    if how == "by itself":
        assert int(script(keys=[KEY])) == first + 1
    else:
        with client.pipeline() as pipe:
            script(keys=[KEY], client=pipe)
            assert [int(reply) for reply in pipe.execute()] == [first + 1]


def test_a_script_that_nobody_knows(client: Any) -> None:
    with pytest.raises(NoScriptError):
        client.evalsha("0" * 40, 1, KEY)
