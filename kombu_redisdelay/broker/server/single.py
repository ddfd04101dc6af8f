"""The way to the server: redis-py's client, with a shorter way for what is sent for every message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.line import Line, checked, without_frames
from kombu_redisdelay.broker.server.pool import Pool
from kombu_redisdelay.broker.server.wire import Argument, Command


class Client(Redis):
    """redis-py's client, which adds no prefix to keys, with :meth:`call` and :meth:`call_all`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        provider = pool.connection_kwargs.get("credential_provider")
        # Told so, redis-py has the pool hear of new credentials.
        options = {} if provider is None else {"credential_provider": provider}
        super().__init__(connection_pool=pool, **options)

    @property
    def line(self) -> Line:
        """The kept connection."""
        return self.pool.line

    def call(self, *command: Argument) -> Any:
        """Run *command* over the kept connection, or another one while a thread uses that.

        Returns:
            The reply as it came.

        Raises:
            RedisError: as redis-py does. Unless ``retry_on_timeout`` asks for it, nothing is tried again: a
                message might be published twice.
        """
        [reply] = checked(self.call_all(command))
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies as they came; that of a command which the server refused is a ``ResponseError``.

        Raises:
            RedisError: the connection failed; tried again as :meth:`call`.
        """
        replies = self.line.try_call_all(commands)
        return self._call_over_pool(commands) if replies is None else replies

    def _call_over_pool(self, commands: Sequence[Command]) -> list[Any]:
        with self.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies = pipe.execute(raise_on_error=False)
        return [without_frames(reply) if isinstance(reply, ResponseError) else reply for reply in replies]

    def disconnect(self) -> None:
        """Close the connections. The next command opens one again."""
        self.pool.disconnect()
