"""One Redis or Valkey: redis-py's client, and a shorter way for the commands that every message needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.server.errors import NotThePrimary
from kombu_redisdelay.broker.server.line import Ack, AckInVain, Line
from kombu_redisdelay.broker.server.pool import Pool
from kombu_redisdelay.broker.server.replies import checked, without_frames
from kombu_redisdelay.broker.server.wire import Argument, Command, unpacked


class SingleServer:
    """The :class:`~kombu_redisdelay.broker.server.server.Server` behind a *pool*."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        provider = pool.connection_kwargs.get("credential_provider")
        # With this option, redis-py tells the pool of new credentials.
        options = {} if provider is None else {"credential_provider": provider}
        self._redis = Redis(connection_pool=pool, **options)

    has_slots = False

    def slot(self, key: str) -> int:
        return 0

    def call(self, *command: Argument) -> Any:
        [reply] = checked(self.call_all(command))
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        if not commands:
            return []
        replies = self._pool.line.try_call_all(commands)
        return self._call_over_pool(commands) if replies is None else replies

    def call_apart(self, *command: Argument) -> Any:
        return self._redis.execute_command(*unpacked(command))

    @property
    def address(self) -> str:
        options = self._pool.connection_kwargs
        sentinels = options.get("connection_pool")
        if sentinels is not None:
            return "{}:{}".format(*sentinels.primary)
        return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")

    @property
    def line(self) -> Line:
        """The kept connection."""
        return self._pool.line

    def ack(self, ack: Ack) -> None:
        self._pool.line.ack(ack)

    def is_at_hand(self, key: str) -> bool:
        return self._pool.line.is_at_hand()

    def after_acks(self, key: str) -> Line:
        return self._pool.line

    def hurrying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def tell_acks_in_vain(self, to: AckInVain) -> None:
        self._pool.line.ack_in_vain = to

    def confirm_acks(self) -> None:
        self._pool.line.confirm_acks()

    def new_connection(self, key: str) -> Any:
        return self._pool.new_connection()

    def relocated(self, reply: ResponseError | NotThePrimary) -> None:
        raise reply

    def prepared(self, command: Command) -> Command:
        return command

    def with_own_connections(self, *, socket_timeout: float) -> SingleServer:
        sentinels = self._pool.connection_kwargs.get("connection_pool")
        options = {} if sentinels is None else {"connection_pool": sentinels.apart()}
        return SingleServer(Pool.like(self._pool, socket_timeout=socket_timeout, **options))

    def servers(self) -> Sequence[SingleServer]:
        return [self]

    def server_of(self, key: str) -> SingleServer:
        return self

    def info(self, section: str = "everything") -> Mapping[str, Any]:
        told: Mapping[str, Any] = self._redis.info(section)
        return told

    def setting(self, name: str) -> str | None:
        try:
            value = self._redis.config_get(name).get(name)
        except ResponseError:
            return None
        return None if value is None else str(value)

    def doubt(self) -> None:
        # A new connection finds the primary of now.
        self._pool.doubt()

    def disconnect(self) -> None:
        self._pool.disconnect()

    def _call_over_pool(self, commands: Sequence[Command]) -> list[Any]:
        with self._redis.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*unpacked(command))
            replies = pipe.execute(raise_on_error=False)
        return [without_frames(reply) if isinstance(reply, ResponseError) else reply for reply in replies]
