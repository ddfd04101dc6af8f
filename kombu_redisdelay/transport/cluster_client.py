"""A client of redis-py for what kombu does at a cluster: bindings, and the lengths of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool, Redis
from redis.client import Pipeline
from redis.exceptions import NoScriptError, ResponseError

from kombu_redisdelay.broker.server.cluster import ClusterServer
from kombu_redisdelay.broker.server.scripts import digest
from kombu_redisdelay.broker.server.wire import checked


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
        return self._told(args, options, reply)

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
            reply if isinstance(reply, ResponseError) else self._told(args, options, reply)
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
