"""A kept connection. It waits for the replies to commands, and reads the replies to acks later."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from threading import Lock, get_ident
from time import monotonic
from typing import Any, NamedTuple, Protocol

from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.server.small_replies import buffer_of, forget_read, small_reply
from kombu_redisdelay.broker.server.wire import (
    RELOCATIONS,
    Argument,
    Command,
    NothingDone,
    Unreachable,
    checked,
    pack,
    without_frames,
)
from kombu_redisdelay.refusals import refusal_of

logger = logging.getLogger(__name__)

#: A connection that was not used for this many seconds is checked before it is used again: the server, or
#: something on the way to it, may have closed it.
REST = 0.01

#: Replies to acks are read before the next ack if none were read for this number of seconds. Redis drops what
#: it has not read yet from a client that is killed while replies to it are unread.
READ_AFTER = 0.001

#: Seconds that :meth:`Line.is_at_hand` waits for another thread. A server that answers takes less.
AT_HAND_WITHIN = 0.1

#: Bytes that are sent at a time. The socket's timeout applies to each piece, so a slow network may take
#: longer for all of them.
PIECE_BYTES = 64 * 1024

#: How many replies to acks may wait to be read. The next command reads them earlier.
UNREAD_LIMIT = 256

#: Seconds for which a confirmed ack is kept, to be sent again: a failover, or a crash of the server, may undo
#: it. And how many are kept at most.
KEPT_FOR = 60.0
KEPT_LIMIT = 10_000


class AckReply(Protocol):
    """A callback for the reply to an ack. It must not use the line."""

    def __call__(self, reply: Any, /) -> object: ...


class Ack(NamedTuple):
    """An ack that is not confirmed yet.

    Attributes:
        command: does it. The reply is 0 if the message was not held.
        again: whether it was sent before, and the server may have done it then.
        script: the text of the script that *command* runs, for a server that lacks it; empty if it runs none
            by its digest.
        is_once: whether it is not sent again once it is confirmed: to do it twice would do harm.
        told: called with the reply.
        packed: *command* as it is sent, if its maker has packed it.
    """

    queue: str
    tag: str
    command: Command
    again: bool = False
    script: str = ""
    is_once: bool = False
    told: AckReply | None = None
    packed: bytes = b""

    @property
    def in_full(self) -> Command:
        """The command for a server that lacks the script."""
        return ("EVAL", self.script, *self.command[2:]) if self.script else self.command


class AckMissed(Protocol):
    """A callback for acks that found no message: called with their queue and their delivery tags."""

    def __call__(self, queue: str, tags: Sequence[str], /) -> object: ...


class Line:
    """A kept connection, which any number of threads use in turn.

    What redis-py does around a command (the pool, retries, metrics) takes about as long as the command. So
    the commands that are sent for every message go straight over this connection.

    An ack has been written when :meth:`ack` returns: the server will do it, even if this process dies. The
    replies to acks are read before the reply to the next command. If the connection fails, the acks that are
    not confirmed are sent again over the next one. So are those that were confirmed lately: the server behind
    the next connection may be another one, or an earlier state of the same. An ack that is done twice does no
    harm.

    Arguments:
        connect: makes a connection, which connects when it is first used.

    Attributes:
        ack_missed: called for acks that found no message; ``None`` to ignore them.
        ack_relocated: called for an ack that another server of the cluster has to do. It must not use the
            line.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self.connection = connect()
        self.ack_missed: AckMissed | None = None
        self.ack_relocated: Callable[[Ack], object] | None = None
        # Always taken by `with`. A signal handler may raise between any two instructions, as Celery's soft
        # time limit does, and a lock that is never released would stop every thread.
        self._lock = Lock()
        #: The thread that has the lock, or had it last.
        self._user = 0
        #: Whether that thread only writes an ack, so it is worth while to wait for it.
        self._is_brief = False
        self._used_at = float("-inf")
        #: Acks that are not confirmed, in the order in which they are sent.
        self._unconfirmed: deque[Ack] = deque()
        #: How many of these were written to the current connection.
        self._written = 0
        #: Acks that were confirmed lately, each with the time of the monotonic clock.
        self._confirmed: deque[tuple[float, Ack]] = deque(maxlen=KEPT_LIMIT)
        #: The socket that confirmed them. A new connection has another one.
        self._socket: Any = None
        #: The digests of scripts that acks have run over the connection with this socket: the server knows
        #: them.
        self._known: tuple[Any, set[Argument]] = (None, set())
        #: Acks that found no message, and that were not reported yet.
        self._missed: list[Ack] = []
        self._is_telling = False

    def call(self, *command: Argument) -> Any:
        """Run *command*, after waiting for other threads.

        Returns:
            The reply as it came.

        Raises:
            RedisError: as redis-py does. Nothing is tried again, because that might publish a message twice.
        """
        with self._lock:
            self._begin()
            replies = self._exchange(_pieces([command]), 1)
        self._tell()
        try:
            [reply] = checked(replies)
        finally:
            del replies
        return reply

    def try_call_all(self, commands: Sequence[Command]) -> list[Any] | None:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies as they came. If the server refused a command, its reply is a ``ResponseError``.
            ``None`` if another thread uses the line: then nothing was done.

        Raises:
            RedisError: the connection failed.
        """
        if self._lock.locked() and not self._is_brief:
            return None
        with self._lock:
            self._begin()
            replies = self._exchange(_pieces(commands), len(commands))
        self._tell()
        return replies

    def try_packed(self, data: bytes, count: int) -> list[Any] | None:
        """As :meth:`try_call_all`, for *count* commands that are packed together."""
        if self._lock.locked() and not self._is_brief:
            return None
        pieces = [data] if len(data) <= PIECE_BYTES else _cut(data)
        with self._lock:
            self._user, self._is_brief = get_ident(), False
            replies = self._exchange(pieces, count)
        if self._missed:
            self._tell()
        return replies

    def ack(self, ack: Ack) -> None:
        """Forget a message for good.

        If the connection fails, the ack is not lost: it is sent again before anything else is done over
        this line.
        """
        with self._lock:
            self._user, self._is_brief = get_ident(), True
            self._unconfirmed.append(ack)
            try:
                # This runs for every message, so a connection that has just been used is not checked.
                if not self._written or monotonic() - self._used_at > READ_AFTER:
                    self._make_ready()
                self._write_acks()
                if self._written >= UNREAD_LIMIT:
                    self._read_acks()
            except BaseException as exc:
                self._begin_again()
                if not isinstance(exc, (ConnectionError, TimeoutError)):
                    raise
                logger.warning("An ack was not confirmed and will be sent again: %s", exc)
        if self._missed:
            self._tell()

    def is_at_hand(self) -> bool:
        """Whether :meth:`ack` can write now, without waiting for a connection, for replies or for another
        thread. Reads the replies that have come. Waits for :data:`AT_HAND_WITHIN` at most.

        It is for the thread or greenlet of a task: the task must not wait for a server that does not answer,
        and a time limit of gevent that interrupts this has interrupted nothing.
        """
        # Not by `with`, which has no timeout. No signal handler of a Celery worker raises in a task's thread.
        if not self._lock.acquire(timeout=AT_HAND_WITHIN):
            return False
        try:
            self._user, self._is_brief = get_ident(), True
            if 0 < self._written < UNREAD_LIMIT - 1 and monotonic() - self._used_at <= READ_AFTER:
                # As for ack: a connection that has just been used is not checked.
                return self.connection._sock is not None and not self._missed
            return self._is_ready()
        finally:
            self._lock.release()

    def confirm_acks(self) -> None:
        """Wait until the server has done every ack so far.

        Raises:
            RedisError: the connection failed, or the server refused an ack. The acks that are not confirmed
                will be sent again.
        """
        with self._lock:
            self._begin()
            try:
                self._make_ready()
                self._write_acks()
                refused = self._read_acks()
                if self._unconfirmed and not refused:
                    # The server lacked the script of some.
                    self._write_acks()
                    refused = self._read_acks()
            except BaseException:
                self._begin_again()
                raise
        self._tell()
        try:
            checked(refused)
        finally:
            del refused

    def take_unconfirmed(self) -> list[Ack]:
        """Close the connection for good. Returns the acks that are to be sent to another server."""
        with self._lock:
            self._begin()
            self._begin_again()
            self._repeat_latest()
            acks = list(self._unconfirmed)
            self._unconfirmed.clear()
        return acks

    def lend(self) -> Any:
        """Lend the connection, ready to be used; ``None`` if a thread uses it. The borrower may give it back
        with :meth:`take_back`.

        Raises:
            RedisError: it cannot be made ready.
        """
        if self._lock.locked() and not self._is_brief:
            return None
        with self._lock:
            self._begin()
            try:
                self._make_ready()
                self._write_acks()
                self._read_acks()
            except BaseException:
                self._begin_again()
                raise
            lent, self.connection = self.connection, self._connect()
            self._used_at = float("-inf")
        self._tell()
        return lent

    def take_back(self, connection: Any) -> None:
        """Take back a connection that was lent. It is closed if the line has used another one meanwhile."""
        with self._lock:
            self._begin()
            if self._written or self._used_at != float("-inf"):
                connection.disconnect()
            else:
                self.connection = connection
                self._used_at = monotonic()

    def disconnect(self) -> None:
        """Close the connection. The next command opens one again, and sends the unconfirmed acks first.

        A signal handler may call this in the middle of whatever its thread does with the line: that of Celery
        beat does, and raises. To wait for the lock would be to wait for ever. What was interrupted closes the
        connection when the handler raises, and keeps it when the handler returns.
        """
        if self._lock.locked() and self._user == get_ident():
            return
        with self._lock:
            self._begin()
            self._begin_again()

    def _begin(self) -> None:
        self._user, self._is_brief = get_ident(), False

    def _exchange(self, pieces: list[bytes], count: int) -> list[Any]:
        """Write the acks and the *pieces* of *count* commands, and read all replies."""
        replies: list[Any] = []
        try:
            self._make_ready()
            if self._unconfirmed:
                self._write_acks()
            # As for acks, no health check while replies are unread.
            self.connection.send_packed_command(pieces, check_health=not self._written)
            if self._written:
                self._read_acks()
            else:
                self._socket = self.connection._sock
            _read(self.connection, count, replies)
        except BaseException as exc:
            # Whatever was raised, even Celery's soft time limit: the next command must not read our replies.
            self._begin_again()
            if isinstance(exc, NothingDone) and replies:
                # The commands before have been done.
                raise ConnectionError(str(exc)) from exc
            raise
        self._used_at = monotonic()
        return replies

    def _make_ready(self) -> None:
        """Make sure that the connection works. It may have been closed while it was not used.

        Raises:
            Unreachable: there is none, and none can be made.
        """
        rest = monotonic() - self._used_at
        if self._written and rest > READ_AFTER:
            try:
                self._read_what_has_come()
            except (ConnectionError, TimeoutError):
                self._begin_again()
        if not self._written:
            if rest > REST and not is_open(self.connection):
                self.connection.disconnect()
            re_authenticate(self.connection)
            connect(self.connection)
            if self.connection._sock is not self._socket:
                self._repeat_latest()

    def _is_ready(self) -> bool:
        connection = self.connection
        if connection._sock is None or getattr(connection, "_re_auth_token", None) is not None:
            return False
        try:
            if not self._read_what_has_come() and not self._written and not is_open(connection):
                # A caller that may wait connects again.
                self._begin_again()
                return False
        except BaseException as exc:
            self._begin_again()
            if not isinstance(exc, (ConnectionError, TimeoutError)):
                raise
            return False
        self._used_at = monotonic()
        # Acks that found nothing have to be reported, which takes round trips.
        return self._written < UNREAD_LIMIT - 1 and not self._missed

    def _read_what_has_come(self) -> bool:
        """Read the replies to acks that are there. Returns whether there were any. The end of the connection
        is an error."""
        written = self._written
        if written and self.connection.can_read():
            self._read_acks(wait=False)
        return self._written < written

    def _write_acks(self) -> None:
        unread, count = self._written, len(self._unconfirmed)
        if unread == count:
            return
        # Counted first: if this fails, the server may have done any of them.
        self._written = count
        if unread == count - 1:
            ack = self._unconfirmed[-1]
            pieces = [ack.packed or pack(*self._to_send(ack))]
        else:
            acks = islice(self._unconfirmed, unread, None)
            pieces = _pieces([self._to_send(ack) for ack in acks])
        # While replies to acks are unread, redis-py's health check would mistake one for that to its PING.
        self.connection.send_packed_command(pieces, check_health=not unread)

    def _to_send(self, ack: Ack) -> Command:
        """The command of *ack*. The first one over a connection has the text of its script: the server may
        lack it, and it would be long until its reply is read if nothing is sent behind it."""
        if not ack.script:
            return ack.command
        socket, known = self._known
        if socket is not self.connection._sock:
            self._known = _, known = self.connection._sock, set()
        digest = ack.command[1]
        if digest in known:
            return ack.command
        known.add(digest)
        return ack.in_full

    def _read_acks(self, *, wait: bool = True) -> list[ResponseError]:
        """Read the replies to acks that were written. Without *wait*, read only those that have come. Returns
        the errors; their acks are sent again."""
        errors, now = [], monotonic()
        received = buffer_of(self.connection)
        for _ in range(self._written):
            reply = None if received is None else small_reply(received)
            if reply is None:
                if not wait and not self.connection.can_read():
                    break
                reply = _reply(self.connection)
            self._written -= 1
            ack = self._unconfirmed.popleft()
            if reply == 1 and ack.told is None and not ack.is_once:
                # Nearly all.
                self._confirmed.append((now, ack))
                continue
            if isinstance(reply, RELOCATIONS) and self.ack_relocated is not None:
                self.ack_relocated(ack)
                continue
            if isinstance(reply, NoScriptError) and ack.script:
                # Not sent at once: a command may have been written already, and its reply comes next.
                self._unconfirmed.append(ack._replace(command=ack.in_full, script=""))
                continue
            if isinstance(reply, ResponseError):
                errors.append(reply)
                self._unconfirmed.append(ack._replace(again=True))
                continue
            if not ack.is_once:
                self._confirmed.append((now, ack))
            if ack.told is not None:
                ack.told(reply)
            if not reply and not ack.again:
                self._missed.append(ack)
        if received is not None:
            forget_read(self.connection)
        self._used_at = monotonic()
        self._socket = self.connection._sock
        return errors

    def _begin_again(self) -> None:
        """Close the connection, and leave the unconfirmed acks to the next one."""
        self.connection.disconnect()
        for index in range(self._written):
            self._unconfirmed[index] = self._unconfirmed[index]._replace(again=True)
        self._written = 0

    def _repeat_latest(self) -> None:
        """Before a new connection is used, take the latest acks for unconfirmed."""
        since = monotonic() - KEPT_FOR
        latest = [ack._replace(again=True) for at, ack in self._confirmed if at > since]
        self._confirmed.clear()
        self._unconfirmed.extendleft(reversed(latest))

    def _tell(self) -> None:
        """Report acks that found no message. Call it without the lock: the callback uses the line, which
        may find more such acks."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._missed:
                missed, self._missed = self._missed, []
                if self.ack_missed is not None:
                    for queue in {ack.queue for ack in missed}:
                        self.ack_missed(queue, [ack.tag for ack in missed if ack.queue == queue])
        finally:
            self._is_telling = False


def connect(connection: Any) -> None:
    """Connect *connection*, unless it is connected.

    Raises:
        Unreachable: that is not possible now.
        RedisError: the server was reached, and refuses.
    """
    if connection._sock is not None:
        return
    try:
        connection.connect()
    except (ConnectionError, TimeoutError) as exc:
        # Others say more: a wrong password, or what the sentinels have answered.
        if type(exc) not in (ConnectionError, TimeoutError, BusyLoadingError):
            raise
        where = dict(connection.repr_pieces())
        address = where.get("path") or f"{where['host']}:{where['port']}"
        raise Unreachable(f"{address} cannot be connected to: {exc}", refusal_of(exc)) from exc


def is_open(connection: Any) -> bool:
    """Whether *connection* still works, and leads to where it should. No reply may be outstanding on it: if
    something can be read, it is the end of the connection."""
    if connection._sock is None:
        # To look whether there is something to read, redis-py would connect.
        return False
    try:
        return not connection.can_read() and not getattr(connection, "has_moved", bool)()
    except (OSError, RedisError):
        return False


def re_authenticate(connection: Any) -> None:
    """Send the server the new credentials of a streaming credential provider, if there are any. No reply may
    be outstanding on *connection*."""
    if getattr(connection, "_re_auth_token", None) is None:
        return
    try:
        if connection._sock is not None:
            connection.re_auth()
            return
    except (RedisError, OSError) as exc:
        logger.warning("New credentials were refused, connecting again with the latest: %s", exc)
        connection.disconnect()
    # A new connection begins with the latest credentials.
    connection.set_re_auth_token(None)


def _pieces(commands: Sequence[Command]) -> list[bytes]:
    packed = [pack(*command) for command in commands]
    return [b"".join(piece) for piece in portions(packed, len, len(packed), PIECE_BYTES)]


def _cut(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def _read(connection: Any, count: int, replies: list[Any]) -> None:
    """Append the next *count* replies to *replies*."""
    received = None
    for _ in range(count):
        reply = None if received is None else small_reply(received)
        if reply is None:
            reply = _reply(connection)
            received = buffer_of(connection) if count > 1 else None
        replies.append(reply)
    if received is not None:
        forget_read(connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return without_frames(exc)
