"""Which server of a cluster has which slot. A part of redis-py's cluster client finds that out. The whole
client would first ask for all commands of the server, which takes ten times as long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import sample
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from redis import ConnectionPool
from redis.cluster import ClusterNode, NodesManager, cleanup_kwargs
from redis.connection import SSLConnection
from redis.exceptions import (
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
)

from kombu_redisdelay.broker.server.probe import answering
from kombu_redisdelay.broker.server.wire import Unreachable, WrongServer
from kombu_redisdelay.refusals import refusal_of

try:
    # ``cluster_errors``: up to redis-py 5, only this parser knows them.
    from redis.cluster import ClusterParser  # type: ignore[attr-defined]
except ImportError:
    PARSER: dict[str, Any] = {}
else:
    PARSER = {"parser_class": ClusterParser}

#: What redis-py says if the server is not one of a cluster.
_NO_CLUSTER = "Cluster mode is not enabled"

#: Seconds that the servers have to answer, unless ``socket_connect_timeout`` is set.
ANSWER_TIMEOUT = 1.0

#: Seconds for which it is known which servers have answered.
ANSWERED_FOR = 0.5

AnswerT = TypeVar("AnswerT")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


def _check_addresses(slots: Any, **options: object) -> Any:
    """A reply to ``CLUSTER SLOTS``, if it tells where the primaries are.

    Raises:
        WrongServer: the cluster is set not to tell it.
        Unreachable: it does not know the name of a server, or not yet.
    """
    for _, _, (host, *_), *_ in slots:
        if host is None:
            raise WrongServer(
                "the cluster does not tell the addresses of its servers (cluster-preferred-endpoint-type "
                "unknown-endpoint): CONFIG SET cluster-preferred-endpoint-type ip, on each of them"
            )
        if host in (b"?", "?"):
            raise Unreachable(
                "the cluster does not know the name of a server (cluster-preferred-endpoint-type hostname): "
                "set its cluster-announce-hostname"
            )
    return slots


class _Manager(NodesManager):
    def create_redis_node(self, *args: Any, **kwargs: Any) -> Any:
        node = super().create_redis_node(*args, **kwargs)
        # redis-py would take what is no address for one.
        node.set_response_callback("CLUSTER SLOTS", _check_addresses)
        return node


class Nodes:
    """The servers of a cluster. Any number of threads may share it.

    Arguments:
        addresses: of some of the servers. One that answers is enough.
        like: a pool that connects as the connections to all of them do.
    """

    def __init__(self, addresses: Sequence[Address], like: ConnectionPool) -> None:
        self._addresses = addresses
        self._like = like
        self._lock = RLock()
        self._manager: NodesManager | None = None
        #: The servers at the addresses that we were given, by the names that redis-py makes.
        self._ours: dict[str, ClusterNode] = {}
        #: What a server has told, and redis-py does not know yet.
        self._moved: dict[int, Address] = {}
        #: The servers that answered last, and until when that counts; seconds of the monotonic clock.
        self._there: list[Address] = []
        self._there_until = float("-inf")

    @property
    def are_known(self) -> bool:
        """Whether some server has told of the others."""
        return self._manager is not None

    def address_of(self, slot: int) -> Address:
        """The primary that serves *slot*.

        Raises:
            Unreachable: no server has it, or no server can be reached.
        """
        if slot in self._moved:
            return self._moved[slot]
        try:
            node = self._known().get_node_from_slot(slot)
        except SlotNotCoveredError as exc:
            raise Unreachable(str(exc)) from exc
        return _address(node)

    def primaries(self) -> list[Address]:
        """The servers that have slots. Those come first that have answered last."""
        nodes = self._known().get_nodes_by_server_type("primary")
        return sorted(map(_address, nodes), key=lambda address: address not in self._there)

    def note_move(self, slot: int, to: Address) -> None:
        """Note that a server has said that *to* serves *slot*. It knows better than the others."""
        if self.address_of(slot) != to:
            self._moved[slot] = to

    def find_out(self) -> None:
        """Ask again which server has which slot.

        Raises:
            Unreachable: no server can be reached.
        """
        with self._lock:
            self._moved = {}
            manager = self._known()
            # Not the same one again: a server that is cut off from the others still answers, as if it had the
            # slots that were its own. Ours, too, because it may not have heard of any other that is left.
            nodes = {**self._ours, **manager.startup_nodes}

            def ask(some: Mapping[str, ClusterNode]) -> None:
                manager.startup_nodes = _shuffled(some)
                manager.initialize()

            try:
                self._answer_of(nodes, ask)
            except RedisClusterException as exc:
                # redis-py goes on with the servers that it knows of. Begin again with ours.
                self.close()
                raise Unreachable(str(exc)) from exc

    def copy(self) -> Nodes:
        """The same servers, asked over connections of its own."""
        known = [*self._addresses, *self.primaries()]
        return Nodes(list(dict.fromkeys(known)), self._like)

    def close(self) -> None:
        """Close the connections. They are opened again when they are needed."""
        with self._lock:
            manager, self._manager = self._manager, None
            ours, self._ours = self._ours, {}
        if manager is not None:
            manager.close()
        for node in ours.values():
            if node.redis_connection is not None:
                node.redis_connection.close()

    def _known(self) -> NodesManager:
        """What redis-py knows of the servers. It asks them first, if it does not know any.

        Raises:
            Unreachable: no server can be reached.
            WrongServer: a server in the URL is not one of a cluster.
        """
        with self._lock:
            if self._manager is None:
                self._manager = self._connect()
            return self._manager

    def _answer_of(
        self, nodes: Mapping[str, ClusterNode], ask: Callable[[Mapping[str, ClusterNode]], AnswerT]
    ) -> AnswerT:
        """What *ask* returns, which asks some of *nodes*: those that answer now. redis-py would wait for each
        one that is silent.

        Raises:
            RedisClusterException: none of them answers, or what redis-py says.
        """
        there = set(self._answering([_address(node) for node in nodes.values()]))
        if not there:
            names = ", ".join(nodes)
            raise RedisClusterException(f"Redis Cluster cannot be connected: no answer from {names}")
        some = {name: node for name, node in nodes.items() if _address(node) in there}
        if len(some) < len(nodes):
            # They may be of no use: one that is loading, or of no cluster.
            with suppress(RedisClusterException):
                return ask(some)
        return ask(nodes)

    def _answering(self, addresses: Sequence[Address]) -> Sequence[Address]:
        if monotonic() > self._there_until:
            within = self._like.connection_kwargs.get("socket_connect_timeout") or ANSWER_TIMEOUT
            self._there = answering(addresses, within, over_tls=self._have_tls)
            self._there_until = monotonic() + ANSWERED_FOR
        return self._there

    @property
    def _have_tls(self) -> bool:
        return issubclass(self._like.connection_class, SSLConnection)

    def _connect(self) -> NodesManager:
        options: dict[str, Any] = {
            name: value
            for name, value in self._like.connection_kwargs.items()
            if name not in ("db", "retry_on_timeout")
        }
        if self._have_tls:
            options["ssl"] = True
        nodes = [ClusterNode(*address) for address in self._addresses]
        self._ours = {node.name: node for node in nodes}

        def ask(some: Mapping[str, ClusterNode]) -> NodesManager:
            return _Manager(startup_nodes=list(_shuffled(some).values()), **cleanup_kwargs(**options))

        try:
            return self._answer_of(self._ours, ask)
        except (RedisClusterException, ResponseError) as exc:
            # redis-py does not say which one.
            which = ", or ".join(f"{host}:{port}" for host, port in self._addresses)
            answer = _answer(exc)
            refusal = refusal_of(answer) if answer is not None else None
            if isinstance(answer, (WrongServer, Unreachable)):
                raise answer from None
            if isinstance(answer, NoPermissionError):
                raise NoPermissionError(str(answer)) from exc
            if answer is not None and refusal is not None and refusal.is_for_a_while:
                raise Unreachable(f"{which} refuses: {answer}", refusal) from exc
            if isinstance(answer, ResponseError) and refusal is None and "cluster" not in str(answer).lower():
                raise ResponseError(str(answer)) from exc
            if _NO_CLUSTER in str(exc):
                raise WrongServer(
                    f"{which} is not a server of a cluster: the URL of a single server begins with "
                    "redisdelay://, and that of a sentinel with redisdelay-sentinel://"
                ) from exc
            raise Unreachable(str(exc)) from exc


def _address(node: ClusterNode) -> Address:
    return Address(node.host, int(node.port))


def _shuffled(nodes: Mapping[str, ClusterNode]) -> dict[str, ClusterNode]:
    """``first_server_is_asked``: from 8.0 on, redis-py does this itself."""
    return dict(sample(list(nodes.items()), len(nodes)))


def _answer(error: BaseException | None) -> RedisError | None:
    """The answer of a server that has led to *error*. redis-py takes each refusal for a server without a
    cluster."""
    while error is not None and not isinstance(error, RedisError):
        error = error.__cause__ or error.__context__
    return error
