"""What is counted of fair queues: how many messages of which key are unacked, and how many are sorted.

Where a concurrency of keys is limited, takes and acks count (lua/include/fair_unacked.lua). What was taken
before is counted once, and meanwhile nothing is taken. Who does not know yet that messages count may ack
without counting: so one consumer of the queue looks each second. What is wrong because a key was lost is put
right, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import uuid4

from redis.exceptions import ResponseError

from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.portions import (
    BYTES_PER_CALL,
    MESSAGES_PER_CALL,
    Chore,
    Doing,
    RoundTrips,
    Turn,
    Upkeep,
)
from kombu_redisdelay.broker.server.scripts import CHECK_KEYS, CLAIM, COUNT_KEYS, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import Command, answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import relisting

#: How many keys, and how many counted messages, one script looks at.
KEYS_PER_SCRIPT, COUNTED_PER_SCRIPT = 50, 100

#: How many queues are looked at each second, and how many such scripts look at counted messages of each.
QUEUES_PER_LOOK, SCRIPTS_PER_LOOK = 50, 10

#: How long a claim lasts, ms: to count what one consumer holds, and to look at what is counted.
COUNTS_FOR_MS, LOOKS_FOR_MS = 5000, 2000

#: Who counts.
PROCESS = uuid4().hex

#: Between a consumer and a delivery tag.
_BEFORE_TAG = b"\x1e"


def count_keys(store: Store, queue: str, who: str = PROCESS) -> RoundTrips[None]:
    """Count of which keys messages are unacked, if this has to be done (``lua/count_keys.lua``) and nobody
    else does it. Until it is done, nothing is taken from *queue*. If who counts dies, another one goes on
    when the claim has ended.

    Arguments:
        who: the one who counts.
    """
    keys = store.keys(queue)
    counting = store.server.call("HGET", keys.limits, "counting")
    if counting is None:
        return
    used = keys.limits, keys.wake
    for consumer in store.server.call("ZRANGE", keys.consumers, 0, -1):
        if not CLAIM(store.server, (keys.claim("counting"),), (who, COUNTS_FOR_MS)):
            return
        tags = store.server.call("HKEYS", keys.unacked(consumer.decode(errors="replace")))
        messages = [consumer + _BEFORE_TAG + tag for tag in tags]
        while messages:
            yield
            args = (counting, BYTES_PER_CALL, *messages[:MESSAGES_PER_CALL])
            done = COUNT_KEYS(store.server, used, args)
            if done < 0:
                return
            del messages[:done]
    COUNT_KEYS(store.server, used, (counting, BYTES_PER_CALL))


def look_at_counted(store: Store, queues: Sequence[str], begin_at: dict[str, bytes]) -> None:
    """Look whether some of the messages that are counted are still unacked. Makes two round trips.

    A consumer that has taken a message before messages counted may ack it without counting, and so does a
    program that knows no limits.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
    """
    keys = [store.keys(queue) for queue in queues]
    scans = [
        ("HSCAN", each.unacked_keys, begin_at.get(queue, b"0"), "COUNT", COUNTED_PER_SCRIPT)
        for queue, each in zip(queues, keys, strict=True)
    ]
    calls: list[ScriptCall] = []
    for queue, each, (cursor, found) in zip(queues, keys, answers(store.server, scans), strict=True):
        begin_at[queue] = cursor
        # Of a small hash, Redis returns all.
        messages = sorted(found[::2])
        for first in range(0, len(messages), COUNTED_PER_SCRIPT):
            some = messages[first : first + COUNTED_PER_SCRIPT]
            calls.append((COUNT_KEYS, (each.limits, each.wake), ("", BYTES_PER_CALL, *some)))
    run_each(store.server, calls)


def check_fair(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, bytes],
    searched: Collection[str] = (),
) -> RoundTrips[list[str]]:
    """Do what :func:`check_keys` does, for those of *queues* that are fair, and what :func:`count_keys` does
    where somebody has begun it and did not end it. What is sorted and not said to be fair is moved back.
    The arguments and the result are those of :func:`check_keys`."""
    commands: list[Command] = []
    for keys in map(store.keys, queues):
        commands += ("HMGET", keys.limits, "fair", "counting"), ("EXISTS", keys.fair)
    replies = store.server.call_all(*commands)
    fair, lost = [], []
    for queue, reply, has_sorted in zip(queues, replies[::2], replies[1::2], strict=True):
        if isinstance(reply, ResponseError):
            continue
        state, counting = reply
        if counting is not None:
            yield
            yield from count_keys(store, queue)
        if state is not None:
            fair.append(queue)
        elif has_sorted == 1:
            lost.append(queue)
    if lost:
        yield
        run_each(store.server, [relisting(store, queue, ()) for queue in lost])
    if not fair:
        return []
    yield
    return (yield from check_keys(store, fair, begin_at, searched))


def check_keys(
    store: Store,
    queues: Sequence[str],
    begin_at: dict[str, bytes],
    searched: Collection[str] = (),
) -> RoundTrips[list[str]]:
    """Look at some keys of those *queues*: let them go on that are not at a limit any more, and put right
    what is counted if keys in Redis were lost.

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
            (KEYS_PER_SCRIPT, begin_at.get(queue, b"0"), int(queue in searched), *store.steps),
        )
        for queue in queues
    ]
    to_search = []
    for queue, (cursor, differs, is_counting) in zip(queues, run_each(store.server, calls), strict=True):
        begin_at[queue] = cursor
        if differs:
            to_search.append(queue)
        if is_counting:
            yield
            yield from count_keys(store, queue)
    return to_search


def _checking(upkeep: Upkeep) -> Doing:
    begin_at: dict[str, bytes] = {}

    def check(turn: Turn) -> RoundTrips[None]:
        upkeep.lost.update((yield from check_fair(upkeep.store, turn.queues, begin_at)))

    return check


def _checking_searched(upkeep: Upkeep) -> Doing:
    def check(turn: Turn) -> RoundTrips[None]:
        searched = list(upkeep.searched)
        upkeep.searched.clear()
        if searched:
            yield from check_fair(upkeep.store, searched, {}, searched)

    return check


def _looking(upkeep: Upkeep) -> Doing:
    begin_at: dict[str, bytes] = {}
    #: Queue -> when to ask again for the claim.
    again_at: dict[str, float] = {}

    def look(queues: Sequence[str], now: float) -> RoundTrips[None]:
        server, keys = upkeep.store.server, upkeep.store.keys
        again_at.update(dict.fromkeys(queues, now + LOOKS_FOR_MS / 1000))
        states = server.call_all(*(("HGET", keys(queue).limits, "fair") for queue in queues))
        fair = [queue for queue, state in zip(queues, states, strict=True) if state == ON.encode()]
        yield
        args = (upkeep.recoverer.name, LOOKS_FOR_MS)
        replies = run_each(server, [(CLAIM, (keys(queue).claim("counted"),), args) for queue in fair])
        claimed = [queue for queue, is_ours in zip(fair, replies, strict=True) if is_ours]
        again_at.update(dict.fromkeys(claimed, now))
        for _ in range(SCRIPTS_PER_LOOK):
            if claimed:
                yield
                look_at_counted(upkeep.store, claimed, begin_at)
                claimed = [queue for queue in claimed if begin_at[queue] != b"0"]

    def begin(turn: Turn) -> RoundTrips[None] | None:
        now = upkeep.clock()
        limited = [queue for queue in upkeep.limited if queue in turn.all_queues]
        some = [queue for queue in limited if now >= again_at.get(queue, now)]
        # Of very many, those that were not looked at for longest.
        some.sort(key=lambda queue: again_at.get(queue, 0.0))
        return look(some[:QUEUES_PER_LOOK], now) if some else None

    return begin


CHORES = (
    Chore("let keys of fair queues go on", _checking),
    # Next after the search.
    Chore("count what a search has found", _checking_searched, is_for_all=True),
    # By one consumer of the queue. So a permit that was not given back is free a second later.
    Chore("look at what is counted of keys", _looking, seconds=1.0),
)
