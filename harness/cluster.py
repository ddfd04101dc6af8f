"""A private Redis Cluster, made of a server binary and nothing else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot

from harness.cluster_node import Known, Node, free_port_with_bus
from harness.redis_server import HOST
from harness.resharding import Move
from harness.server_binary import ServerBinary, servers

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

SLOTS = 16384


class Cluster:
    """Primaries with about as many slots each, and *replicas* of each of them.

    Every method that changes the cluster returns when all nodes that are up agree on it. Nodes are started
    by the thread that calls, and end with it; see `ChildProcess`.

    Args:
        primaries: at least 3 where one shall fail and be replaced: a majority of them decides.
        replicas: of each primary.
        node_timeout: in ms. A node is suspected after this much silence; a replica takes the place of its
            primary about a second later.
        appendonly: whether data outlives a node's process. Without it, a primary that is started again
            before it was replaced comes back empty, and so do its replicas.
        requirepass: the password of the default user, which the nodes use among themselves as well.
        full_coverage: whether a node serves nothing while any slot has no primary, as by default.
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
        args: Sequence[str] = (),
    ) -> None:
        self.binary = binary or servers()[0]
        self.password = requirepass
        self.nodes: list[Node] = []
        self._shape = primaries, replicas
        self._appendonly = appendonly
        self._args = (
            *("--cluster-node-timeout", str(node_timeout)),
            *("--cluster-require-full-coverage", "yes" if full_coverage else "no"),
            *args,
        )
        self._exit = ExitStack()

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
        nodes = [ClusterNode(HOST, node.port) for node in self.nodes if node.running]
        return RedisCluster(startup_nodes=nodes, **{"password": self.password, **options})

    @property
    def live(self) -> list[Node]:
        """The nodes that run and are not paused."""
        return [node for node in self.nodes if node.live]

    @property
    def primaries(self) -> list[Node]:
        """The nodes that are up and take themselves for primaries."""
        return [node for node, known in self._selves().items() if known.primary is None]

    def replicas_of(self, primary: Node) -> list[Node]:
        """The nodes that are up and take themselves for its replicas."""
        return [node for node, known in self._selves().items() if known.primary == primary.id]

    def node_of(self, key: str | bytes | int) -> Node:
        """The primary that serves a key, or a slot if it is a number.

        Raises:
            LookupError: no node that is up serves it.
        """
        slot = key if isinstance(key, int) else slot_of(key)
        claims = {node: known.epoch for node, known in self._selves().items() if known.serves(slot)}
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
        """How often each error was replied, by its first word, such as CROSSSLOT; since each node's start.

        Errors inside of scripts count as well.
        """
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
        _wait_while(self._trouble, timeout)

    def wait_for_failover(self, of: Node, timeout: float = 30, *, agreed: bool = True) -> None:
        """Wait until other nodes serve the slots of *of*. It takes the node_timeout and 1 to 2 s more.

        Args:
            agreed: whether to wait as well until all nodes agree on it. While a slot of *of* is on its way,
                its target would never agree; see `Move`.

        Raises:
            TimeoutError: it is not so after *timeout* seconds. The error says what is missing.
        """

        def trouble() -> str | None:
            claims = [known for node, known in self._selves().items() if node is not of]
            return _unserved(claims) or (self._trouble() if agreed else None)

        _wait_while(trouble, timeout)

    @contextmanager
    def moving(self, slot: int, to: Node) -> Iterator[Move]:
        """Move a slot in the block, from its primary *to* another one. At the end the rest is moved."""
        move = self._move([slot], self.node_of(slot), to)
        move.begin()
        try:
            yield move
        finally:
            move.finish()
            self.wait_until_ok()

    def add_node(self, replica_of: Node | None = None) -> Node:
        """A new primary without slots (see `balance`), or a new replica."""
        known = self.live
        node = self._new_node()
        node.wait_ready()
        node.introduce()
        for other in known:
            node.call("CLUSTER", "MEET", HOST, other.port)
        if replica_of is not None:
            _wait_while(self._strangers, 30)
            node.call("CLUSTER", "REPLICATE", replica_of.id)
        self.wait_until_ok()
        return node

    def balance(self) -> int:
        """Move slots with their keys until all primaries have about as many. Returns how many were moved."""
        slots = {node: known.slots for node, known in self._selves().items() if known.primary is None}
        least, most = SLOTS // len(slots), -(-SLOTS // len(slots))
        surplus = {node: owned[most:] for node, owned in slots.items()}
        moved = 0
        for target, owned in slots.items():
            lack = least - len(owned)
            for source, left in surplus.items():
                while lack > 0 and left:
                    batch = left[: min(lack, _SLOTS_AT_ONCE)]
                    del left[: len(batch)]
                    move = self._move(batch, source, target)
                    move.begin()
                    move.finish()
                    lack -= len(batch)
                    moved += len(batch)
        self.wait_until_ok()
        return moved

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def _build(self) -> None:
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
            node.call("CLUSTER", "MEET", HOST, other.port)
        if replicas:
            _wait_while(self._strangers, 30)
        for number, node in enumerate(nodes[count:]):
            node.call("CLUSTER", "REPLICATE", primaries[number % count].id)
        self.wait_until_ok()

    def _new_node(self) -> Node:
        """A node that was started, and belongs to this cluster until the end."""
        ports = {node.port for node in self.nodes}
        while (port := free_port_with_bus()) in ports:
            pass
        node = Node(
            self.binary, port=port, appendonly=self._appendonly, requirepass=self.password, args=self._args
        )
        self._exit.push(node)
        self.nodes.append(node)
        node.start()
        return node

    def _move(self, slots: Sequence[int], source: Node, target: Node) -> Move:
        others = [node for node in self.primaries if node not in (source, target)]
        return Move(slots, source, target, others)

    def _selves(self) -> dict[Node, Known]:
        """What each node that is up says of itself."""
        return {node: node.known()[node.id] for node in self.live}

    def _strangers(self) -> str | None:
        """Who has no connection to whom, in words; None if all have."""
        for viewer in self.live:
            known = viewer.known()
            for node in self.live:
                if node.id not in known:
                    return f"{viewer} does not know {node}"
                if not known[node.id].sound:
                    return f"{viewer} cannot reach {node}, which is {','.join(known[node.id].flags)}"
        return None

    def _trouble(self) -> str | None:
        """What keeps the cluster from working, in words; None if nothing does."""
        if trouble := self._strangers():
            return trouble
        live = self.live
        known = live[0].known()
        if trouble := _unserved(known[node.id] for node in live):
            return trouble
        for node in live:
            theirs = node.known()
            for one in live:
                if theirs[one.id].role != known[one.id].role:
                    return f"{live[0]} and {node} do not agree what {one} does"
            if (state := node.state()) != "ok":
                return f"for {node} the cluster's state is {state}"
            if known[node.id].primary and node.info("replication")["master_link_status"] != "up":
                return f"{node} has no connection to its primary"
        return None


#: So many are moved together: their keys are split between two nodes meanwhile.
_SLOTS_AT_ONCE = 256


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _unserved(claims: Iterable[Known]) -> str | None:
    """How many slots nobody claims, in words; None if there is none."""
    left = SLOTS - len({slot for known in claims for slot in known.slots})
    return f"{left} slots are served by no node that is up" if left else None


def _wait_while(trouble: Callable[[], str | None], timeout: float) -> None:
    """Return as soon as there is no *trouble*.

    Raises:
        TimeoutError: there is after *timeout* seconds. The error says which.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = trouble()
        except redis.RedisError as error:
            found = str(error)
        if found is None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:g} s: {found}")
        time.sleep(0.02)
