"""Fair queues: switched on and off while they run, and what an operator allows for their keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import OFF, ON, PLAIN, KeyLimits
from kombu_redisdelay.broker.limits import number_of
from kombu_redisdelay.broker.portions import BYTES_PER_CALL, MESSAGES_PER_CALL
from kombu_redisdelay.broker.server.scripts import (
    CHECK_KEYS,
    COUNT_KEYS,
    SET_KEY_LIMITS,
    SET_LIMITS,
    ScriptCall,
    run_each,
)
from kombu_redisdelay.broker.server.wire import Argument, Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import relisting, search_for

#: How many keys one script looks at.
KEYS_PER_SCRIPT = 50


#: The limits of every key, in the hash of the limits of a queue: in the order of :class:`KeyLimits`.
_FIELDS = ("key_concurrency", "key_interval_us", "key_burst")

#: State of a queue, as it is in Redis -> state.
_STATES: Mapping[bytes | None, str] = {state.encode(): state for state in (ON, OFF)}


class FairQueues:
    """Which of the queues in *store* are fair, and the limits of their keys. Each queue is a partition or has
    none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def switch_on(self, queues: Sequence[str]) -> None:
        """Make *queues* fair, from the next take on.

        Raises:
            ValueError: one of them was declared with ``x-expires``.
        """
        for queue in queues:
            if queue in self._store.expires_ms:
                raise ValueError(f"queue {queue!r} cannot be fair, because it is declared with 'x-expires'")
        self._set(queues, {"fair": ON})

    def switch_off(self, queues: Sequence[str]) -> None:
        """Make *queues* plain again. The takes move the messages back, and then a queue is plain. One without
        messages that are sorted in is plain at once. What has no turn, because a key was lost, is moved back,
        too: the database is searched for it."""
        # Also what another program has written there goes.
        fair = [queue for queue, state in zip(queues, self._states(queues), strict=True) if state is not None]
        for queue in fair:
            search_for(self._store, queue)
        self._set(fair, {"fair": OFF})

    def states(self, queues: Sequence[str]) -> list[str]:
        """:data:`ON`, :data:`OFF` or :data:`PLAIN` for each of *queues*."""
        return [_STATES.get(state, PLAIN) for state in self._states(queues)]

    def _states(self, queues: Sequence[str]) -> list[bytes | None]:
        """The same, as they are in Redis. Another program may have written anything."""
        commands = (("HGET", self._store.keys(queue).limits, "fair") for queue in queues)
        return list(answers(self._store.server, commands))

    def limits(self, queues: Sequence[str]) -> list[KeyLimits]:
        """The limits of every key of each of *queues*."""
        commands = (("HMGET", self._store.keys(queue).limits, *_FIELDS) for queue in queues)
        return [_limits_of(row) for row in answers(self._store.server, commands)]

    def limit(self, queues: Sequence[str], limits: KeyLimits) -> None:
        """Set the limits of every key of each of *queues*."""
        fields = {
            field: "" if value is None else repr(value) for field, value in zip(_FIELDS, limits, strict=True)
        }
        self._set(queues, fields)
        for queue in queues:
            self._look_at_all(queue)

    def limit_key(self, queue: str, key: str, limits: KeyLimits) -> None:
        """Set the limits that *key* has for itself."""
        self._set_key(queue, key, "", *(repr(value or 0) for value in limits))

    def pause_key(self, queue: str, key: str) -> None:
        """Have nothing of *key* taken."""
        self._set_key(queue, key, int(self._store.now_ms()))

    def resume_key(self, queue: str, key: str) -> None:
        """End the pause of *key*. Its limits stay."""
        self._set_key(queue, key, 0)

    def _set(self, queues: Sequence[str], fields: Mapping[str, str]) -> None:
        # Noted, so that they are shown though they may be empty.
        self._store.remember(*queues)
        args = [argument for field in fields.items() for argument in field]
        each = [self._store.keys(queue) for queue in queues]
        run_each(self._store.server, [(SET_LIMITS, (keys.limits, keys.wake), args) for keys in each])
        for queue in queues:
            count_keys(self._store, queue)

    def _set_key(self, queue: str, key: str, *values: Argument) -> None:
        self._store.remember(queue)
        keys = self._store.keys(queue)
        args = (key, *values, *([""] * (4 - len(values))))
        SET_KEY_LIMITS(self._store.server, (keys.limits, keys.wake), args)
        count_keys(self._store, queue)

    def _look_at_all(self, queue: str) -> None:
        begin_at: dict[str, tuple[bytes, bytes]] = {}
        while True:
            check_keys(self._store, [queue], begin_at)
            if begin_at[queue][1] == b"0":
                return


def count_keys(store: Store, queue: str) -> None:
    """Count of which keys messages are unacked, if this has to be done (``lua/count_keys.lua``)."""
    keys = store.keys(queue)
    counting = store.server.call("HGET", keys.limits, "counting")
    if counting is None:
        return
    used = (keys.limits, keys.wake)
    for consumer in store.server.call("ZRANGE", keys.consumers, 0, -1):
        tags = store.server.call("HKEYS", keys.unacked(consumer.decode(errors="replace")))
        while tags:
            args = (counting, BYTES_PER_CALL, consumer, *tags[:MESSAGES_PER_CALL])
            done = COUNT_KEYS(store.server, used, args)
            if done < 0:
                return
            del tags[:done]
    COUNT_KEYS(store.server, used, (counting, BYTES_PER_CALL, ""))


def check_fair(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, tuple[bytes, bytes]],
    searched: Collection[str] = (),
) -> list[str]:
    """Do what :func:`check_keys` does, for those of *queues* that are fair, and what :func:`count_keys` does
    where somebody has begun it and did not end it. What is sorted in and not said to be fair is moved back.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
        searched: as for :func:`check_keys`.

    Returns:
        The same as :func:`check_keys`.
    """
    commands: list[Command] = []
    for keys in map(store.keys, queues):
        commands += ("HMGET", keys.limits, "fair", "counting"), ("EXISTS", keys.fair)
    replies = store.server.call_all(*commands)
    fair, lost = [], []
    for queue, reply, has_sorted_in in zip(queues, replies[::2], replies[1::2], strict=True):
        if isinstance(reply, ResponseError):
            continue
        state, counting = reply
        if counting is not None:
            count_keys(store, queue)
        if state is not None:
            fair.append(queue)
        elif has_sorted_in == 1:
            lost.append(queue)
    run_each(store.server, [relisting(store, queue, ()) for queue in lost])
    return check_keys(store, fair, begin_at, searched) if fair else []


def check_keys(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, tuple[bytes, bytes]],
    searched: Collection[str] = (),
) -> list[str]:
    """Look at some keys of those *queues*: free what is counted of messages that are gone, let keys go on
    that are not at a limit any more, and put right what is counted if keys in Redis were lost. Makes one
    round trip, and more if what is unacked has to be counted.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
        searched: those that were searched for lists without a turn since the last call.

    Returns:
        Those of *queues* that have to be searched, because there may be lists without a turn.
    """
    calls: list[ScriptCall] = [
        (
            CHECK_KEYS,
            (store.keys(queue).limits, store.keys(queue).wake),
            (KEYS_PER_SCRIPT, *begin_at.get(queue, (b"0", b"0")), int(queue in searched), *store.steps),
        )
        for queue in queues
    ]
    to_search = []
    for queue, reply in zip(queues, run_each(store.server, calls), strict=True):
        unacked, limited, differs, is_counting = reply
        begin_at[queue] = unacked, limited
        if differs:
            to_search.append(queue)
        if is_counting:
            count_keys(store, queue)
    return to_search


def _limits_of(row: Sequence[Any]) -> KeyLimits:
    concurrency, interval, burst = map(number_of, row)
    return KeyLimits(
        concurrency=None if concurrency is None else int(concurrency),
        interval_us=interval,
        burst=None if burst is None or interval is None else int(burst),
    )
