"""The actions of publishers and operators: put, schedule, count, purge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic
from typing import Any, Protocol

from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError

from kombu_redisdelay.broker.keys import Partitions, RedisKeys, known_queues, redis_keys
from kombu_redisdelay.broker.message import KEEP, Due
from kombu_redisdelay.broker.options import ISOLATED_AFTER
from kombu_redisdelay.broker.plan import COMMANDS_OF_PUSH, Plan
from kombu_redisdelay.broker.portions import MESSAGES_PER_CALL, NAME_BYTES_PER_CALL, portions
from kombu_redisdelay.broker.publish_calls import PUSH, Bindings, Call, Push, joined, only_if, token
from kombu_redisdelay.broker.server.scripts import (
    CLEAR,
    CLEAR_KEYS,
    KNOWN,
    PUT,
    SCHEDULE,
    UNLIST,
    Script,
    ScriptCall,
    try_each,
)
from kombu_redisdelay.broker.server.server import Server
from kombu_redisdelay.broker.server.wire import (
    Argument,
    Command,
    answers,
    checked,
    clock_ms,
    explained_all,
)
from kombu_redisdelay.broker.unlisted import search_for

logger = logging.getLogger(__name__)

#: Seconds after which a process notes a queue again, because Redis may have lost its data meanwhile.
KNOWN_FOR = 60.0

#: How many queues a process remembers to have noted.
MOST_KNOWN = 10_000

#: Keys of a fair queue that one script clears.
KEYS_PER_CALL = 200


class Publisher(Protocol):
    """A way to the server to publish with: a server, or one that waits for its replicas."""

    def call(self, *command: Argument) -> Any: ...
    def call_all(self, *commands: Command) -> list[Any]: ...


class Store:
    """The queues in one Redis database, or in one cluster.

    Arguments:
        prefix: ``global_keyprefix``, in front of every key.
        steps: priority steps, in the order in which they are taken.
        separator: between a queue's name and a priority step.
        publisher: what messages are published with, if that is not *server*.
        partitions: the queues that have partitions. All methods get the names of partitions.
        isolated_after: after how many lost consumers a message is isolated, as their consumers do it; 0 for
            never.
    """

    def __init__(
        self,
        server: Server,
        prefix: str,
        steps: Sequence[int],
        separator: str,
        publisher: Publisher | None = None,
        partitions: Partitions | None = None,
        isolated_after: int = ISOLATED_AFTER,
    ) -> None:
        self.server = server
        self._publisher = publisher or server
        self.partitions = partitions or Partitions({})
        self.prefix = prefix
        self.isolated_after = isolated_after
        self.steps = tuple(steps)
        self.separator = separator
        #: queue -> its x-expires in ms, for the queues that were declared with one.
        self.expires_ms: dict[str, int] = {}
        #: For operations: tells which queues may have how many messages, as far as the app declares it.
        self.bounds: Callable[[], Mapping[str, int]] = dict
        self.known_until: dict[str, float] = {}

    def with_own_connections(self, *, socket_timeout: float) -> Store:
        """The same queues over connections of their own.

        Arguments:
            socket_timeout: seconds that a reply may take.
        """
        server = self.server.with_own_connections(socket_timeout=socket_timeout)
        return self._with(server, None)

    def through(self, server: Server) -> Store:
        """The same queues by way of another *server*, which leads to the same one."""
        publisher = self._publisher if self.confirms else None
        return self._with(server, publisher)

    def _with(self, server: Server, publisher: Publisher | None) -> Store:
        return Store(
            server, self.prefix, self.steps, self.separator, publisher, self.partitions, self.isolated_after
        )

    @property
    def confirms(self) -> bool:
        """Whether replicas confirm what is published."""
        return self._publisher is not self.server

    def disconnect(self) -> None:
        """Close the connections. The next call opens one again."""
        self.server.disconnect()

    def keys(self, queue: str) -> RedisKeys:
        return redis_keys(self.prefix, queue, self.separator, self.server.has_slots)

    def slot(self, queue: str) -> int:
        """The slot of all keys of *queue*."""
        return self.server.slot(self.keys(queue).wake) if self.server.has_slots else 0

    def ready_keys(self, queue: str) -> list[str]:
        keys = self.keys(queue)
        return [keys.ready_at(step) for step in self.steps]

    def keys_of_ready(self, queue: str) -> list[str]:
        """Where ready messages are: their lists, and what says that a fair queue has any."""
        return [*self.ready_keys(queue), self.keys(queue).fair]

    def run(self, call: Call) -> Any:
        """Run *call*. Returns the reply.

        Raises:
            RedisError: as redis-py does. If a key has a wrong type, the error names the key.
            NotReplicatedError: it is done, and too few replicas have confirmed that.
        """
        operation, keys, args = call
        return self._push(call) if isinstance(operation, Push) else operation(self._publisher, keys, args)

    def push(self, plan: Plan, text: str) -> None:
        """Publish a message by its *plan*. Raises the same as :meth:`run`."""
        replies = self.server.try_packed(plan.pushing(text), COMMANDS_OF_PUSH)
        try:
            if replies is None:
                self._push((PUSH, plan.keys[:2], (text,)))
            elif type(replies[0]) is not int:
                self._pushed((PUSH, plan.keys[:2], (text,)), replies)
        finally:
            # One of them may be the error, which refers to this frame.
            del replies

    def push_later(self, plan: Plan, queue: str, text: str, at_ms: float, message_id: str) -> None:
        """The same for one that is due at *at_ms*, ms since the epoch. Workers are told of its *queue*."""
        self.remember(queue)
        replies = self.server.try_packed(plan.scheduling(text, at_ms, message_id), 1)
        try:
            if replies is None or isinstance(replies[0], NoScriptError):
                # Nothing was done.
                SCHEDULE(self._publisher, plan.keys, plan.arguments(text, at_ms, message_id))
            elif type(replies[0]) is not int:
                checked(explained_all(replies, self.server, [plan.keys]))
        finally:
            del replies

    def _push(self, call: Call) -> Any:
        _, keys, args = call
        return self._pushed(call, self._publisher.call_all(PUSH.command(keys, args), *token(keys[1])))

    def _pushed(self, call: Call, replies: list[Any]) -> Any:
        _, keys, _ = call
        replies, added = explained_all(replies[:1], self.server, [keys]), replies[1:2]
        try:
            self._take_back([call], replies, added)
            return checked(replies)[0]
        finally:
            del replies

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run *calls* one after the other, in one round trip.

        Returns:
            The replies. If the server refused a call, its reply is a ``ResponseError``.

        Raises:
            RedisError: the connection failed. Any of the calls may have been done.
            NotReplicatedError: too few replicas have confirmed.
        """
        units = list(joined(calls))
        scripts = dict.fromkeys(call[0] for call, _ in units if isinstance(call[0], Script))
        # Loaded first: a script that the server does not know could only be run later, out of order.
        loading: list[Command] = [("SCRIPT", "LOAD", script.text) for script in scripts]
        commands = [operation.command(keys, args) for (operation, keys, args), _ in units]
        wakes = dict.fromkeys(keys[1] for operation, keys, _ in calls if operation is PUSH)
        replies = self._publisher.call_all(*loading, *commands, *chain.from_iterable(map(token, wakes)))
        added = replies[len(loading) + len(units) :: 2]
        replies = replies[len(loading) : len(loading) + len(units)]
        replies = explained_all(replies, self.server, [keys for (_, keys, _), _ in units])
        self._take_back([call for call, _ in units], replies, added)
        return [reply for reply, (_, count) in zip(replies, units, strict=True) for _ in range(count)]

    def _take_back(self, calls: Sequence[Call], replies: Sequence[Any], added: Sequence[Any]) -> None:
        """Remove the tokens of messages that a full Redis has refused. The arguments of a command count as
        memory that is used, so the smaller one for the token may be accepted.

        Arguments:
            replies: to *calls*.
            added: the replies to the commands that add tokens, one for each queue: 1 if it had none.
        """
        if not any(isinstance(reply, OutOfMemoryError) for reply in replies):
            return
        pushes: dict[str, list[tuple[Sequence[str], Any]]] = {}
        for (operation, keys, _), reply in zip(calls, replies, strict=True):
            if operation is PUSH:
                pushes.setdefault(keys[1], []).append((keys, reply))
        needless: list[ScriptCall] = [
            (UNLIST, each[0][0][::-1], ("1",))
            for is_new, each in zip(added, pushes.values(), strict=True)
            if is_new == 1 and all(isinstance(reply, OutOfMemoryError) for _, reply in each)
        ]
        with suppress(RedisError, OSError):
            try_each(self.server, needless)

    def now_ms(self) -> float:
        """The server's clock, ms since the epoch, with a fraction. The servers of a cluster may have
        different clocks: this is the clock of one of them."""
        return clock_ms(self.server.call("TIME"))

    def put(
        self,
        queue: str,
        step: int,
        payload: str | bytes,
        end: str = "tail",
        bindings: Bindings | None = None,
        expires_ms: int = 0,
    ) -> Call:
        """The call that adds a message to an end of its ready list.

        Arguments:
            end: "tail", or "head", where the message is the next to be taken.
            bindings: those that the message was routed by. If the exchange has others when the call is run,
                the call does nothing and returns 0. Not allowed for a queue that expires.
            expires_ms: for how long the list lives from now on, in ms, if the queue is not known to expire;
                0 for ever.
        """
        keys = self.keys(queue)
        used = (keys.ready_at(step), keys.wake)
        expires_ms = self.expires_ms.get(queue, expires_ms)
        if end == "tail" and not expires_ms and not bindings:
            return PUSH, used, (payload,)
        args = (payload, end, expires_ms)
        return only_if(bindings, PUT, self.with_expiring(queue, used), args)

    def schedule(
        self,
        queue: str,
        step: int,
        payload: str,
        due: Due,
        message_id: str,
        on_conflict: str = KEEP,
        bindings: Bindings | None = None,
    ) -> Call:
        """The call that schedules a message, or appends it to its ready list if its time has come.

        Arguments:
            on_conflict: what to do if another message is scheduled under *message_id*:
                :data:`~kombu_redisdelay.broker.message.KEEP`, ``REPLACE`` or ``IGNORE``.
            bindings: as for :meth:`put`.
        """
        keys = self.keys(queue)
        used = (keys.ready_at(step), keys.wake, keys.schedule, keys.messages, keys.duplicates)
        args = (
            self.expires_ms.get(queue, 0),
            on_conflict,
            1,
            message_id,
            due.at_ms,
            due.delay_ms,
            f"{step}:{payload}",
        )
        return only_if(bindings, SCHEDULE, self.with_expiring(queue, used), args)

    def scheduled(self, queue: str) -> int:
        """How many messages wait for their time."""
        count: int = self.server.call("ZCARD", self.keys(queue).schedule)
        return count

    def queues(self) -> list[str]:
        """The queues that have a consumer, a scheduled message or a dead letter, or a message from a producer
        of ours that has declared them, sorted by name; also those that had one a few minutes ago."""
        [members] = answers(self.server, [("ZRANGE", known_queues(self.prefix), 0, -1)])
        return sorted(filter(None, map(name_of, members)))

    def exists(self, queue: str) -> bool:
        """Whether there is anything to show for *queue*: a message, a consumer, or a history."""
        keys = self.keys(queue)
        any_of = (*self.keys_of_ready(queue), keys.schedule, keys.consumers, keys.history)
        return bool(self.server.call("EXISTS", *any_of))

    def wake(self, *queues: str) -> None:
        """Have a consumer look at each of *queues*. As in ``lua/include/wake.lua``, a server that is out of
        memory may refuse the token."""
        if queues:
            wakes = (self.keys(queue).wake for queue in queues)
            replies = self.server.call_all(*chain.from_iterable(map(token, wakes)))
            checked([reply for reply in replies if not isinstance(reply, OutOfMemoryError)])

    def purge(self, queue: str) -> int:
        """Remove all ready and scheduled messages. Returns how many there were."""
        keys = self.keys(queue)
        ready_keys = self.ready_keys(queue)
        # The keys of running tasks stay held.
        used = (*ready_keys, *keys.of_what_waits, keys.wake)
        count = int(CLEAR(self.server, used, (len(ready_keys), 1, "waiting")))
        return count + self.clear_keys(queue)

    def clear_keys(self, queue: str) -> int:
        """Remove all messages that are sorted by key, if *queue* is fair. Returns how many there were."""
        count, was_fair = self._clear_keys(queue)
        # What has no turn, because a key was lost.
        if was_fair and search_for(self, queue).lists:
            count += self._clear_keys(queue)[0]
        return count

    def _clear_keys(self, queue: str) -> tuple[int, bool]:
        """Returns how many messages there were, and whether the queue was fair."""
        count, is_done, was_fair = 0, 0, 0
        while not is_done:
            some, is_done, is_fair = CLEAR_KEYS(self.server, (self.keys(queue).wake,), (KEYS_PER_CALL,))
            count, was_fair = count + some, was_fair or is_fair
        return count, bool(was_fair)

    def delete(self, queue: str) -> None:
        """Remove all ready and scheduled messages, the keys that are held, what is used of the rates of keys,
        and the history."""
        self.purge(queue)
        keys = self.keys(queue)
        self.server.call("UNLINK", keys.history, keys.running, keys.rate_clocks)

    def with_expiring(self, queue: str, used: tuple[str, ...]) -> tuple[str, ...]:
        """The keys that a script has *used* to publish to *queue*, with all others that expire with them, if
        it expires."""
        if queue not in self.expires_ms:
            return used
        every = chain(used, self.ready_keys(queue), self.keys(queue).of_what_waits)
        return tuple(dict.fromkeys(every))

    def remember(self, *queues: str) -> None:
        """Note in Redis that *queues* are in use, so that operations on all queues find them. Leaves out
        queues that were noted less than :data:`KNOWN_FOR` seconds ago.

        If the server is out of memory, the queues are noted another time: the caller's work must go on.
        """
        now = monotonic()
        if len(self.known_until) > MOST_KNOWN:
            self.known_until.clear()
        # A name may be a member of an Enum, and its str() may be another text.
        due = [str.__str__(queue) for queue in queues if now >= self.known_until.get(queue, 0)]
        if not due:
            return
        for some in portions(due, len, MESSAGES_PER_CALL, NAME_BYTES_PER_CALL):
            with suppress(OutOfMemoryError):
                KNOWN(self.server, (known_queues(self.prefix),), (0, 0, 0, *some))
            for queue in some:
                self.known_until[queue] = now + KNOWN_FOR

    def try_to_remember(self, *queues: str) -> None:
        """The same when messages were just published to *queues*. Whatever goes wrong here, they are
        published, and the caller must not publish them again."""
        try:
            self.remember(*queues)
        except (RedisError, OSError) as exc:
            logger.debug("Could not note that queues are in use: %s", exc)
            # Every message would cost another attempt.
            until = monotonic() + KNOWN_FOR
            self.known_until.update((str.__str__(queue), until) for queue in queues)


def name_of(member: bytes) -> str | None:
    """The name of a queue, from *member* of the known queues in Redis; ``None`` if it is not UTF-8: no
    program can use such a queue."""
    try:
        return member.decode()
    except UnicodeDecodeError:
        return None
