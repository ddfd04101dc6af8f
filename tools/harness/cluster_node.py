"""One server of a Redis Cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from tools.harness.cluster_gate import TO_BUS
from tools.harness.cluster_view import Known, parsed
from tools.harness.ports import OF_NODES, own
from tools.harness.redis_server import HOST, RedisServer, is_free
from tools.harness.server_binary import ServerBinary
from tools.harness.tls import Tls


class Node(RedisServer):
    """A server in cluster mode, not yet in any cluster.

    Attributes:
        id: its name in the cluster, 40 hexadecimal digits, kept over restarts; "" before `introduce`.
        paused: whether the process is stopped by `pause`.
        apart: whether the other nodes cannot reach it; see `harness.cluster.Cluster.cut_off`.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        port: int | None = None,
        appendonly: bool = False,
        requirepass: str | None = None,
        announced: int | None = None,
        args: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        own = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            # Without it a node learns its address only when another one meets it.
            "cluster-announce-ip": HOST,
            # By default a primary waits 5 seconds for more replicas before it gives data to the first one.
            "repl-diskless-sync-delay": "0",
        }
        if requirepass is not None:
            own["masterauth"] = requirepass
        if tls is not None:
            own["tls-cluster"] = "yes"
        flags = [word for name, value in own.items() for word in (f"--{name}", value)]
        super().__init__(
            binary,
            appendonly=appendonly,
            requirepass=requirepass,
            port=port or free_port_with_bus(),
            announced=announced,
            args=[*flags, *args],
            tls=tls,
        )
        self.tls_port = free_port_with_bus()
        self.id = ""
        self.paused = False
        self.apart = False
        self._client = self.client(socket_timeout=10, retry=Retry(NoBackoff(), 1))

    @property
    def address(self) -> str:
        return f"{HOST}:{self.announced_port}"

    @property
    def live(self) -> bool:
        """Whether it can answer, and agree with the other nodes."""
        return self.running and not self.paused and not self.apart

    def introduce(self) -> None:
        """Learn the node's id."""
        self.id = self.call("CLUSTER", "MYID").decode()

    def call(self, *command: Any) -> Any:
        """The reply to a command, in bytes if it is a string."""
        return self._client.execute_command(*command)

    def call_all(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        """The replies to commands that are sent together. The first error is raised after the last reply."""
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute()

    def info(self, section: str) -> dict[str, Any]:
        info: dict[str, Any] = self.call("INFO", section)
        return info

    def state(self) -> str:
        """ "ok" if it takes the cluster for able to work, "fail" if not."""
        first, *_ = self.call("CLUSTER", "INFO").decode().splitlines()
        return str(first.partition(":")[2])

    def known(self) -> dict[str, Known]:
        """All nodes that it knows, itself among them, by their id."""
        # In two words: the reply to "CLUSTER NODES" is taken apart by each redis-py in a way of its own.
        return parsed(self.call("CLUSTER", "NODES").decode())

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing comes through them."""
        os.kill(self.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Let it go on, if it is paused."""
        if not self.paused:
            return
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def kill(self, *, whole_group: bool = True) -> None:
        super().kill(whole_group=whole_group)
        self.paused = False

    def __str__(self) -> str:
        return self.address


_ports = own(OF_NODES)


def free_port_with_bus() -> int:
    """A port that is free, and so is that of its bus."""
    return next(port for port in _ports if is_free(port) and is_free(port + TO_BUS))
