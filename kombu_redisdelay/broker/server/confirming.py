"""Publishes through a server, and waits until replicas have confirmed it."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.server.replies import checked
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import Argument, Command
from kombu_redisdelay.public import public

#: The commands that publish. The others in their packets add wake-up tokens, or load scripts.
_PUBLISHING = frozenset(("LPUSH", "EVALSHA", "EVAL"))


@public
class NotReplicatedError(RedisError):
    """The primary has a message, and fewer replicas than ``confirm_replicas`` have confirmed it in time.

    kombu does not take this for a lost connection, and does not publish the message again by itself: with a
    replica that is down it would, again and again.

    Attributes:
        confirmed: how many replicas have confirmed.
        wanted: how many should have.
    """

    def __init__(self, confirmed: int, wanted: int) -> None:
        super().__init__(
            f"{confirmed} of {wanted} replicas have confirmed (confirm_replicas). The message is at the "
            "primary and will be delivered, unless a failover loses it. Publish it again if its task may run "
            "twice, and see whether the replicas are up (celery delayed doctor)."
        )
        self.confirmed = confirmed
        self.wanted = wanted

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.confirmed, self.wanted)


class Confirming:
    """What publishers need of a :class:`~kombu_redisdelay.broker.server.server.Server`: each packet also
    waits for replicas.

    Arguments:
        replicas: how many replicas have to confirm, from 1.
        timeout_ms: milliseconds to wait for them.
    """

    def __init__(self, server: Server, replicas: int, timeout_ms: int) -> None:
        self._server = server
        self._wait: Command = ("WAIT", replicas, timeout_ms)
        self._replicas = replicas

    def call(self, *command: Argument) -> Any:
        """As the server's.

        Raises:
            NotReplicatedError: too few replicas have confirmed.
        """
        [reply] = checked(self.call_all(command))
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        """As the server's.

        Raises:
            NotReplicatedError: too few replicas have confirmed.
        """
        publishing = [index for index, command in enumerate(commands) if command[0] in _PUBLISHING]
        if not publishing:
            return self._server.call_all(*commands)
        *replies, confirmed = self._server.call_all(*commands, self._wait)
        if all(isinstance(replies[index], ResponseError) for index in publishing):
            return replies
        checked([confirmed])
        if confirmed < self._replicas:
            # This primary may have been replaced.
            self._server.doubt()
            raise NotReplicatedError(confirmed, self._replicas)
        return replies
