"""Connections to a server that takes writes.

They are lost when the server refuses for a reason that a new connection may cure: it is no primary any more,
or too few replicas follow it. Their errors name the server. Where sentinels watch the primary, they are asked
where it is, and tell when another server has become the primary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import WeakSet

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection
from redis.exceptions import ConnectionError, ReadOnlyError, ResponseError, TimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelManagedConnection

from kombu_redisdelay.broker.processes import Lock, in_each_child
from kombu_redisdelay.broker.server.probe import answering
from kombu_redisdelay.broker.server.wire import (
    NothingDone,
    NotThePrimary,
    Refuses,
    TooFewReplicas,
    Unreachable,
    WrongServer,
)
from kombu_redisdelay.refusals import Then, error_text, refusal_of

#: Seconds for which a program that ends waits for each reply, after a server was silent once. Each of its
#: last acks and give backs would wait as long as usual, and Docker kills ten seconds after SIGTERM.
LAST_PATIENCE = 0.3

#: Host and port.
Address = tuple[str, int]

#: Seconds that a sentinel may take to answer, and to be connected to. It does nothing that takes time.
ANSWER_TIMEOUT = 1.0

#: Seconds that the sentinel which has answered last has to say whether the primary is still the same, before
#: the others are asked, too.
PROMPT_TIMEOUT = 0.2

#: Seconds between two questions whether the primary is still the same.
ASK_INTERVAL = 1.0

#: The same, while no sentinel answers. Asking then takes :data:`ANSWER_TIMEOUT`.
NO_ANSWER_INTERVAL = 10.0


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
        said = error_text(error)
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


class NoPrimaryKnown(Unreachable, MasterNotFoundError):
    """No sentinel knows where the primary is. Some may soon."""


class Sentinels:
    """The sentinels that know one primary.

    The connections to the primary have this object instead of redis-py's pool of such connections. It has
    the attributes of the pool that they use. redis-py's own way to ask has no timeout by default, pauses for
    seconds before it leaves a sentinel that is gone, and does not say what is wrong.

    Arguments:
        addresses: of the sentinels.
        master_name: the name by which they know the primary.
        min_other_sentinels: how many other sentinels one must know, for its answer to count.
        options: redis-py's, for the connections to the sentinels.
    """

    #: redis-py's names.
    is_master = True
    check_connection = False

    def __init__(
        self,
        addresses: Sequence[Address],
        master_name: str,
        min_other_sentinels: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.service_name = master_name
        self._arguments = addresses, master_name, min_other_sentinels, options
        self._min_others = min_other_sentinels
        defaults = {
            "socket_timeout": ANSWER_TIMEOUT,
            "socket_connect_timeout": ANSWER_TIMEOUT,
            # Another sentinel is asked instead.
            "retry": Retry(NoBackoff(), 0),
            **(options or {}),
        }
        prompt = {
            name: min(PROMPT_TIMEOUT, defaults[name] or PROMPT_TIMEOUT)
            for name in ("socket_timeout", "socket_connect_timeout")
        }
        self._timeout: float = max(defaults[name] or ANSWER_TIMEOUT for name in prompt)
        self._have_tls = bool(defaults.get("ssl"))
        #: Clients of the sentinels. The one that has answered last comes first.
        self._clients: list[tuple[Address, Any]] = [
            (address, Redis(*address, **defaults)) for address in addresses
        ]
        #: The same, for a question that must not take long.
        self._prompt_clients = {address: Redis(*address, **{**defaults, **prompt}) for address in addresses}
        #: The primary, as far as is known.
        self._primary: Address | None = None
        self._ask_at = float("-inf")

    def apart(self) -> Sentinels:
        """The same, over connections of its own: for a thread of the operating system that must not share
        any, see :mod:`kombu_redisdelay.broker.processes`."""
        return Sentinels(*self._arguments)

    def get_master_address(self) -> Address:
        """Ask where the primary is. redis-py calls this for each connection, when it connects.

        Raises:
            NoPrimaryKnown: no sentinel knows. The error has the answer of each.
            WrongServer: all of them answer, and none is a sentinel.
        """
        answers = dict.fromkeys([address for address, _ in self._clients], "it does not answer")
        wrong = []
        for address, client in self._answering(self._clients, self._timeout):
            try:
                self._found(address, self._ask(client))
            except (ConnectionError, TimeoutError, ResponseError) as exc:
                answers[address] = str(exc)
                wrong.append(isinstance(exc, WrongServer))
            else:
                assert self._primary is not None
                return self._primary
        kind = WrongServer if len(wrong) == len(answers) and all(wrong) else NoPrimaryKnown
        each = "; ".join(f"{host}:{port}: {answer}" for (host, port), answer in answers.items())
        raise kind(f"no sentinel knows where the primary {self.service_name!r} is ({each})")

    @property
    def primary(self) -> Address:
        """Where the primary is, as the sentinels said last.

        Raises:
            NoPrimaryKnown, WrongServer: as for :meth:`get_master_address`.
        """
        return self._primary or self.get_master_address()

    def has_moved(self, address: Address) -> bool:
        """Whether the primary is not at *address* any more.

        The sentinel that has answered last is asked, once a second at most, and all others if it is silent
        now. The caller has a primary that answers: if no sentinel does, that is taken to be the primary.
        """
        if monotonic() >= self._ask_at:
            # Other threads must not ask as well.
            self._ask_at = monotonic() + NO_ANSWER_INTERVAL
            for sentinel, client in self._prompt_ones():
                try:
                    primary = self._named_by(client)
                except (ConnectionError, TimeoutError, ResponseError):
                    continue
                self._found(sentinel, primary or self._primary)
                break
        return self._primary is not None and self._primary != address

    def _prompt_ones(self) -> Iterator[tuple[Address, Any]]:
        """The sentinel that has answered last, and then the others that answer now."""
        (first, _), *others = self._clients
        yield first, self._prompt_clients[first]
        yield from self._answering(others, PROMPT_TIMEOUT)

    def _answering(
        self, clients: Sequence[tuple[Address, Any]], within: float
    ) -> Iterator[tuple[Address, Any]]:
        """Those of *clients* whose sentinels answer now."""
        there = answering([address for address, _ in clients], within, over_tls=self._have_tls)
        return (each for each in clients if each[0] in there)

    def disconnect(self) -> None:
        """Close the connections to the sentinels. The next question opens one again."""
        for client in (*(each for _, each in self._clients), *self._prompt_clients.values()):
            client.connection_pool.disconnect()

    def _found(self, sentinel: Address, primary: Address | None) -> None:
        self._primary = primary
        self._ask_at = monotonic() + ASK_INTERVAL
        # A new list: other threads may go through the old one.
        self._clients = sorted(self._clients, key=lambda client: client[0] != sentinel)

    def _ask(self, client: Any) -> Address:
        """Where the primary is. It must be in order, as far as this sentinel sees.

        Raises:
            RedisError: the sentinel does not answer, does not know the primary, or takes it for down.
        """
        try:
            states = client.sentinel_masters()
        except ResponseError as exc:
            if "unknown command" in str(exc):
                raise WrongServer(
                    "this is not a sentinel but a Redis server, whose URL begins with redisdelay:// (or "
                    "redisdelay-cluster://, if it is one of a cluster)"
                ) from None
            raise
        state, primary = states.get(self.service_name), self._named_by(client)
        if state is None or primary is None:
            names = ", ".join(map(repr, sorted(states))) or "none"
            raise ConnectionError(f"it knows no primary of that name (master_name), only {names}")
        others = int(state["num-other-sentinels"])
        if others < self._min_others:
            raise ConnectionError(
                f"it knows {others} other sentinel(s), and min_other_sentinels is {self._min_others}"
            )
        # In the last part of a failover it already names the new one, and the state is that of the old one.
        is_old = primary == (state["ip"], int(state["port"]))
        if is_old and (state["is_sdown"] or state["is_odown"]):
            raise ConnectionError(f"it takes the primary at {primary[0]}:{primary[1]} for down")
        return primary

    def _named_by(self, client: Any) -> Address | None:
        """The primary that a sentinel names, which may be down; ``None`` if it knows none of that name."""
        reply = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.service_name)
        if not reply:
            return None
        host, port = reply
        return host.decode() if isinstance(host, bytes) else str(host), int(port)


class PrimaryConnection(ToPrimary, SentinelManagedConnection):
    """A connection to the primary. It finds out where that is each time it connects, and ends when the
    server turns out to be another one."""

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """As redis-py's, but for ``old_primary``: from 6.0 on, it connects here without asking."""
        if self._sock is None:
            self.connect()
        super().send_packed_command(command, check_health)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """As that of every connection to a primary. redis-py has an error of its own here, which does not say
        that nothing was done."""
        try:
            return super().read_response(*args, **kwargs)
        except ConnectionError as exc:
            if isinstance(exc.__context__, ReadOnlyError):
                raise NotThePrimary(f"{self._address} is not the primary: {exc.__context__}") from None
            raise

    def has_moved(self) -> bool:
        """Whether the sentinels name another server, so that this connection must not be used any more."""
        sentinels: Sentinels = self.connection_pool
        return self._sock is not None and sentinels.has_moved((self.host, self.port))


class SecurePrimaryConnection(PrimaryConnection, SSLConnection):
    """The same over TLS."""
