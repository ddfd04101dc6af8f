"""The interface by which the broker uses the server, whatever kind of server that is.

There are two implementations: for one Redis or Valkey, :mod:`kombu_redisdelay.broker.server.single`, and for
a cluster of them, :mod:`kombu_redisdelay.broker.server.cluster`. The transport chooses one. A publisher that
waits for replicas uses it through :class:`Confirming`.

A cluster divides the keys into slots. A command, and so a script, has keys of one slot; a packet of commands
may have any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from redis.exceptions import RedisError, ResponseError

from kombu_redisdelay.broker.server.line import Ack, AckMissed
from kombu_redisdelay.broker.server.wire import Argument, Caller, Command, NothingDone, NotThePrimary, checked
from kombu_redisdelay.public import public

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

#: The commands that publish. The others in their packets add wake-up tokens, or load scripts.
_PUBLISHING = frozenset(("LPUSH", "EVALSHA", "EVAL"))


class SlotUnavailable(NothingDone):
    """No server of the cluster serves a slot now: it moves, or its server has failed. Of a packet for several
    slots, the rest may have been done."""


class OneServer(Protocol):
    """What can be asked of one server, also of one in a cluster.

    Attributes:
        address: where it listens, for people.
    """

    @property
    def address(self) -> str: ...

    def new_connection(self, key: str) -> Any:
        """As :meth:`Server.new_connection`. It is to this server, whatever the *key*."""

    def call(self, *command: Argument) -> Any:
        """Run *command*. Returns the reply.

        Raises:
            RedisError: the connection failed, or the server refused.
        """

    def call_all(self, *commands: Command) -> list[Any]:
        """As :meth:`Server.call_all`."""

    def info(self, section: str = "everything") -> Mapping[str, Any]:
        """What the server says of itself: a *section* of ``INFO``, or all of them."""

    def setting(self, name: str) -> str | None:
        """A setting of the server; ``None`` where ``CONFIG`` is not allowed, as with most hosted servers."""


class Server(Protocol):
    """A way to the server. Any number of threads may share it.

    Methods raise what redis-py raises. They add no prefix to keys, and return replies as they come: bytes
    stay bytes.

    Attributes:
        has_slots: whether keys are divided into slots.
    """

    @property
    def has_slots(self) -> bool: ...

    def slot(self, key: str) -> int:
        """The slot of *key*. One command, or one script, may have keys of one slot only."""

    def call(self, *command: Argument) -> Any:
        """Run *command*. Returns the reply. On a cluster, a command without a key goes to any server.

        Raises:
            RedisError: the connection failed, or the server refused. The command is not tried again, because
                that might publish a message twice, unless ``retry_on_timeout`` asks for it.
        """

    def call_all(self, *commands: Command) -> list[Any]:
        """Run *commands*, one after the other, in one round trip. On a cluster, it is one round trip for each
        of the servers, and each of these runs its commands one after the other. A command without a key goes
        to each of them.

        Returns:
            The replies. If the server refused a command, its reply is a ``ResponseError``.

        Raises:
            RedisError: the connection failed. Tried again only as :meth:`call` says.
        """

    def try_packed(self, data: bytes, count: int) -> list[Any] | None:
        """Run *count* commands, which are packed together, over the kept connection. Returns the replies as
        :meth:`call_all`; ``None`` if that cannot be used now, or there are several servers: then nothing was
        done.

        Raises:
            RedisError: the connection failed.
        """

    def call_apart(self, *command: Argument) -> Any:
        """Run a *command* that may block at the server, over a connection that nothing else waits for.
        Returns the reply."""

    def ack(self, ack: Ack) -> None:
        """Forget a message for good. It has been written when this returns; see
        :meth:`~kombu_redisdelay.broker.server.line.Line.ack`."""

    def is_at_hand(self, key: str) -> bool:
        """Whether :meth:`ack` can write to the server of *key* now; see
        :meth:`~kombu_redisdelay.broker.server.line.Line.is_at_hand`."""

    def after_acks(self, key: str) -> Caller:
        """What runs commands at the server of *key*, after all acks so far. It waits while other threads do
        that. It tries nothing again."""

    def hurrying(self) -> AbstractContextManager[None]:
        """A block in which the calls of this thread do not wait for a slot that no server has, but raise
        :class:`SlotUnavailable` at once. A consumer has other queues to serve."""

    def tell_missed_acks(self, to: AckMissed) -> None:
        """Call *to* for acks that find no message, from now on."""

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far.

        Raises:
            RedisError: the connection failed, or the server refused an ack. The acks that are not confirmed
                will be sent again.
        """

    def new_connection(self, key: str) -> Any:
        """A redis-py connection to the server of *key*, for the caller alone. It connects when it is first
        used."""

    def relocated(self, reply: ResponseError | NotThePrimary) -> None:
        """Note that a server has sent *reply* over such a connection. It is one of
        :data:`~kombu_redisdelay.broker.server.wire.RELOCATIONS`, or shows that the server is a replica.

        Raises:
            RedisError: there is no other server to go to.
        """

    def prepared(self, command: Command) -> Command:
        """What to send for *command* over such a connection."""

    def with_own_connections(self, *, socket_timeout: float) -> Server:
        """The same server over connections of its own.

        Arguments:
            socket_timeout: seconds that a reply may take.
        """

    def servers(self) -> Sequence[OneServer]:
        """The servers that have keys, each on its own."""

    def server_of(self, key: str) -> OneServer:
        """The one of them that has *key*.

        Raises:
            ConnectionError: no server has it, or none can be reached.
        """

    def doubt(self) -> None:
        """Find out where the primary is before the next call: the one of now may have been replaced."""

    def disconnect(self) -> None:
        """Close the connections. The next call opens one again."""


def by_slot(server: Server, items: Iterable[Item], key: Callable[[Item], str], most: int) -> list[list[Item]]:
    """Divide *items* into the work of single scripts: each has items of one slot, at most *most*.

    Arguments:
        key: returns a key of an item.
    """
    in_slots: dict[int, list[Item]] = {}
    for item in items:
        in_slots.setdefault(server.slot(key(item)), []).append(item)
    return [some[first : first + most] for some in in_slots.values() for first in range(0, len(some), most)]


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


def evicted_by(policy: str) -> str:
    """What a server with this ``maxmemory-policy`` evicts of our data when it runs out of memory, in words;
    empty if it evicts nothing."""
    if policy == "noeviction":
        return ""
    if policy.startswith("volatile-"):
        # Only what has a time to live. Of other keys with one, none is missed (docs/design-notes.rst).
        return "queues that were declared with x-expires, with their messages,"
    return "queues, with their messages,"


def warn_of_eviction(server: Server) -> None:
    """Log a warning if the server may evict queues when it runs out of memory."""
    try:
        policies = {one.info("memory").get("maxmemory_policy", "noeviction") for one in server.servers()}
    except ResponseError:
        return  # This user may not ask.
    for policy in filter(evicted_by, policies):
        logger.warning(
            "When Redis runs out of memory, %s may be thrown away: maxmemory-policy is %s. "
            "Set it to noeviction.",
            evicted_by(policy),
            policy,
        )
