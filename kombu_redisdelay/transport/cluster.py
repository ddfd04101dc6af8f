"""``redisdelay-cluster://``: the channel and the transport for a cluster, and kombu's client there."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, cast

from redis import ConnectionPool, Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from kombu_redisdelay.broker.keys import bindings
from kombu_redisdelay.broker.server.cluster import ClusterServer
from kombu_redisdelay.broker.server.nodes import PARSER, Address, Nodes
from kombu_redisdelay.broker.server.scripts import digest
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import checked
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.connecting import PrefixedClient
from kombu_redisdelay.transport.transports import Transport
from kombu_redisdelay.transport.urls import read_together

logger = logging.getLogger(__name__)


class ClusterChannel(Channel):
    """Publishes to, and consumes from, the queues of a cluster.

    kombu gets complete names of keys from here, with the ``global_keyprefix``.
    """

    connection: ClusterTransport
    connect_limit = 1.0
    keyprefix_queue = bindings(in_slots=True) + ".%s"
    keyprefix_binding_deadlines = bindings(in_slots=True) + "_deadlines"
    keyprefix_binding_permanent = bindings(in_slots=True) + "_permanent.%s"
    _nodes: Nodes | None = None
    #: Since when the server at which the channel listens has said nothing, although it was sent a PING, by
    #: the monotonic clock; and redis-py's time of the next PING, which moves with all that is read.
    _unheard: tuple[float, float] | None = None
    #: Whether that was too long ago at the check before.
    _was_overdue = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._prefix = ""
        super().__init__(*args, **kwargs)
        self._routes.are_checked = False
        self._prefix, self.global_keyprefix = self.global_keyprefix, ""
        check_prefix(self._prefix)
        for name in ("keyprefix_queue", "keyprefix_binding_deadlines", "keyprefix_binding_permanent"):
            setattr(self, name, self._prefix.replace("%", "%%") + getattr(self, name))

    @property
    def prefix(self) -> str:
        return self._prefix

    # -- connections -----------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> Nodes:
        """The servers of the cluster."""
        self._nodes = Nodes(self.connection.addresses, self.pool)
        return self._nodes

    def _new_server(self) -> Server:
        return ClusterServer(self.nodes, self.pool, self.max_connections)

    @property
    def _cluster(self) -> ClusterServer:
        return cast(ClusterServer, self.store.server)

    def _create_client(self, asynchronous: bool = False) -> Any:
        if not asynchronous:
            return ClusterClient(self._cluster, self.pool)
        # For PUB/SUB. What is published at one server comes to all of them.
        pool = self._pool_of_any()
        if self._prefix:
            return PrefixedClient(connection_pool=pool, global_keyprefix=self._prefix)
        return Redis(connection_pool=pool)

    def conn_or_acquire(self, client: Any = None) -> Any:
        # kombu also passes its client for PUB/SUB here, which is for one of the servers.
        return super().conn_or_acquire()

    def _pool_of_any(self) -> ConnectionPool:
        """Connects to a server that answers.

        Raises:
            ConnectionError: none of them does, or those that do refuse.
        """
        addresses = self.nodes.primaries()
        random.shuffle(addresses)
        error: Exception = RedisConnectionError("none of the servers of the cluster answers")
        for address in addresses:
            pool = self._pool_at(address)
            try:
                PrefixedClient(connection_pool=pool, global_keyprefix="").ping()
            except self.connection.connection_errors as exc:
                if refusal_of(exc) is not None:
                    error = exc
            else:
                return pool
        raise error

    def _receive(self) -> Any:
        """kombu's, for what comes over PUB/SUB. With one Redis, a lost server is a lost connection. Here,
        another server takes over."""
        try:
            return super()._receive()
        except self.connection_errors as exc:
            if self._in_listen:
                # A callback has raised it.
                raise
            logger.warning("Listening at another server of the cluster: %s", exc)
            self._stop_listening()
            return None

    def check(self) -> None:
        """As for one server. Also check that the server answers at which this channel listens: no other
        connection to it may be in use."""
        super().check()
        client = self.__dict__.get("subclient")
        was_overdue, self._was_overdue = self._was_overdue, False
        if client is None or client.connection is None or client.connection._sock is None:
            self._unheard = None
            return
        # redis-py counts the PINGs without a reply.
        if not client.health_check_response_counter:
            self._unheard = None
            self._send_ping(client)
            return
        next_ping = client.connection.next_health_check
        if self._unheard is None or self._unheard[1] != next_ping:
            self._unheard = monotonic(), next_ping
        elif monotonic() - self._unheard[0] > self.silence_limit:
            # A task may have kept the thread since, and the reply waits to be read: the poll between this
            # check and the next one reads it.
            self._was_overdue = True
            if was_overdue:
                logger.warning("Listening at another server of the cluster: this one does not answer")
                self._stop_listening()

    def _send_ping(self, client: Any) -> None:
        """Send a PING to the server at which the channel listens, if it has said nothing for the
        ``health_check_interval``. kombu does so from a timer of the event loop, and never without one."""
        try:
            client.check_health()
        except self.connection_errors as exc:
            logger.warning("Listening at another server of the cluster: %s", exc)
            self._stop_listening()

    def _stop_listening(self) -> None:
        self._in_listen: Any = None
        self._unheard, self._was_overdue = None, False
        client = self.__dict__.pop("subclient", None)
        if client is not None and client.connection is not None:
            client.connection.disconnect()
        self.nodes.find_out()

    def _unsubscribe_from(self, queue: str) -> None:
        # After its server was lost there is no client until the next wait, and a channel that is closed needs
        # none any more.
        if "subclient" in self.__dict__:
            super()._unsubscribe_from(queue)

    def _on_connection_disconnect(self, connection: Any) -> None:
        super()._on_connection_disconnect(connection)
        client = self.__dict__.get("subclient")
        if client is not None and client.connection is connection:
            # The next one may be at another server.
            del self.__dict__["subclient"]

    def new_poll_client(self, queue: str) -> Any:
        return Redis(connection_pool=self._pool_at(self._cluster.address_of(self.store.keys(queue).wake)))

    def _pool_at(self, address: Address) -> ConnectionPool:
        like = self.async_pool
        options = {**like.connection_kwargs, "host": address.host, "port": address.port, **PARSER}
        return ConnectionPool(connection_class=like.connection_class, **options)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        if params.get("db"):
            raise ValueError(f"a cluster has only database 0, not {params['db']}")
        return params

    def _after_fork(self) -> None:
        super()._after_fork()
        # Its connections belong to the parent process.
        self._nodes = None
        self.__dict__.pop("nodes", None)

    def close(self) -> None:
        super().close()
        if self._nodes is not None:
            self._nodes.close()

    # -- bindings --------------------------------------------------------------------------------------

    def _delete(self, *args: Any, **kwargs: Any) -> None:
        super()._delete(*args, **kwargs)
        self._routes.bindings_have_changed()

    # -- names -----------------------------------------------------------------------------------------

    def _q_for_pri(self, queue: str, pri: int) -> str:
        keys = self.store.keys(queue)
        return keys.ready_at(self.priority(pri))

    def _get_publish_topic(self, exchange: str, routing_key: str) -> str:
        return self._prefix + str(super()._get_publish_topic(exchange, routing_key))

    def _get_subscribe_topic(self, queue: str) -> str:
        # The client of PUB/SUB adds the prefix.
        return str(super()._get_subscribe_topic(queue)).removeprefix(self._prefix)

    def _get_subscribe_topics(self, queue: str) -> list[str]:
        # As kombu 5.7 calls it.
        return [str(topic).removeprefix(self._prefix) for topic in super()._get_subscribe_topics(queue)]


class ClusterTransport(Transport):
    """``redisdelay-cluster://``.

    Attributes:
        addresses: of some of the servers.
    """

    Channel = ClusterChannel
    waits_for_failover = True
    # The nodes find out whether a server is one of a cluster.
    other_modes: Mapping[str, str] = {}

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """
        Raises:
            ValueError: the URLs contradict each other.
        """
        super().__init__(client, **kwargs)
        self.addresses = read_together(client, self.default_port)


class SecureClusterTransport(ClusterTransport):
    """``redisdelays-cluster://``: the same, but always with TLS, even if ``ssl`` is not set."""

    always_tls = True


def check_prefix(prefix: str) -> None:
    """Check that all keys of a queue are in one slot with this ``global_keyprefix``.

    Raises:
        ValueError: it has only one kind of brace, or nothing between two of them.
    """
    opening, closing = prefix.find("{"), prefix.find("}")
    if "{" in prefix and not opening < closing - 1:
        raise ValueError(
            f"global_keyprefix {prefix!r} has braces that divide the keys of a queue among the servers of a "
            "cluster: leave them out, or write {tag} to have all keys at one server"
        )


class ClusterClient(Redis):
    """Sends its commands to the server that has their key. redis-py's own client for clusters refuses scripts
    in a pipeline, and kombu uses them.

    Arguments:
        server: runs the commands.
        like: a pool that connects as the connections to the servers do. It is not used to connect.
    """

    def __init__(self, server: ClusterServer, like: ConnectionPool) -> None:
        super().__init__(connection_pool=like)
        self._server = server
        #: Digest -> text of a script.
        self._scripts: dict[str, str] = {}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        [reply] = checked(self._call_all([args]))
        return self._parsed(args, options, reply)

    def script_load(self, script: Any) -> Any:
        """Note *script*, for a server that does not know it. Returns its digest.

        Nothing is sent: which server runs it is known only when it has done so, after a failover for one.
        """
        sha = digest(script)
        self._scripts[sha] = script
        return sha

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> _Pipeline:
        """Runs commands together, but not in a transaction: they may be for several servers."""
        return _Pipeline(self, self.connection_pool, self.response_callbacks, False, shard_hint)

    def run_all(self, commands: Sequence[tuple[Any, Any]], scripts: Sequence[Any]) -> list[Any]:
        """Run *commands*, with their options. *scripts* are the scripts in them. Errors are returned as
        replies."""
        for script in scripts:
            self.script_load(script)
        replies = self._call_all([args for args, _ in commands])
        return [
            reply if isinstance(reply, ResponseError) else self._parsed(args, options, reply)
            for (args, options), reply in zip(commands, replies, strict=True)
        ]

    def _call_all(self, commands: Sequence[Any]) -> list[Any]:
        """Run *commands*. Those that run a script are run again with its text where it was not known."""
        # The name of a command may have several words.
        commands = [(*args[0].split(), *args[1:]) for args in commands]
        replies = self._server.call_all(*commands)
        unknown = [
            index
            for index, reply in enumerate(replies)
            if isinstance(reply, NoScriptError) and commands[index][1] in self._scripts
        ]
        if unknown:
            with_text = [
                ("EVAL", self._scripts[commands[index][1]], *commands[index][2:]) for index in unknown
            ]
            for index, reply in zip(unknown, self._server.call_all(*with_text), strict=True):
                replies[index] = reply
        return replies

    def _parsed(self, args: Any, options: Any, reply: Any) -> Any:
        callback = self.response_callbacks.get(args[0])
        return reply if callback is None else callback(reply, **options)


class _Pipeline(Pipeline):
    def __init__(self, client: ClusterClient, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = [(each[0], each[1]) for each in self.command_stack]
        scripts = [script.script for script in self.scripts]
        try:
            replies = self._client.run_all(commands, scripts)
        finally:
            self.reset()
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise reply
        return replies
