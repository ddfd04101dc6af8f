"""Brings a server into trouble: it is there, and refuses. Each way is a context manager, which mends it at
its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from typing import Any

import redis

from tools.harness.full import fill
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: How a server is brought into trouble, for so long as the context lasts.
Trouble = Callable[[RedisServer], AbstractContextManager[None]]

#: A server that loads its data looks at its clients after so many bytes, for which it needs so many seconds.
_LOADED_AT_A_TIME, _LOADS_IN = 1024, 0.01


@contextmanager
def misconf(server: RedisServer) -> Iterator[None]:
    """The server could not save a snapshot."""
    client: Any
    file = server.directory / "dump.rdb"
    with server.client(decode_responses=True) as client:
        before = client.config_get("save")["save"]
        client.config_set("save", "3600 1000000")
        file.unlink(missing_ok=True)
        # No snapshot can take the place of a folder.
        file.mkdir()
        try:
            _save_until(client, "err")
            yield
        finally:
            file.rmdir()
            _save_until(client, "ok")
            client.config_set("save", before)


def _save_until(client: Any, status: str) -> None:
    def is_reached() -> bool:
        with suppress(redis.ResponseError):
            client.bgsave()
        told = client.info("persistence")
        return not told["rdb_bgsave_in_progress"] and told["rdb_last_bgsave_status"] == status

    wait_until(is_reached, 30, f"a snapshot whose status is {status}")


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """A script of somebody does not end."""
    client: Any
    with server.client(decode_responses=True) as client, server.client(socket_timeout=None) as other:
        before = client.config_get("lua-time-limit")["lua-time-limit"]
        client.config_set("lua-time-limit", 100)
        thread = Thread(target=_loop, args=(other,), daemon=True)
        thread.start()
        try:
            wait_until(lambda: _says(client, "BUSY"), 30, "that the server is busy")
            yield
        finally:
            client.script_kill()
            thread.join(30)
            client.config_set("lua-time-limit", before)


def _loop(client: redis.Redis) -> None:
    with suppress(redis.RedisError):
        client.eval("while true do end", 0)


def _says(client: Any, code: str) -> bool:
    try:
        client.ping()
    except redis.ResponseError as exc:
        return code in str(exc)
    return False


@contextmanager
def noperm(server: RedisServer) -> Iterator[None]:
    """The user lost the right to take messages."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval", "-brpop", "-hset")
        try:
            yield
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+@all")


@contextmanager
def oom(server: RedisServer) -> Iterator[None]:
    """The server is full."""
    client: Any
    with server.client() as client:
        before = client.info("memory")["maxmemory"]
        fill(client)
        try:
            yield
        finally:
            client.config_set("maxmemory", before)
            client.delete("ballast")


@contextmanager
def loading(server: RedisServer, seconds: float = 60) -> Iterator[None]:
    """The server was started again, and loads its data. This takes so many *seconds*, or until the end of the
    context. What it has is kept."""
    client: Any
    keys = [f"ballast:{number}" for number in range(round(seconds / _LOADS_IN))]
    with server.client() as client:
        # It looks at its clients after so many bytes.
        client.config_set("rdbcompression", "no")
        client.mset(dict.fromkeys(keys, "x" * _LOADED_AT_A_TIME))
        client.save()
    before = server.args
    slow = {
        "--key-load-delay": round(_LOADS_IN * 1_000_000),
        "--loading-process-events-interval-bytes": _LOADED_AT_A_TIME,
    }
    server.stop()
    server.args = [*before, *(str(word) for pair in slow.items() for word in pair)]
    server.start()
    try:
        wait_until(lambda: _is_loading(server), 30, "that the server loads its data")
        yield
    finally:
        server.args = before
        with server.client() as client:
            client.config_set("key-load-delay", 0)
            server.wait_ready()
            client.delete(*keys)


def _is_loading(server: RedisServer) -> bool:
    try:
        with server.client() as client:
            client.ping()
    except redis.BusyLoadingError:
        return True
    except (redis.ConnectionError, redis.TimeoutError):
        pass
    return False


@contextmanager
def maxclients(server: RedisServer) -> Iterator[None]:
    """All places for clients are taken."""
    client: Any
    with server.client(decode_responses=True) as client:
        before = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", 1)
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            yield
        finally:
            client.config_set("maxclients", before)


@contextmanager
def noauth(server: RedisServer) -> Iterator[None]:
    """The server was given a password."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">another")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            yield
        finally:
            client.execute_command("ACL", "SETUSER", "default", "nopass")


@contextmanager
def readonly(server: RedisServer) -> Iterator[None]:
    """The server is a replica."""
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def noreplicas(server: RedisServer) -> Iterator[None]:
    """Too few replicas follow the server."""
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            yield
        finally:
            client.config_set("min-replicas-to-write", 0)


#: By the reason in the table of `kombu_redisdelay.refusals`.
TROUBLES: Mapping[str, Trouble] = {
    each.__name__: each
    for each in (misconf, busy, noperm, oom, loading, maxclients, noauth, readonly, noreplicas)
}
