"""A private Redis Cluster, made of a server binary and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any
from urllib.parse import quote

from redis.cluster import ClusterNode, RedisCluster

from tools.harness.assembly import Assembly
from tools.harness.cluster_gate import Gate
from tools.harness.cluster_node import Node, free_port_with_bus
from tools.harness.cluster_view import SLOTS, View, slot_of, trouble, wait_while
from tools.harness.redis_server import HOST
from tools.harness.resharding import Move, evened
from tools.harness.server_binary import ServerBinary, servers
from tools.harness.tls import Tls


class Cluster(Assembly):
    """Primaries with about as many slots each, and *replicas* of each of them.

    What changes the cluster's nodes or slots returns when all nodes agree on it; what harms it returns at
    once. Nodes are started by the thread that calls, and end with it; see `ChildProcess`.

    Attributes:
        gates: the network around each node, if it is *proxied*.

    Args:
        primaries: at least 3 where one shall fail and be replaced: a majority of them decides.
        replicas: of each primary.
        node_timeout: in ms. A node is suspected after this much silence; a replica takes the place of its
            primary about a second later.
        appendonly: whether data outlives a node's process. Without it, a primary that is started again
            before it was replaced comes back empty, and so do its replicas.
        requirepass: the password of the default user, which the nodes use among themselves as well.
        full_coverage: whether a node serves nothing while any slot has no primary, as by default.
        tls: the certificate of all nodes, if they speak TLS, among each other too.
        proxied: whether clients and nodes reach each node through proxies, which takes Redis 7.0, and no TLS.
        args: further arguments for each server, such as ``"--user", "shop", "on", ">secret", "~*", "+@all"``.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        *,
        binary: ServerBinary | None = None,
        node_timeout: int = 2000,
        appendonly: bool = False,
        requirepass: str | None = None,
        full_coverage: bool = True,
        tls: Tls | None = None,
        proxied: bool = False,
        args: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.binary = binary or servers()[0]
        self.password = requirepass
        self.nodes: list[Node] = []
        self.gates: dict[Node, Gate] = {}
        self._shape = primaries, replicas
        self._appendonly = appendonly
        self._tls = tls
        self._proxied = proxied
        self._args = (
            *("--cluster-node-timeout", str(node_timeout)),
            *("--cluster-require-full-coverage", "yes" if full_coverage else "no"),
            *args,
        )

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]

    def url(
        self, scheme: str = "redisdelay-cluster", *, username: str = "", password: str | None = None
    ) -> str:
        """The URL of all nodes, for the default user or for another one."""
        password = self.password if password is None else password
        login = "" if password is None else f"{username}:{quote(password, safe='')}@"
        return ";".join(f"{scheme}://{login}{address}" for address in self.addresses)

    def client(self, **options: Any) -> RedisCluster:
        # Without TLS, as nodes can always be asked.
        ports = [node.port if self._tls else node.announced_port for node in self.nodes if node.running]
        nodes = [ClusterNode(HOST, port) for port in ports]
        return RedisCluster(startup_nodes=nodes, **{"password": self.password, **options})

    @property
    def live(self) -> list[Node]:
        """The nodes that run, and are not paused or cut off."""
        return [node for node in self.nodes if node.live]

    @property
    def primaries(self) -> list[Node]:
        """The nodes that are up and take themselves for primaries."""
        return [node for node, known in View(self.live).selves.items() if known.primary is None]

    def replicas_of(self, primary: Node) -> list[Node]:
        """The nodes that are up and take themselves for its replicas."""
        return [node for node, known in View(self.live).selves.items() if known.primary == primary.id]

    def node_of(self, key: str | bytes | int) -> Node:
        """The primary that serves a key, or a slot if it is a number.

        Raises:
            LookupError: no node that is up serves it.
        """
        slot = key if isinstance(key, int) else slot_of(key)
        claims = {node: known.epoch for node, known in View(self.live).selves.items() if known.serves(slot)}
        if not claims:
            raise LookupError(f"slot {slot} is served by no node that is up")
        return max(claims, key=lambda node: claims[node])

    def everywhere(self, *command: Any) -> None:
        """Send a command to every node that is up, such as ``ACL SETUSER``."""
        for node in self.live:
            node.call(*command)

    def flush(self, *, scripts: bool = False) -> None:
        """Remove all data, and all *scripts* from the caches if asked to."""
        for node in self.primaries:
            node.call("FLUSHALL")
        if scripts:
            self.everywhere("SCRIPT", "FLUSH")

    def errors(self) -> Counter[str]:
        """How often each error was replied since the nodes' start, by its first word, such as CROSSSLOT."""
        counts: Counter[str] = Counter()
        for node in self.live:
            for name, stats in node.info("errorstats").items():
                # Old releases of redis-py do not take "count=3" apart.
                count = stats["count"] if isinstance(stats, dict) else stats.partition("=")[2]
                counts[name.removeprefix("errorstat_")] += int(count)
        return counts

    def kill(self, node: Node) -> None:
        """SIGKILL. Nobody waits for a failover here; see `wait_for_failover`."""
        node.kill()

    def pause(self, node: Node) -> None:
        """SIGSTOP. It comes back as a stale primary if it was replaced meanwhile."""
        node.pause()

    def resume(self, node: Node) -> None:
        node.resume()

    def cut_off(self, node: Node, *, clients: bool = False) -> None:
        """Have the network between a node and the others swallow everything, and that between it and clients,
        too, if asked to."""
        others = [gate for other, gate in self.gates.items() if other is not node]
        self.gates[node].close([gate.source for gate in others], clients=clients)
        for gate in others:
            gate.bus.go_silent([self.gates[node].source])
        node.apart = True

    def reunite(self, node: Node) -> None:
        """End what `cut_off` has begun. It comes back as a stale primary if it was replaced meanwhile."""
        others = [gate for other, gate in self.gates.items() if other is not node]
        self.gates[node].open([gate.source for gate in others])
        for gate in others:
            gate.bus.pass_on()
            gate.bus.reset([self.gates[node].source])
        node.apart = False

    def start(self, node: Node) -> None:
        """Start a node that has ended, with its port and what it has kept, and wait until it answers."""
        node.start()
        node.wait_ready()

    def stop_all(self) -> None:
        """Stop all nodes in good order."""
        for node in self.nodes:
            if node.running:
                node.resume()
                node.stop()

    def start_all(self, timeout: float = 30) -> None:
        """Start all nodes that do not run, and wait until the cluster works."""
        down = [node for node in self.nodes if not node.running]
        for node in down:
            node.start()
        for node in down:
            node.wait_ready()
        self.wait_until_ok(timeout)

    def wait_until_ok(self, timeout: float = 30) -> None:
        """Wait until the nodes that are up serve all slots, agree on who does, and replicas have a primary.

        Raises:
            TimeoutError: it is not so after *timeout* seconds. The error says what is missing.
        """
        wait_while(lambda: trouble(self.live), timeout)

    def wait_for_failover(self, of: Node, timeout: float = 30, *, agreed: bool = True) -> None:
        """Wait until other nodes serve the slots of *of*. It takes the node_timeout and 1 to 2 s more.

        Args:
            agreed: whether to wait as well until all nodes agree who serves which slot. While a slot of *of*
                is being moved its target never would; see `harness.resharding`.

        Raises:
            TimeoutError: it is not so after *timeout* seconds. The error says what is missing.
        """

        def missing() -> str | None:
            view = View(self.live)
            return view.unserved(without=of) or view.unheard() or (trouble(self.live) if agreed else None)

        wait_while(missing, timeout)

    @contextmanager
    def moving(self, slot: int, to: Node) -> Iterator[Move]:
        """Move a slot in the block, from its primary *to* another one. At the end the rest is moved."""
        source = self.node_of(slot)
        move = Move([slot], source, to, [node for node in self.primaries if node not in (source, to)])
        move.begin()
        try:
            yield move
        finally:
            move.finish()
            self.wait_until_ok()

    def add_node(self, replica_of: Node | None = None) -> Node:
        """Start a new primary without slots (see `balance`), or a new replica."""
        known = self.live
        node = self._new_node()
        node.wait_ready()
        node.introduce()
        for other in known:
            self._meet(node, other)
        if replica_of is not None:
            wait_while(lambda: View(self.live).strangers(), 30)
            node.call("CLUSTER", "REPLICATE", replica_of.id)
        self.wait_until_ok()
        return node

    def balance(self) -> int:
        """Move slots with their keys until all primaries have about as many. Returns how many were moved."""
        selves = View(self.live).selves.items()
        moved = 0
        for slots, source, target in evened({n: itself.slots for n, itself in selves if not itself.primary}):
            # So many that it takes long to tell the other primaries. They hear of it anyway.
            move = Move(slots, source, target, others=[])
            move.begin()
            move.finish()
            moved += len(slots)
        self.wait_until_ok()
        return moved

    def _start(self) -> None:
        count, replicas = self._shape
        nodes = [self._new_node() for _ in range(count * (1 + replicas))]
        for epoch, node in enumerate(nodes, 1):
            node.wait_ready()
            node.introduce()
            # Otherwise all begin with the same one, and settle that among themselves later.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        primaries = nodes[:count]
        for number, node in enumerate(primaries):
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            node.call("CLUSTER", "ADDSLOTS", *range(first, end))
        # Each meets each: to hear of one another by gossip takes longer.
        for node, other in combinations(nodes, 2):
            self._meet(node, other)
        if replicas:
            wait_while(lambda: View(self.live).strangers(), 30)
        for number, node in enumerate(nodes[count:]):
            node.call("CLUSTER", "REPLICATE", primaries[number % count].id)
        self.wait_until_ok()

    def _meet(self, node: Node, other: Node) -> None:
        bus = (self.gates[other].bus.port,) if self._proxied else ()
        node.call("CLUSTER", "MEET", HOST, other.announced_port, *bus)

    def _new_node(self) -> Node:
        """A node that was started, and belongs to this cluster until the end."""
        ports = {node.port for node in self.nodes}
        while (port := free_port_with_bus()) in ports:
            pass
        gate = self._exit.enter_context(Gate(port, len(self.nodes) + 2)) if self._proxied else None
        node = Node(
            self.binary,
            port=port,
            announced=gate.clients.port if gate else None,
            appendonly=self._appendonly,
            requirepass=self.password,
            args=[*self._args, *(gate.arguments if gate else ())],
            tls=self._tls,
        )
        self._exit.push(node)
        self.nodes.append(node)
        if gate:
            self.gates[node] = gate
        node.start()
        return node
