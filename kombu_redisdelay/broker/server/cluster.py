"""A cluster of Redis or Valkey servers: a :class:`SingleServer` for each, and what has to be divided among
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from time import monotonic, sleep
from typing import Any

from redis import ConnectionPool
from redis.crc import key_slot
from redis.exceptions import AskError, ConnectionError, MovedError, ResponseError, TimeoutError

from kombu_redisdelay.broker.keys import bindings, known_queues
from kombu_redisdelay.broker.server.line import Ack, AckMissed
from kombu_redisdelay.broker.server.nodes import PARSER, Address, Nodes
from kombu_redisdelay.broker.server.scripts import FLAGS, SCRIPTS, digest
from kombu_redisdelay.broker.server.server import SlotUnavailable
from kombu_redisdelay.broker.server.single import Pool, SingleServer
from kombu_redisdelay.broker.server.wire import (
    KEYLESS,
    RELOCATIONS,
    Argument,
    Command,
    NothingDone,
    NotThePrimary,
    Packed,
    checked,
    first_key,
)

#: Seconds that a command waits for a slot that no server has now. A slot that moves is away for as long as
#: its keys take.
PATIENCE = 5.0

#: Seconds between two tries.
PAUSE = 0.05

#: A guarded script does not see its guard.
_PRELUDE = f"{FLAGS}KEYS[#KEYS] = nil\n"


class ClusterServer:
    """The :class:`~kombu_redisdelay.broker.server.server.Server` for a cluster.

    Arguments:
        nodes: the servers.
        like: a pool that connects as the connections to all of them do.
        max_connections: how many connections there may be to each of them, besides that of its line.
    """

    has_slots = True

    def __init__(self, nodes: Nodes, like: ConnectionPool, max_connections: int) -> None:
        self.nodes = nodes
        self._like = like
        self._max_connections = max_connections
        self._lock = Lock()
        self._hurry = local()
        self._servers: dict[Address, SingleServer] = {}
        self._ack_missed: AckMissed | None = None
        #: Acks that their server has refused, or whose server has left.
        self._relocated: list[Ack] = []
        #: Whether a connection has failed since the servers were found out.
        self._is_stale = False

    def slot(self, key: str) -> int:
        slot: int = key_slot(key.encode())
        return slot

    def address_of(self, key: str) -> Address:
        """The server that has *key*.

        Raises:
            ConnectionError: no server has it, or none can be reached.
        """
        if self._is_stale:
            self._find_out()
        return self.nodes.address_of(self.slot(key))

    def call(self, *command: Argument) -> Any:
        [reply] = checked(self.call_all(command))
        return reply

    def call_all(self, *commands: Command) -> list[Any]:
        """
        Raises:
            SlotUnavailable: no server has a slot. Commands for other slots may have been run.
        """
        patience = 0.0 if getattr(self._hurry, "is_on", False) else PATIENCE
        return self._call_all([guarded(command) for command in commands], patience)

    def try_packed(self, data: bytes, count: int) -> None:
        """Another server may have the slot."""

    def call_apart(self, *command: Argument) -> Any:
        return self.server_of(first_key(command)).call_apart(*guarded(command))

    def ack(self, ack: Ack) -> None:
        try:
            line = self.server_of(first_key(ack.command)).line
        except ConnectionError:
            # It is sent when there is a server again.
            self._relocated.append(ack)
        else:
            line.ack(ack)

    def is_at_hand(self, key: str) -> bool:
        if self._is_stale or not self.nodes.are_known:
            return False
        try:
            server = self._servers.get(self.nodes.address_of(self.slot(key)))
        except ConnectionError:
            return False
        return server is not None and server.is_at_hand(key)

    def after_acks(self, key: str) -> _AfterAcks:
        return _AfterAcks(self)

    def call_after_acks(self, command: Command) -> Any:
        """Run *command*, after all acks so far at its server.

        Raises:
            SlotUnavailable: no server has its slot. It does not wait for one.
        """
        command, key = guarded(command), first_key(command)
        try:
            try:
                return self.server_of(key).line.call(*command)
            except MovedError as exc:
                self.relocated(exc)
                return self.server_of(key).line.call(*command)
        except RELOCATIONS as exc:
            raise SlotUnavailable(str(exc)) from exc
        except (ConnectionError, TimeoutError):
            self._is_stale = True
            raise

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        before = getattr(self._hurry, "is_on", False)
        self._hurry.is_on = True
        try:
            yield
        finally:
            self._hurry.is_on = before

    def tell_missed_acks(self, to: AckMissed) -> None:
        self._ack_missed = to
        for server in list(self._servers.values()):
            server.tell_missed_acks(to)

    def confirm_acks(self) -> None:
        failures: dict[Address, Exception] = {}
        # What one server refuses must not hold up the others.
        refused: list[ResponseError] = []
        for address, server in list(self._servers.items()):
            try:
                server.confirm_acks()
            except (ConnectionError, TimeoutError) as exc:
                failures[address] = exc
            except ResponseError as exc:
                refused.append(exc)
        if failures:
            self._find_out()
        try:
            refused += self._send_relocated()
            for address in failures.keys() & self._servers.keys():
                raise failures[address]
            checked(refused)
        finally:
            # The errors refer to this frame, and the frame to the errors: this breaks the cycle.
            failures.clear()
            refused.clear()

    def new_connection(self, key: str) -> Any:
        return self.server_of(key).new_connection(key)

    def relocated(self, reply: ResponseError | NotThePrimary) -> None:
        if isinstance(reply, MovedError):
            self._find_out()
            self.nodes.note_move(reply.slot_id, Address(reply.host, reply.port))
        elif not isinstance(reply, AskError):
            self._is_stale = True

    def prepared(self, command: Command) -> Command:
        return guarded(command)

    def with_own_connections(self, *, socket_timeout: float) -> ClusterServer:
        like = Pool.like(self._like, socket_timeout=socket_timeout)
        return ClusterServer(self.nodes.copy(), like, max_connections=1)

    def servers(self) -> Sequence[SingleServer]:
        return [self._server_at(address) for address in self.nodes.primaries()]

    def server_of(self, key: str) -> SingleServer:
        return self._server_at(self.address_of(key))

    def doubt(self) -> None:
        # The connections stay: a server without a replica would end those to the others again and again.
        self._is_stale = True

    def disconnect(self) -> None:
        for server in list(self._servers.values()):
            server.disconnect()
        self.nodes.close()

    def _call_all(self, commands: Sequence[Command], patience: float) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        left = [index for index, command in enumerate(commands) if command[0] not in KEYLESS]
        until: float | None = None
        has_followed = False
        self._call_each(commands, left, replies)
        while left := [index for index in left if isinstance(replies[index], RELOCATIONS)]:
            relocations = [replies[index] for index in left]
            can_follow = not has_followed and any(isinstance(reply, AskError) for reply in relocations)
            now = monotonic()
            if until is None:
                # Not before: in a busy process, the first answer may have waited long to be read.
                until = now + patience
            if now >= until and not can_follow:
                # The next call must not ask the same server.
                self._is_stale = True
                raise SlotUnavailable(str(relocations[0]))
            has_followed = True
            self._follow(relocations)
            asked = [index for index in left if _is_ask(replies[index])]
            for index in asked:
                self._ask(commands, index, replies)
            self._call_each(commands, [index for index in left if index not in asked], replies)
        return replies

    def _call_each(self, commands: Sequence[Command], left: Sequence[int], replies: list[Any]) -> None:
        """Run those of *commands* that are *left*, one packet for each server, and note the replies."""
        if not left and not all(command[0] in KEYLESS for command in commands):
            return
        packets, failures = self._packets(commands, left)
        keyless = [index for index, command in enumerate(commands) if command[0] in KEYLESS]
        for address, indices in packets.items():
            each = sorted((*indices, *keyless))
            try:
                answers = self._server_at(address).call_all(*(commands[index] for index in each))
            except (ConnectionError, TimeoutError) as exc:
                # The other servers get their commands all the same. Leases would end there, for example.
                failures.append(exc)
            else:
                _note(commands, each, answers, replies)
        if failures:
            self._is_stale = True
            # Raise an error after which something may have been done, if there is one.
            failures.sort(key=lambda failure: isinstance(failure, NothingDone))
            try:
                raise failures[0]
            finally:
                # The error refers to this frame, and the frame to the error: this breaks the cycle.
                failures.clear()

    def _packets(
        self, commands: Sequence[Command], left: Sequence[int]
    ) -> tuple[dict[Address, list[int]], list[Exception]]:
        """For each server the indices of those of *commands* that are *left*, and the errors of those that no
        server takes."""
        packets: dict[Address, list[int]] = {}
        failures: list[Exception] = []
        for index in left:
            try:
                address = self.address_of(first_key(commands[index]))
            except ConnectionError as exc:
                failures.append(exc)
                if not self.nodes.are_known:
                    # The next one would get the same answer.
                    break
            else:
                packets.setdefault(address, []).append(index)
        if not left:
            packets[self.nodes.primaries()[0]] = []
        return packets, failures

    def _follow(self, relocations: Sequence[ResponseError]) -> None:
        """Find out where the slots are now, or wait a little."""
        for reply in {str(each): each for each in relocations}.values():
            self.relocated(reply)
        if not all(isinstance(reply, MovedError) for reply in relocations):
            sleep(PAUSE)

    def _ask(self, commands: Sequence[Command], index: int, replies: list[Any]) -> None:
        """Run one of *commands* at the server to which the slot moves, and note the reply."""
        server = self._server_at(Address(replies[index].host, replies[index].port))
        # Its replicas have to confirm it, too.
        waits = [at for at, command in enumerate(commands) if command[0] == "WAIT"]
        _, *answers = server.call_all(("ASKING",), commands[index], *(commands[at] for at in waits))
        _note(commands, [index, *waits], answers, replies)

    def _note_relocated(self, ack: Ack) -> None:
        self._relocated.append(ack)

    def _send_relocated(self) -> list[ResponseError]:
        """Send the acks that have no server to the server that has their keys now. Returns the errors; their
        acks are sent again."""
        with self._lock:
            acks, self._relocated = self._relocated, []
        if not acks:
            return []
        try:
            replies = self.call_all(*(ack.in_full for ack in acks))
        except BaseException:
            self._relocated += [ack._replace(again=True) for ack in acks]
            raise
        errors, missed = [], []
        for ack, reply in zip(acks, replies, strict=True):
            if isinstance(reply, ResponseError):
                errors.append(reply)
                self._relocated.append(ack._replace(again=True))
                continue
            if ack.told is not None:
                ack.told(reply)
            if reply == 0 and not ack.again:
                missed.append(ack)
        if self._ack_missed is not None:
            for queue in {ack.queue for ack in missed}:
                self._ack_missed(queue, [ack.tag for ack in missed if ack.queue == queue])
        return errors

    def _find_out(self) -> None:
        """Find out which servers there are. Acks that a server has not confirmed before it left are sent
        again."""
        self.nodes.find_out()
        self._is_stale = False
        primaries = self.nodes.primaries()
        with self._lock:
            left = [self._servers.pop(address) for address in list(self._servers) if address not in primaries]
        for server in left:
            self._relocated += server.line.take_unconfirmed()
            server.disconnect()

    def _server_at(self, address: Address) -> SingleServer:
        server = self._servers.get(address)
        if server is None:
            with self._lock:
                server = self._servers.get(address) or self._new_server(address)
                self._servers[address] = server
        return server

    def _new_server(self, address: Address) -> SingleServer:
        options = {"host": address.host, "port": address.port, **PARSER}
        pool = Pool.like(self._like, self._max_connections, **options)
        pool.line.ack_relocated = self._note_relocated
        server = SingleServer(pool)
        if self._ack_missed is not None:
            server.tell_missed_acks(self._ack_missed)
        return server


class _AfterAcks:
    """Calls :meth:`ClusterServer.call_after_acks`."""

    def __init__(self, server: ClusterServer) -> None:
        self._server = server

    def call(self, *command: Argument) -> Any:
        return self._server.call_after_acks(command)


def _note(
    commands: Sequence[Command], indices: Sequence[int], answers: Sequence[Any], replies: list[Any]
) -> None:
    """Note the *answers* of one of the servers to the commands at these *indices*."""
    with_keys = [
        reply for index, reply in zip(indices, answers, strict=True) if commands[index][0] not in KEYLESS
    ]
    has_done_nothing = bool(with_keys) and all(isinstance(reply, RELOCATIONS) for reply in with_keys)
    for index, reply in zip(indices, answers, strict=True):
        if commands[index][0] != "WAIT":
            replies[index] = reply
        elif not has_done_nothing and not isinstance(replies[index], ResponseError):
            # The fewest replicas that any of the servers has.
            both = (reply, replies[index])
            replies[index] = reply if None in both or isinstance(reply, ResponseError) else min(both)


def _is_ask(reply: object) -> bool:
    return isinstance(reply, AskError) and not isinstance(reply, MovedError)


def guarded(command: Command) -> Command:
    """The *command*, with one more key if it runs a script of ours: its guard, which keeps the script from
    running on half of a queue while its slot moves from one server to another.

    A slot is moved key by key. Meanwhile a server refuses a command with several keys if it does not have all
    of them: the caller is to try again. But a script also uses keys that it makes itself, and the server does
    not check these. The guard is a key of the same slot that never exists. So no server has all keys of a
    slot that moves, and each of them refuses the script until the slot has arrived.
    """
    match command[0]:
        case "EVALSHA" if str(command[1]) in SCRIPTS:
            return _with_guard(command, _guarded_sha(str(command[1])))
        case "EVAL" if digest(str(command[1])) in SCRIPTS:
            return _with_guard(command, _PRELUDE + str(command[1]))
        case "SCRIPT" if digest(str(command[2])) in SCRIPTS:
            return (*command[:2], _PRELUDE + str(command[2]))
    return command


def _with_guard(command: Command, script: str) -> Command:
    name, _, count, *rest = command
    key = first_key(command)
    if key.endswith(known_queues("")):
        # The script has no other key.
        return command
    keys = 1 if isinstance(rest[0], Packed) else int(count)  # type: ignore[arg-type]
    guard: Argument = _guard_of(key)
    return (name, script, int(count) + 1, *rest[:keys], guard, *rest[keys:])  # type: ignore[arg-type]


def _guard_of(key: str) -> str:
    """A key of ours that is in the slot of *key*, because it has the same queue in braces. A user that may
    use the keys of the queue may use it."""
    before, brace, rest = key.partition("{")
    if not brace or before.endswith("redisdelay:") or bindings(in_slots=True) in key:
        return key + ":never"
    # A ready list: the user of docs/permissions.rst may use no key beside it.
    return f"{before}redisdelay:{{{rest.rpartition('}')[0]}}}:never"


@cache
def _guarded_sha(sha: str) -> str:
    return digest(_PRELUDE + SCRIPTS[sha].text)
