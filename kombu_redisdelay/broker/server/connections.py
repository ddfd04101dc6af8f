"""Connections that are lost when the server refuses for a reason that a new connection may cure: it is no
primary any more, or too few replicas follow it. Their errors name the server."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import ResponseError, TimeoutError

from kombu_redisdelay.broker.processes import in_each_child
from kombu_redisdelay.broker.server.errors import NothingDone, NotThePrimary, Refuses, TooFewReplicas
from kombu_redisdelay.broker.server.native import Lock
from kombu_redisdelay.refusals import Then, refusal_of, what_is_said

#: Seconds for which a program that ends waits for each reply, after a server was silent once. Each of its
#: last acks and give backs would wait as long as usual, and Docker kills ten seconds after SIGTERM.
LAST_PATIENCE = 0.3


class _End:
    """Whether the program ends, and a server is silent meanwhile."""

    def __init__(self) -> None:
        # Heartbeats connect in threads of the operating system, also beside greenlets.
        self._lock = Lock()
        self._has_begun = self._is_silent = False
        self._known: WeakSet[ToPrimary] = WeakSet()

    def begin(self) -> None:
        self._has_begun = True

    def connects(self, connection: ToPrimary) -> None:
        with self._lock:
            self._known.add(connection)
            if self._is_silent:
                connection.hurry()

    def is_silent(self) -> None:
        """Note that a server has not answered in time."""
        if self._has_begun:
            with self._lock:
                self._is_silent = True
                for each in self._known:
                    each.hurry()


_end = _End()


def _begin_anew() -> None:
    global _end
    _end = _End()


# Another thread may have had the lock.
in_each_child(_begin_anew)


def begin_end() -> None:
    """Note that the program is about to end: it waits for a silent server once only."""
    _end.begin()


class ToPrimary(AbstractConnection):
    """What a connection to a primary does besides redis-py's. kombu looks in the bases of the class of a
    connection for the options that it takes.

    Celery would end a worker for any other error; after a lost connection, it tries again. redis-py itself
    takes a server that is loading for a lost connection.
    """

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        """As redis-py's. A server in trouble may refuse what a connection begins with.

        Raises:
            Refuses: it has.
            ResponseError: it refuses for good.
        """
        _end.connects(self)
        try:
            return super().connect(*args, **kwargs)
        except ResponseError as exc:
            refusal = refusal_of(exc)
            if refusal is None or not refusal.is_for_a_while:
                raise
            raise Refuses(f"{self._address} refuses: {exc}", refusal) from None

    def _send_ping(self) -> None:
        """As redis-py's, which asks whether the server answers. One that refuses is there."""
        try:
            super()._send_ping()
        except ResponseError as exc:
            if refusal_of(exc) is None:
                raise

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """As redis-py's.

        Raises:
            NotThePrimary: the server is a replica.
            TooFewReplicas: too few replicas follow the server.
            Refuses: the server refuses for another reason that a new connection may cure.
            ConnectionError: as redis-py says.
            TimeoutError: the server has not answered in time. redis-py does not say which one.
        """
        try:
            try:
                return super().read_response(*args, **{**kwargs, "disconnect_on_error": False})
            except TimeoutError:
                # eventlet looks at the time first: others may have kept the process, and the reply is there.
                if self._sock is None or not self.can_read():
                    raise
                return super().read_response(*args, **kwargs)
        except ResponseError as exc:
            lost = self._lost(exc)
            if lost is None:
                raise
            self.disconnect()
            raise lost from None
        except BaseException as exc:
            if kwargs.get("disconnect_on_error", True):
                self.disconnect()
            if isinstance(exc, TimeoutError):
                _end.is_silent()
                raise TimeoutError(f"no reply from {self._address}: {exc}") from None
            raise

    def hurry(self) -> None:
        """Wait for :data:`LAST_PATIENCE` at most from now on."""
        self.socket_timeout = self.socket_connect_timeout = LAST_PATIENCE
        if self._sock is not None:
            self._sock.settimeout(LAST_PATIENCE)

    def _lost(self, error: ResponseError) -> NothingDone | None:
        """The error of a lost connection that *error* stands for; ``None`` if it is something else."""
        refusal = refusal_of(error)
        if refusal is None or refusal.then is not Then.CONNECTS_AGAIN:
            return None
        said = what_is_said(error)
        if refusal.reason == "noreplicas":
            return TooFewReplicas(f"too few replicas follow {self._address}: {said}", refusal)
        if refusal.reason == "readonly":
            return NotThePrimary(f"{self._address} is not the primary: {said}", refusal)
        # redis-py knows most of these, but not what all servers say.
        return Refuses(f"{self._address} refuses: {said}", refusal)

    @property
    def _address(self) -> str:
        where = dict(self.repr_pieces())
        return str(where.get("path") or f"{where['host']}:{where['port']}")


class PlainConnection(ToPrimary, Connection):
    """A connection to the primary."""


class SecureConnection(ToPrimary, SSLConnection):
    """The same over TLS."""
