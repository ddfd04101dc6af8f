"""A primary, its replicas and their sentinels, each a real process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
import redis.sentinel

from tools.harness.assembly import Assembly
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy
from tools.harness.redis_server import HOST, RedisServer, free_port
from tools.harness.server_binary import ServerBinary
from tools.harness.tls import Tls

#: The name by which the sentinels know the primary.
MASTER = "mymaster"

#: What the servers want of their clients.
PASSWORD = "of-clients"

#: The user that replicas and sentinels log in as, everywhere.
WATCHER, _SECRET = "watcher", "of-servers"
_RULES = ("on", f">{_SECRET}", "~*", "&*", "+@all")

#: The address that proxied servers and sentinels connect from. Clients have another one.
_INSIDE = "127.0.0.2"

#: Milliseconds without an answer after which a sentinel takes a server for down.
DOWN_AFTER_MS = 1000

#: What Sentinel derives its patience from: when a failover that does not get on is tried again.
FAILOVER_TIMEOUT_MS = 4000

#: Seconds for everything that a test waits for here. Sentinel repeats some steps after ten seconds only.
PATIENCE = 60.0


class Sentinel(RedisServer):
    """The same binary as a sentinel. It keeps its configuration over restarts."""

    def __init__(
        self,
        monitored: RedisServer,
        binary: ServerBinary | None = None,
        *,
        requirepass: str | None = None,
        quorum: int = 2,
        tls: Tls | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        super().__init__(binary, requirepass=requirepass, tls=tls)
        lines = [
            *lines,
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.directory}",
            f"sentinel monitor {MASTER} {HOST} {monitored.announced_port} {quorum}",
            f"sentinel auth-user {MASTER} {WATCHER}",
            f"sentinel auth-pass {MASTER} {_SECRET}",
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {MASTER} {FAILOVER_TIMEOUT_MS}",
        ]
        if requirepass is not None:
            # Sentinels use it among each other, too.
            lines += [f"requirepass {requirepass}", f"sentinel sentinel-pass {requirepass}"]
        if tls is not None:
            lines += [f"{name} {value}" for name, value in tls.settings(self.tls_port).items()]
        self._configuration = self.directory / "sentinel.conf"
        self._configuration.write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        return [self.binary.path, str(self._configuration), "--sentinel"]

    def knows(self) -> tuple[int, int]:
        """How many replicas and how many other sentinels it knows and takes for alive."""
        with self.client(decode_responses=True) as client:
            others = [
                client.execute_command("SENTINEL SLAVES", MASTER),
                client.execute_command("SENTINEL SENTINELS", MASTER),
            ]
        replicas, sentinels = (
            sum(not one["is_sdown"] and not one["is_disconnected"] for one in some) for some in others
        )
        return replicas, sentinels

    def epoch(self) -> int:
        """The number of the failover that made the primary what it is."""
        with self.client(decode_responses=True) as client:
            found = client.execute_command("SENTINEL MASTER", MASTER)
        return int(found["config-epoch"])

    def primary_port(self) -> int:
        """The port of the server that it names."""
        with self.client() as client:
            _, port = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", MASTER)
        return int(port)


class SentinelSite(Assembly):
    """Servers and sentinels. Leave the ``with`` block, and all of them end.

    Attributes:
        servers: the first one is the primary at first.
        proxies: the way to each server for clients, sentinels and replicas, if it is *proxied*.

    Arguments:
        hasty: whether the sentinels ask and tell each other more often than they do by default, so that all
            is in order again sooner after a failover. Redis 6.2 has no such setting.
        tls: the certificate of all, if they speak TLS, among each other too.
        proxied: whether there is a proxy in front of each server, which takes Redis 7.0, and no TLS.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        hasty: bool = False,
        proxied: bool = False,
        args: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        super().__init__()
        common = [*args, "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        common += ["--user", WATCHER, *_RULES, "--masteruser", WATCHER, "--masterauth", _SECRET]
        # Without a password of their own, those who may not log in could do as much.
        self._tls = tls
        self.servers: list[RedisServer] = []
        self.proxies: dict[RedisServer, Proxy] = {}
        for _ in range(1 + replicas):
            self._add_server(binary, common, proxied=proxied)
        # Without being told, a sentinel announces the address that it connects from.
        lines = [f"bind-source-addr {_INSIDE}", f"sentinel announce-ip {HOST}"] if proxied else []
        first = self.servers[0]
        self.sentinels = [Sentinel(first, binary, tls=tls, lines=lines) for _ in range(sentinels)]
        self._hasty = hasty

    def _start(self) -> None:
        for proxy in self.proxies.values():
            self._exit.enter_context(proxy)
        primary, *replicas = self.servers
        # A sentinel asks for the replicas when it starts, and then every ten seconds.
        for servers in ((primary,), replicas, self.sentinels):
            for server in servers:
                self._exit.push(server)
                server.start()
            for server in servers:
                server.wait_ready()
            if servers is replicas:
                wait_until(lambda: all(map(follows, replicas)), PATIENCE, "the replicas do not follow")
        if self._hasty:
            self._hurry()
        self.wait_whole()

    # -- who is what ---------------------------------------------------------------------------------------

    def url(self, scheme: str = "redisdelay-sentinel", db: int = 0) -> str:
        """The broker URL. The first address has the password, and the last one the database."""
        first, *others = (f"{HOST}:{sentinel.announced_port}" for sentinel in self.sentinels)
        return f";{scheme}://".join([f"{scheme}://:{PASSWORD}@{first}", *others]) + f"/{db}"

    def client(self, **options: Any) -> redis.Redis:
        """A client of whichever server is the primary."""
        addresses = [(HOST, sentinel.port) for sentinel in self.sentinels]
        sentinels = redis.sentinel.Sentinel(addresses)
        if self._tls is not None:
            options = {"ssl": True, **self._tls.client_options, **options}
        client: redis.Redis = sentinels.master_for(MASTER, password=PASSWORD, **options)
        return client

    def primary(self) -> RedisServer:
        """The server that most sentinels name."""
        ports = [sentinel.primary_port() for sentinel in self.sentinels if sentinel.running]
        port = max(ports, key=ports.count)
        return next(server for server in self.servers if server.announced_port == port)

    def replicas(self) -> list[RedisServer]:
        """The others."""
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def epoch(self) -> int:
        """The number of the failover that made the primary what it is: the highest that a sentinel knows."""
        return max(sentinel.epoch() for sentinel in self.sentinels if sentinel.running)

    # -- what happens to them ------------------------------------------------------------------------------

    def fail_over(self) -> RedisServer:
        """Have the sentinels choose another primary while the one of now is in order. Returns the new one."""
        before, first = self.primary(), self.sentinels[0]

        def is_over() -> bool:
            if first.primary_port() == before.announced_port:
                # A sentinel that has not heard enough of the replicas refuses, or gives up later. One that is
                # at it refuses, too. Where a failover ends between the look and the request, the request
                # begins another one, back to *before*, and this asks again.
                with suppress(redis.ResponseError), first.client() as client:
                    client.execute_command("SENTINEL FAILOVER", MASTER)
                return False
            return self._is_over(before)

        wait_until(is_over, PATIENCE, "no failover")
        return self.primary()

    def wait_failover(self, before: RedisServer) -> RedisServer:
        """Wait until all sentinels name another server than *before*, and it works. Returns it."""
        wait_until(lambda: self._is_over(before), PATIENCE, "no failover")
        return self.primary()

    def _is_over(self, before: RedisServer) -> bool:
        ports = {sentinel.primary_port() for sentinel in self.sentinels}
        return len(ports) == 1 and before.announced_port not in ports and role(self.primary())[0] == b"master"

    def empty(self) -> None:
        """Delete everything, at the replicas, too."""
        self.wait_whole()
        with self.client() as client:
            client.flushall()
            replicas = len(self.servers) - 1
            wait_until(lambda: client.wait(replicas, 1000) == replicas, PATIENCE, "not all are empty")

    def wait_whole(self) -> None:
        """Wait until all servers follow the primary, and each sentinel knows all of them."""
        expected = len(self.servers) - 1, len(self.sentinels) - 1

        def is_whole() -> bool:
            port = self.primary().announced_port
            return all(follows(replica, port) for replica in self.replicas()) and all(
                sentinel.knows() == expected for sentinel in self.sentinels
            )

        wait_until(is_whole, PATIENCE, "the replicas or the sentinels have not found each other")

    def partition(self, server: RedisServer) -> None:
        """Have the network in front of a server swallow everything."""
        self.proxies[server].go_silent()

    def reunite(self, server: RedisServer) -> None:
        """End what `partition` has begun. Sentinels connect at once; clients have to find out."""
        self.proxies[server].pass_on()
        self.proxies[server].reset([_INSIDE])

    def _add_server(self, binary: ServerBinary | None, args: Sequence[str], *, proxied: bool) -> None:
        port, announced = free_port(), None
        args = [*args, "--replicaof", HOST, str(self.servers[0].announced_port)] if self.servers else args
        proxy = Proxy(port) if proxied else None
        if proxy:
            announced = proxy.port
            args = [*args, "--bind-source-addr", _INSIDE]
            args += ["--replica-announce-ip", HOST, "--replica-announce-port", str(announced)]
        server = RedisServer(
            binary, requirepass=PASSWORD, port=port, announced=announced, args=args, tls=self._tls
        )
        self.servers.append(server)
        if proxy:
            self.proxies[server] = proxy

    def _hurry(self) -> None:
        for sentinel in self.sentinels:
            with suppress(redis.ResponseError), sentinel.client() as client:
                client.execute_command("SENTINEL DEBUG", "INFO-PERIOD", 500, "PUBLISH-PERIOD", 500)


def role(server: RedisServer) -> list[Any]:
    """What a server says to ``ROLE``; an empty text in front if it does not answer."""
    with suppress(redis.RedisError), server.client(socket_timeout=1) as client:
        reply: list[Any] = client.execute_command("ROLE")
        return reply
    return [b"", b"", 0, b""]


def follows(replica: RedisServer, port: int | None = None) -> bool:
    """Whether a replica has all data of its primary, which has that *port* if one is given."""
    reply = role(replica)
    return reply[0] == b"slave" and reply[3] == b"connected" and port in (None, reply[2])


def pause(server: RedisServer) -> None:
    """Stop a server, which keeps its connections and its memory."""
    os.kill(server.pid, signal.SIGSTOP)


def go_on(server: RedisServer) -> None:
    """Let a server go on that was paused."""
    os.kill(server.pid, signal.SIGCONT)


def cut_off(server: RedisServer) -> None:
    """Keep replicas and sentinels from a server, as if the network between them was cut. Its other clients
    still reach it."""
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", WATCHER)


def reconnect(server: RedisServer) -> None:
    """End what :func:`cut_off` has begun."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", WATCHER, *_RULES)
