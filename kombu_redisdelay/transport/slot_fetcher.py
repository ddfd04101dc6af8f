"""Asks the broker for messages of some queues: when, for how many, and over which connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import monotonic
from typing import Any

from kombu.utils.scheduling import priority_cycle
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.delivery import Request, Taken, Waiting
from kombu_redisdelay.broker.members import OURS
from kombu_redisdelay.broker.server.line import REST, is_open, re_authenticate
from kombu_redisdelay.broker.server.server import SlotUnavailable
from kombu_redisdelay.broker.server.wire import RELOCATIONS, NotThePrimary, pack
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE, Takes
from kombu_redisdelay.transport.consumed_queues import ConsumedQueues, PolledQueues, Tokenless, WaitingTasks

#: Seconds to wait after a request, if the next one would be for less than half of what may be held.
PAUSE = 0.001

#: How long a fetcher of a busy worker pauses at most, pause by pause, while each of them brings more room.
LONGEST_PAUSE = 0.01

#: A token that comes within this number of seconds may have been there before.
AT_ONCE = 0.002

#: With more queues than a take works on, a wait without a token is longer by this factor. After such a wait
#: the consumer looks at all queues, and a look at many queues is expensive for both sides.
LONGER = 2

#: Seconds to wait while a cluster moves the slot of the queues, or while no server has it.
RELOCATION_PAUSE = 0.2


#: Says for how many messages there is room now. It is called when a request is made: a look before the
#: request takes time, in which room may come.
Credit = Callable[[], int]


class SlotFetcher:
    """Asks for the messages of queues of one slot. On one Redis, these are all queues of a channel.

    There are two ways to ask, each over its own connection. :meth:`take` waits for the reply. :meth:`ask`
    sends a request over the poll connection and returns at once. It asks for messages or, if none are
    expected, for a wake-up. The poller tells when :meth:`answer` can read the reply.

    What was taken is returned, and the caller keeps it; ``None`` means that nothing was asked for. Every
    method that takes needs *credit*.

    Arguments:
        takes: makes the requests. Their queues are those of :meth:`consume_from`.
        consumed: the queues that the channel consumes from, those of other slots, too.
        cycle: kombu's, which says in which order these are taken from.

    Attributes:
        queues: the queues, in the order in which consuming began.
        client: of redis-py; its ``connection`` is the poll connection. ``None`` if the caller has to open one
            before it calls :meth:`ask`.
        expects_more: whether to ask for messages instead of a wake-up. True if more messages are ready, or if
            it is not known whether there are any.
        was_refused_to_wait: whether the latest error was the reply to a wait, not to a take.
    """

    def __init__(self, takes: Takes, consumed: ConsumedQueues, cycle: Any) -> None:
        self._takes = takes
        self._consumed = consumed
        self._cycle = cycle
        self._in_turn = not isinstance(cycle, priority_cycle)
        self.queues: Sequence[str] = ()
        self.client: Any = None
        self.expects_more = True
        self._polled = PolledQueues(consumed.callbacks)
        self._tokenless = Tokenless()
        self._waiting = WaitingTasks(lambda: consumed.known_tasks)
        #: When the latest request was sent over the poll connection, if it has no reply yet; seconds of the
        #: monotonic clock.
        self._sent_at: float | None = None
        #: What it was for, ``None`` if it was for a wake-up.
        self._asked_for: Request | None = None
        #: Seconds after which it has a reply at the latest.
        self._timeout = 0.0
        self._was_overdue = False
        self.was_refused_to_wait = False
        self._requested_at = float("-inf")
        #: Until when it pauses, seconds of the monotonic clock; and the room that there was before.
        self._pauses_until = float("-inf")
        self._room_before = 0
        self._rested_since = float("-inf")
        #: Until when nothing is asked, seconds of the monotonic clock.
        self._rests_until = float("-inf")

    def consume_from(self, queues: Sequence[str]) -> None:
        """Ask for the messages of these queues from now on."""
        for queue in set(self.queues).difference(queues):
            self._polled.forget(queue)
            self._tokenless.forget(queue)
        if not set(queues).issubset(self.queues):
            self._polled.look_soon()
            self.expects_more = True
        if queues != self.queues:
            self._takes.queues = queues
            self.queues = self._takes.queues

    def close(self) -> None:
        """Close the poll connection. A reply that is still on its way is lost."""
        self._sent_at = None
        client, self.client = self.client, None
        if client is not None and client.connection is not None:
            client.connection.disconnect()

    # -- taking ----------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is expected over the poll connection."""
        return self._sent_at is not None

    @property
    def is_taking(self) -> bool:
        """Whether a reply with messages is expected over the poll connection."""
        return self._sent_at is not None and self._asked_for is not None

    @property
    def has_waited(self) -> bool:
        """Whether the latest request over the poll connection was for a wake-up."""
        return self._asked_for is None

    @property
    def reserved(self) -> int:
        """How many messages may come with the reply that is expected."""
        return self._asked_for.limit if self._sent_at is not None and self._asked_for is not None else 0

    @property
    def has_polled(self) -> bool:
        """Whether any queue is known to have something ready."""
        return bool(self._polled)

    def pauses(self, room: int, longest: float) -> bool:
        """Whether the next request waits until there is more *room*: for :data:`PAUSE` after the latest one,
        and again as long as each pause has brought some, but not for more than *longest* seconds."""
        now = monotonic()
        if now < self._pauses_until:
            return True
        if room <= self._room_before or now - self._requested_at >= longest:
            return False
        self._room_before, self._pauses_until = room, now + PAUSE
        return True

    @property
    def is_resting(self) -> bool:
        """Whether nothing is asked now, because the cluster moves the slot or does not serve it, or the
        server refuses."""
        return monotonic() < self._rests_until

    def next_due(self) -> float | None:
        """Seconds until the next message is due, the fetcher has rested, or is to look for what came without
        a token; ``None`` for never."""
        rest = self._rests_until - monotonic()
        if rest > 0:
            return rest
        each = [due for due in (self._polled.next_due(), self._tokenless.next_look()) if due is not None]
        return min(each, default=None)

    def take_due(self, credit: Credit) -> Taken | None:
        """Take messages if some are due, or have come without a token."""
        if self.is_resting:
            return None
        has_room = credit() > 0
        # Also without room: what is due becomes ready.
        if self._polled.next_due() == 0 or (self.expects_more and has_room and not self.is_taking):
            return self.take(credit)
        if self._tokenless.next_look() == 0:
            return self._look_for_tokenless(credit, has_room)
        return None

    def take(self, credit: Credit, also_woken: bool = True) -> Taken | None:
        """Take as many messages as there is room for.

        Arguments:
            also_woken: whether to take also from queues that were woken, and are not known to be polled.
        """
        if self.is_taking:
            return self.answer(credit)
        try:
            request = self._request(credit, also_woken)
            if request.queues:
                return self._note(request, self._takes.take(request))
        except SlotUnavailable:
            self._rest()
        return None

    def longest_wait(self, timeout: float) -> float:
        """Seconds after which an answer to :meth:`ask` comes, even without a wake-up token."""
        return timeout * (LONGER if len(self.queues) > QUEUES_PER_TAKE else 1)

    def ask(self, credit: Credit, timeout: float) -> None:
        """Ask for messages or for a wake-up over the poll connection.

        Arguments:
            timeout: seconds after which the server answers even without a wake-up token. With many queues it
                takes longer, see :data:`LONGER`.
        """
        self._timeout = self.longest_wait(timeout)
        connection = self.client.connection
        try:
            self._asked_for = self._request(credit) if self.expects_more else None
        except SlotUnavailable:
            self._rest()
            return
        if self._asked_for is not None:
            command = self._takes.ask_for(self._asked_for)
        else:
            command = self._takes.wait(self._timeout)
        connection.send_packed_command((pack(*command),))
        self._was_overdue = False
        self._sent_at = monotonic()

    def answer(self, credit: Credit) -> Taken | None:
        """Read the reply that came over the poll connection. If it is a wake-up, take messages."""
        request, sent_at = self._asked_for, self._sent_at
        connection = self.client.connection
        reply = None
        try:
            reply = connection.read_response()
        except (*RELOCATIONS, NotThePrimary) as exc:
            self._takes.server.relocated(exc)
            self._rest()
            return None
        except ResponseError:
            if request is None:
                self.was_refused_to_wait = True
                raise
            # The take is made again below. It succeeds, or raises an error that says more.
        except (ConnectionError, TimeoutError, OSError):
            connection.disconnect()
            raise
        finally:
            self._sent_at = None
            self._rested_since = monotonic()
        re_authenticate(connection)
        if request is not None and reply is not None:
            return self._note(request, self._takes.taken(request, reply))
        if request is None and reply is not None:
            assert sent_at is not None
            return self._take_what_woke_us(credit, reply, was_there=monotonic() - sent_at < AT_ONCE)
        if request is None and not self._finds_something():
            return None
        return self.take(credit)

    def _take_what_woke_us(self, credit: Credit, reply: Any, was_there: bool) -> Taken | None:
        queue = self._takes.woken(reply)
        self._polled.woken(queue)
        self._tokenless.woken()
        # If a token was there at once, others may have been there, too: among them, the order counts.
        return self.take(credit, also_woken=was_there or queue not in self._consumed.callbacks)

    def _finds_something(self) -> bool:
        """Look at all queues. Returns whether there is something to take now. What is ready is taken soon, if
        no consumer that was woken takes it."""
        if not self.queues:
            return False
        try:
            with self._takes.server.hurrying():
                peek = self._takes.peek()
                if self._waiting.peeked(peek.any_unknown):
                    self._look_for_waiting()
        except SlotUnavailable:
            self._rest()
            return False
        self._polled.peeked(peek)
        self._tokenless.peeked(self.queues, peek.any_ready)
        return self._polled.has_any

    def _look_for_tokenless(self, credit: Credit, has_room: bool) -> Taken | None:
        """Take what has come without a token, if it is there now."""
        if has_room and not self.is_waiting:
            # It is about to wait. A loop that is busy with other slots may come here before that each time.
            self._tokenless.postpone()
            return None
        groups = self._tokenless.begin(self.queues)
        # Only a consumer that waits for tokens can tell which message has come without one.
        if not has_room or self.is_taking:
            return None
        try:
            with self._takes.server.hurrying():
                seen = self._takes.have_ready(groups)
                if seen and self.client.connection.can_read():
                    # It came with a token, which is here and was not read yet.
                    return self.answer(credit)
                ready = self._tokenless.looked(seen)
                if ready and len(self.queues) > QUEUES_PER_TAKE:
                    self._polled.found(self._takes.look([*dict.fromkeys(chain(*ready))]))
        except SlotUnavailable:
            self._rest()
            return None
        if not ready:
            return None
        taken = self.take(credit, also_woken=False)
        self._tokenless.found({each.queue for each in taken.deliveries} if taken is not None else ())
        return taken

    def _look_for_waiting(self) -> None:
        """Look for tasks that other workers did not know and this one does."""
        self._waiting.looked(self._takes.waiting_tasks(self._waiting.after))
        for queue in self._waiting.known:
            self._polled.woken(queue)

    def _request(self, credit: Credit, also_woken: bool = True) -> Request:
        self._requested_at = monotonic()
        self._pauses_until, self._room_before = self._requested_at + PAUSE, 0
        queues, consumed, in_turn = self.queues, self._consumed, self._in_turn
        if self._polled.needs_look(queues):
            with self._takes.server.hurrying():
                self._polled.looked(self._takes.look())
        if self._waiting.needs_look and queues:
            with self._takes.server.hurrying():
                self._look_for_waiting()
        order = self._cycle.consume(len(consumed.queues))
        if len(order) > len(queues):
            ours = frozenset(queues)
            order = [queue for queue in order if queue in ours]
        limit = credit()
        polled, others_wait = self._polled.choose(order)
        # In turn, those come first that wait already. A look finds the woken ones within a second.
        is_full = in_turn and others_wait
        return Request(
            queues if in_turn else order,
            limit,
            in_turn,
            no_ack=consumed.acked_at_once,
            polled=polled,
            also_woken=also_woken and limit > 0 and not is_full,
            known=self._known() if limit > 0 else {},
        )

    def _known(self) -> Mapping[str, Sequence[Waiting]]:
        """The tasks that this worker knows, and that wait in queues whose messages are held."""
        known, acked_at_once = self._waiting.known, self._consumed.acked_at_once
        return {queue: known[queue] for queue in known if queue not in acked_at_once}

    def _note(self, request: Request, taken: Taken) -> Taken:
        """Note what the reply to *request* has said. Returns what was taken."""
        self._polled.taken(request.polled or (), taken)
        if foreign := {each.queue for each in taken.deliveries if not each.payload.startswith(OURS)}:
            self._tokenless.found(foreign)
        elif taken.deliveries:
            self._tokenless.taken()
        # With few queues, the reply names all that have more. With more queues, others may have some, too.
        is_known = not request.limit and len(self.queues) <= QUEUES_PER_TAKE
        self.expects_more = bool(self._polled) or (not is_known and len(taken.deliveries) >= request.limit)
        return taken

    def _rest(self) -> None:
        """The cluster does not serve the slot here, or now. Ask again soon, over a new connection."""
        self.close()
        self.rest(RELOCATION_PAUSE)

    def rest(self, seconds: float) -> None:
        """Ask for nothing during so many *seconds*."""
        self.was_refused_to_wait = False
        self.expects_more = True
        self._rests_until = monotonic() + seconds

    # -- the poll connection ---------------------------------------------------------------------------

    def is_disconnected(self, connection: Any) -> bool:
        """Note that *connection* was closed, if it is the poll connection. Returns whether it is."""
        if self.client is None or self.client.connection is not connection:
            return False
        self._sent_at = None
        return True

    def see_that_poll_is_open(self) -> None:
        """Close the poll connection if the server has closed it while no reply was expected. The next wait
        opens it again."""
        connection = self.client and self.client.connection
        if connection is None or self.is_waiting or monotonic() - self._rested_since < REST:
            return
        if not is_open(connection):
            connection.disconnect()

    def is_silent(self, silence_limit: float) -> bool:
        """Whether the server owes an answer over the poll connection for so long that it counts as silent.

        Arguments:
            silence_limit: seconds that the answer may come late before the connection counts as lost.
        """
        if self._sent_at is None:
            return False
        overdue = monotonic() - self._sent_at > self._timeout + silence_limit
        # At the second check in a row, with a poll in between. The poll would have read a reply that was only
        # waiting to be read.
        is_silent, self._was_overdue = overdue and self._was_overdue, overdue
        return is_silent

    def has_been_silent(self, silence_limit: float) -> None:
        """Close the poll connection, which counts as lost.

        Raises:
            ConnectionError: always.
        """
        self.client.connection.disconnect()
        raise ConnectionError(f"no reply from Redis for {silence_limit:g} seconds")

    def is_excused(self) -> None:
        """Begin anew to count for how long the server owes an answer: it is there, and refuses."""
        self._sent_at = monotonic()
        self._was_overdue = False

    def ask_to_write(self) -> None:
        """Ask the server of the queues for something that needs the right to write, and changes nothing.

        Raises:
            RedisError: it refuses, or does not answer.
        """
        self._takes.ask_to_write()
