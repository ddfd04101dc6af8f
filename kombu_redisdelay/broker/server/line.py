"""A kept connection: for commands, whose replies are waited for, and for acks, whose replies come later."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError

from kombu_redisdelay.broker.portions import portions
from kombu_redisdelay.broker.server.replies import checked, without_frames
from kombu_redisdelay.broker.server.wire import Argument, Command, pack

logger = logging.getLogger(__name__)

#: Seconds of rest after which a connection is looked at before it is used again: the server, or what is
#: between, may have closed it.
REST = 0.01

#: Bytes that are sent at a time. Each piece may take as long as the socket's timeout, on a slow line.
PIECE_BYTES = 64 * 1024

#: Replies to acks that may wait to be read, when nothing else makes us read them.
UNREAD_LIMIT = 256


class Ack(NamedTuple):
    """An ack that was not confirmed yet.

    Attributes:
        unacked_key: the hash that holds the message.
        again: it was sent before, over a connection that failed, and may have been done then.
    """

    queue: str
    unacked_key: str
    tag: str
    again: bool = False


class AckInVain(Protocol):
    """Called with a queue, and the tags of acks that found no message there."""

    def __call__(self, queue: str, tags: Sequence[str], /) -> object: ...


class Line:
    """A kept connection, which any number of threads use in turn.

    What redis-py does around a command (the pool, retries, metrics) takes about as long as the command, so
    what is sent for every message goes straight over this connection.

    An ack is written when :meth:`ack` returns: the server will do it, whatever becomes of this process. The
    replies to acks are read before the reply to the next command. What was not confirmed when the connection
    fails is sent again over the next one; to do it twice does no harm.

    Arguments:
        connect: makes a connection, which connects when it is first used.

    Attributes:
        ack_in_vain: who wants to know of acks that found no message, if anybody does.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self.connection = connect()
        self.ack_in_vain: AckInVain | None = None
        # Only ever taken by `with`. What a signal raises, Celery's soft time limit for one, comes between any
        # two instructions, and a lock that is held for ever would stop every thread.
        self._lock = Lock()
        self._used_at = float("-inf")
        #: Acks that are not confirmed, in the order in which they are sent.
        self._unconfirmed: deque[Ack] = deque()
        #: How many of these were written on the connection as it is.
        self._written = 0
        #: Acks in vain that nobody was told of yet.
        self._vain: list[Ack] = []
        self._is_telling = False

    def call(self, *command: Argument) -> Any:
        """Run *command*, and wait for other threads first.

        Returns:
            The reply as it came.

        Raises:
            RedisError: as redis-py does. Nothing is tried again: a message might be published twice.
        """
        with self._lock:
            replies = self._exchange([command])
        self._tell()
        try:
            [reply] = checked(replies)
        finally:
            del replies
        return reply

    def try_call_all(self, commands: Sequence[Command]) -> list[Any] | None:
        """Run *commands*, one after the other, in one round trip.

        Returns:
            The replies as they came; that of a command which the server refused is a ``ResponseError``.
            ``None`` if another thread uses the line: then nothing was done.

        Raises:
            RedisError: the connection failed.
        """
        if self._lock.locked():
            return None
        with self._lock:
            replies = self._exchange(commands)
        self._tell()
        return replies

    def ack(self, queue: str, unacked_key: str, tag: str) -> None:
        """Forget a message for good.

        If the connection fails, the ack is not lost with it: it is sent again before anything else is
        done over this line.
        """
        with self._lock:
            self._unconfirmed.append(Ack(queue, unacked_key, tag))
            try:
                # What was used just now need not be looked at: this is done for every message.
                if not self._written or monotonic() - self._used_at > REST:
                    self._make_ready()
                self._write_acks()
                if self._written >= UNREAD_LIMIT:
                    self._read_acks()
            except BaseException as exc:
                self._begin_again()
                if not isinstance(exc, (ConnectionError, TimeoutError)):
                    raise
                logger.warning("An ack was not confirmed and will be sent again: %s", exc)
        if self._vain:
            self._tell()

    def confirm_acks(self) -> None:
        """Wait until every ack so far was done.

        Raises:
            RedisError: the connection failed, or the server refused. They remain to be sent again.
        """
        with self._lock:
            try:
                self._make_ready()
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

    def lend(self) -> Any:
        """The connection, ready to be used, for somebody who may give it back; ``None`` if a thread uses it.

        Raises:
            RedisError: it cannot be made ready.
        """
        if self._lock.locked():
            return None
        with self._lock:
            try:
                self._make_ready()
                self._write_acks()
                self._read_acks()
                self.connection.connect()
            except BaseException:
                self._begin_again()
                raise
            lent, self.connection = self.connection, self._connect()
            self._used_at = float("-inf")
        self._tell()
        return lent

    def take_back(self, connection: Any) -> None:
        """Have a connection back that was lent. If another one was needed meanwhile, it is closed."""
        with self._lock:
            if self._written or self._used_at != float("-inf"):
                connection.disconnect()
            else:
                self.connection = connection
                self._used_at = monotonic()

    def disconnect(self) -> None:
        """Close the connection. The next command opens one again, and sends what was not confirmed."""
        with self._lock:
            self._begin_again()

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Write the acks and *commands*, and read all replies."""
        try:
            self._make_ready()
            self._write_acks()
            self._send(_pieces(commands))
            self._read_acks()
            replies = [_reply(self.connection) for _ in commands]
        except BaseException:
            # Whatever it was, Celery's soft time limit for one: nobody must read replies to others.
            self._begin_again()
            raise
        self._used_at = monotonic()
        return replies

    def _make_ready(self) -> None:
        """See that the connection is of use. In a rest, the server or what is between may have closed it."""
        is_rested = monotonic() - self._used_at > REST
        if self._written and is_rested and self.connection.can_read():
            # The replies that are owed, or the end, or both.
            try:
                self._read_acks()
            except (ConnectionError, TimeoutError):
                self._begin_again()
        if not self._written:
            if is_rested and not is_open(self.connection):
                self.connection.disconnect()
            re_authenticate(self.connection)

    def _write_acks(self) -> None:
        while self._written < len(self._unconfirmed):
            ack = self._unconfirmed[self._written]
            self._send([pack("HDEL", ack.unacked_key, ack.tag)])
            self._written += 1

    def _send(self, pieces: list[bytes]) -> None:
        # redis-py's health check would take the reply to an ack for the one to its PING.
        self.connection.send_packed_command(pieces, check_health=not self._written)

    def _read_acks(self) -> list[ResponseError]:
        """Read the replies that are to come. Returns those that are errors; their acks are sent again."""
        errors, refused = [], []
        while self._written:
            reply = _reply(self.connection)
            self._written -= 1
            ack = self._unconfirmed.popleft()
            if isinstance(reply, ResponseError):
                errors.append(reply)
                refused.append(ack._replace(again=True))
            elif not reply and not ack.again:
                self._vain.append(ack)
        self._unconfirmed.extendleft(reversed(refused))
        self._used_at = monotonic()
        return errors

    def _begin_again(self) -> None:
        """Something went wrong: leave the connection, and what was not confirmed to the next one."""
        self.connection.disconnect()
        # Who knows how much of the one that was being written got through.
        for index in range(min(self._written + 1, len(self._unconfirmed))):
            self._unconfirmed[index] = self._unconfirmed[index]._replace(again=True)
        self._written = 0

    def _tell(self) -> None:
        """Tell of acks in vain. Not with the lock: who is told uses the line, and may find others in vain."""
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._vain:
                vain, self._vain = self._vain, []
                if self.ack_in_vain is not None:
                    for queue in {ack.queue for ack in vain}:
                        self.ack_in_vain(queue, [ack.tag for ack in vain if ack.queue == queue])
        finally:
            self._is_telling = False


def is_open(connection: Any) -> bool:
    """Whether *connection*, on which nobody owes us anything, is of use: what can be read is the end."""
    try:
        return not connection.can_read()
    except (OSError, RedisError):
        return False


def re_authenticate(connection: Any) -> None:
    """Tell the server the credentials that a streaming provider has handed out since, if there are any. On
    *connection* nobody owes us anything."""
    if getattr(connection, "_re_auth_token", None) is None:
        return
    try:
        if connection._sock is not None:
            connection.re_auth()
            return
    except (RedisError, OSError) as exc:
        logger.warning("New credentials were refused, connecting again with the latest: %s", exc)
        connection.disconnect()
    # A connection that is made anew begins with the latest credentials.
    connection.set_re_auth_token(None)


def _pieces(commands: Sequence[Command]) -> list[bytes]:
    packed = [pack(*command) for command in commands]
    return [b"".join(piece) for piece in portions(packed, len, len(packed), PIECE_BYTES)]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return without_frames(exc)
