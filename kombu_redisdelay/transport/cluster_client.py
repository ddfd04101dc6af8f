"""A client of redis-py for what kombu does at a cluster: bindings, and the lengths of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool, Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.cluster import ClusterServer


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

    def execute_command(self, *args: Any, **options: Any) -> Any:
        # The name of a command may have several words.
        return self._told(args, options, self._server.call(*args[0].split(), *args[1:]))

    def script_load(self, script: Any) -> Any:
        """Load *script* into all servers. Returns its digest."""
        digests = [one.call("SCRIPT", "LOAD", script) for one in self._server.servers()]
        return digests[0]

    def pipeline(self, transaction: bool = False, shard_hint: Any = None) -> _Pipeline:
        """What runs commands together, though not in a transaction: they may be for several servers."""
        return _Pipeline(self, self.connection_pool, self.response_callbacks, False, shard_hint)

    def run_all(self, commands: Sequence[tuple[Any, Any]], scripts: Sequence[Any]) -> list[Any]:
        """Run *commands*, with their options, after loading *scripts*. An error is a reply."""
        for script in scripts:
            self.script_load(script)
        replies = self._server.call_all(*(args for args, _ in commands))
        return [
            reply if isinstance(reply, ResponseError) else self._told(args, options, reply)
            for (args, options), reply in zip(commands, replies, strict=True)
        ]

    def _told(self, args: Any, options: Any, reply: Any) -> Any:
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
