"""Servers at hosts of their own, with sentinels or as a cluster, whose network can be cut."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from tests.faults import cut_producer
from tools.harness.network import AtHost, Network
from tools.harness.process import wait_until
from tools.harness.server_binary import servers as binaries

#: After which a server that is silent is taken for down.
DOWN_AFTER_MS = 1000

SLOTS = 16384
QUEUES = ("q0", "q1", "q2", "q3")


class Site:
    """Servers, and a producer at each of the hosts ``a`` and ``b``.

    Attributes:
        primaries: how many there are.
        minority: a primary, the client ``a``, and who is with them when they are cut off from the others.
        url, options: of the broker.
    """

    minority: Sequence[str] = ()
    primaries = 1
    url: str
    options: dict[str, Any]

    def __init__(self, stack: ExitStack, hosts: Sequence[str]) -> None:
        self._stack = stack
        self.network = stack.enter_context(Network([*hosts, "a", "b"]))
        self.servers: dict[str, Redis] = {}

    def start(self, host: str, *args: str) -> None:
        """Start a server; it also listens at a Unix socket, which no cut reaches."""

        def command(process: AtHost) -> list[str]:
            where = process.directory
            common = ["--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", str(where)]
            return [binaries()[0].path, *args, *common, "--unixsocket", str(where / "sock")]

        def is_ready(process: AtHost) -> bool:
            self.servers[host] = Redis(unix_socket_path=str(process.directory / "sock"))
            try:
                return bool(self.servers[host].ping())
            except RedisError:
                return False

        process = self._stack.enter_context(AtHost(self.network, host, command, is_ready))
        process.wait_ready()

    def roles(self) -> dict[str, Any]:
        return {host: client.info("replication") for host, client in self.servers.items() if host[0] == "n"}

    def has_failed_over(self) -> bool:
        """Whether there is one more primary than that which is cut off and those that there were."""
        return len([role for role in self.roles().values() if role["role"] == "master"]) > self.primaries

    def produce(self, host: str, path: Path) -> None:
        """Publish at *host* from now on. Notes are in the file *path*."""
        arguments = (self.url, json.dumps(self.options), str(path), *QUEUES)
        command = [sys.executable, cut_producer.__file__, *arguments]
        environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = AtHost(self.network, host, lambda _: command, lambda _: path.exists(), environment)
        self._stack.enter_context(process).wait_ready()

    def there(self) -> Counter[str]:
        """How often each message is in a queue of a primary."""
        found: Counter[str] = Counter()
        for host, role in self.roles().items():
            if role["role"] == "master":
                client = self.servers[host]
                for key in client.scan_iter(_type="list"):
                    if b"wake" not in key:
                        texts = client.lrange(key, 0, -1)
                        found.update(json.loads(text)["headers"]["id"] for text in texts)
        return found


class WithSentinels(Site):
    minority = ("n1", "s1", "a")

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        names, watchers = ("n1", "n2", "n3"), ("s1", "s2", "s3")
        super().__init__(stack, [*names, *watchers])
        primary = self.network.addresses["n1"]
        for name in names:
            follow = () if name == "n1" else ("--replicaof", primary, "6379")
            self.start(name, "--port", "6379", "--repl-diskless-sync-delay", "0", *follow)
        wait_until(lambda: self.roles()["n1"]["connected_slaves"] == 2, 30, "the replicas")
        for name in watchers:
            config = directory / f"{name}.conf"
            config.write_text(
                f"port 26379\nsentinel monitor mymaster {primary} 6379 2\n"
                f"sentinel down-after-milliseconds mymaster {DOWN_AFTER_MS}\n"
            )
            self.start(name, str(config), "--sentinel")
        wait_until(self._is_whole, 60, "the sentinels do not know each other")
        self.url = ";".join(f"redisdelay-sentinel://{self.network.addresses[s]}:26379" for s in watchers)
        self.options = {"master_name": "mymaster", "confirm_replicas": 1}

    def _is_whole(self) -> bool:
        states: list[Any] = [self.servers[name].sentinel_masters() for name in ("s1", "s2", "s3")]
        told = [each["mymaster"] for each in states]
        return all((each["num-other-sentinels"], each["num-slaves"]) == (2, 2) for each in told)


class OfACluster(Site):
    """Three primaries, and a replica of the first one."""

    minority = ("n1", "a")
    primaries = 3

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        names = ("n1", "n2", "n3", "n4")
        super().__init__(stack, names)
        for name in names:
            timeout = ("--cluster-node-timeout", str(DOWN_AFTER_MS))
            self.start(name, "--port", "6379", "--cluster-enabled", "yes", *timeout)
        first = self.servers["n1"]
        for number, name in enumerate(names):
            client = self.servers[name]
            if number < 3:
                client.execute_command("CLUSTER ADDSLOTS", *range(number, SLOTS, 3))
            client.execute_command("CLUSTER MEET", self.network.addresses["n1"], 6379)
        wait_until(lambda: self._known() == {4}, 60, "the servers do not know each other")
        self.servers["n4"].execute_command("CLUSTER REPLICATE", first.execute_command("CLUSTER MYID"))
        wait_until(lambda: self.roles()["n1"]["connected_slaves"] == 1, 60, "the replica")
        wait_until(lambda: self._states() == {"ok"}, 60, "the cluster is not ready")
        self.url = ";".join(f"redisdelay-cluster://{self.network.addresses[name]}:6379" for name in names)
        self.options = {}

    def _known(self) -> set[int]:
        return {len(client.execute_command("CLUSTER NODES")) for client in self.servers.values()}

    def _states(self) -> set[str]:
        return {client.execute_command("CLUSTER INFO")["cluster_state"] for client in self.servers.values()}
