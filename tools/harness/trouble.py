"""A server in trouble: in the block of each of these it refuses, and after it, it serves again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from threading import Thread
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tools.harness.cluster_node import Node
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer

#: Seconds that the server has to get into trouble, and out of it.
PATIENCE = 30.0
#: Arguments of a server that is to load slowly: so many microseconds a key. In between it looks at its
#: clients, after two megabytes each time.
SLOW_TO_LOAD = ("--key-load-delay", "40000")
#: A user that may be refused something while others are served, and arguments of a server that knows it.
USER, PASSWORD = "of-workers", "secret"
WITH_USER = ("--user", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all")
_FILLERS, _FILLER_BYTES = 40, 2**19

Trouble = Callable[[RedisServer], AbstractContextManager[object]]


def asking(server: RedisServer, **login: str) -> redis.Redis:
    """A client that says what the server said, and tries nothing again."""
    options: dict[str, Any] = {"password": server.password, **login, "retry": Retry(NoBackoff(), 0)}
    return redis.Redis(host=HOST, port=server.port, **options)


def url_of_user(port: int) -> str:
    """The broker, at the port of the server or of a proxy before it, for :data:`USER`."""
    return f"redisdelay://{USER}:{PASSWORD}@{HOST}:{port}/0"


@contextmanager
def misconf(server: RedisServer) -> Iterator[None]:
    """It could not save its data: a folder is where its snapshot should be."""
    snapshot = server.directory / "dump.rdb"
    with server.client() as client:

        def is_saved() -> bool:
            # One that saves just now refuses to begin.
            with suppress(redis.ResponseError):
                client.bgsave()
            return bool(client.info("persistence")["rdb_last_bgsave_status"] == "ok")

        snapshot.unlink(missing_ok=True)
        snapshot.mkdir()
        client.config_set("save", "3600 1")
        try:
            wait_until(lambda: not is_saved(), PATIENCE, "that it cannot save")
            yield
        finally:
            snapshot.rmdir()
            wait_until(is_saved, PATIENCE, "that it can save again")
            client.config_set("save", "")


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """A script does not end."""

    def loop() -> None:
        with suppress(redis.RedisError), asking(server) as client:
            client.eval("while true do end", 0)

    with server.client() as client:
        client.config_set("lua-time-limit", 50)
    thread = Thread(target=loop, daemon=True)
    thread.start()
    try:
        wait_until(lambda: _says(server, "BUSY "), PATIENCE, "that a script keeps it busy")
        yield
    finally:
        with asking(server) as client:
            client.script_kill()
        thread.join(PATIENCE)


@contextmanager
def no_permission(server: RedisServer, user: str = "default", *rules: str) -> Iterator[None]:
    """A user may not do what *rules* take away: commands that take messages, if none are given."""
    refused = rules or ("-evalsha", "-eval", "-bzpopmin", "-hset", "-hdel")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", user, *refused)
        try:
            yield
        finally:
            client.execute_command("ACL", "SETUSER", user, "allkeys", "allchannels", "+@all")


@contextmanager
def wrong_password(server: RedisServer, user: str, password: str) -> Iterator[None]:
    """A user has another password now, and its connections are closed.

    Arguments:
        password: that it has before and after.
    """
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", user, "resetpass", ">another")
        try:
            client.execute_command("CLIENT", "KILL", "USER", user)
            yield
        finally:
            client.execute_command("ACL", "SETUSER", user, "resetpass", f">{password}")


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    """It has no memory for anything."""
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


@contextmanager
def too_many_clients(server: RedisServer) -> Iterator[redis.Redis]:
    """It takes no more connections, and those of clients are closed but for that of the client that this
    yields."""
    with server.client() as client:
        limit = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", 1)
        try:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            yield client
        finally:
            client.config_set("maxclients", limit)


@contextmanager
def read_only(server: RedisServer) -> Iterator[None]:
    """It is a replica, of a server that cannot be reached."""
    with server.client() as client:
        client.replicaof(HOST, "1")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def without_primary(server: RedisServer) -> Iterator[None]:
    """It is a replica that must not answer with data that may be old."""
    with server.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        try:
            with read_only(server):
                yield
        finally:
            client.config_set("replica-serve-stale-data", "yes")


@contextmanager
def too_few_replicas(server: RedisServer) -> Iterator[None]:
    """It does not write, for want of replicas."""
    with server.client() as client:
        before = client.config_get("min-replicas-to-write")["min-replicas-to-write"]
        client.config_set("min-replicas-to-write", 99)
        try:
            yield
        finally:
            client.config_set("min-replicas-to-write", before)


@contextmanager
def cluster_down(node: Node) -> Iterator[None]:
    """It does not serve one of its slots, and so takes the whole cluster for down."""
    slot = min(node.known()[node.id].slots)
    node.call("CLUSTER", "DELSLOTS", slot)
    try:
        wait_until(lambda: node.state() == "fail", PATIENCE, "that the cluster is down")
        yield
    finally:
        node.call("CLUSTER", "ADDSLOTS", slot)
        wait_until(lambda: node.state() == "ok", PATIENCE, "that the cluster is up")


@contextmanager
def loading(server: RedisServer) -> Iterator[None]:
    """It has started again, and loads its data, for about two seconds if it has ``SLOW_TO_LOAD``. It forgets
    nothing, and must have no append-only file."""
    fillers: list[str] = []
    with server.client() as client:
        for name in (f"filler:{number}" for number in count()):
            # Others are of other nodes, if it is one of a cluster.
            with suppress(redis.exceptions.MovedError):
                # Redis makes data smaller that repeats itself.
                client.set(name, os.urandom(_FILLER_BYTES))
                fillers.append(name)
            if len(fillers) == _FILLERS:
                break
    with suppress(redis.RedisError), asking(server) as client:
        client.shutdown(save=True)
    wait_until(lambda: not server.running, PATIENCE, "that it ends")
    server.start()
    wait_until(lambda: _says(server, "is loading"), PATIENCE, "that it loads")
    try:
        yield
    finally:
        # One of a cluster has to hear from the others before it serves.
        wait_until(lambda: _unlinks(server, fillers), PATIENCE, "that it has loaded")


def _says(server: RedisServer, error: str) -> bool:
    """Whether it replies with an error that contains that, or with none if *error* is empty."""
    with asking(server) as client:
        try:
            client.ping()
        except redis.RedisError as exc:
            return bool(error) and error in str(exc)
    return not error


def _unlinks(server: RedisServer, keys: Iterable[str]) -> bool:
    with asking(server) as client, suppress(redis.RedisError):
        return all(client.unlink(key) is not None for key in keys)
    return False
