"""What is not where it should be because keys in Redis were deleted or evicted, and how it is put right.

Workers put it right, too: in some seconds what they come across, and each hour what only a search of the
database finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from kombu_redisdelay.broker.fair_counts import check_fair
from kombu_redisdelay.broker.fair_keys import iter_keys, sorted_in
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import mend_schedules
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unlisted import Found, Unlisted, search

#: Keys of the database that are looked at without a change. A larger one takes too long.
MOST_LOOKED_AT = 1_000_000

#: How often a queue is recounted while workers take from it.
TRIES = 3

#: Keys of a fair queue that are recounted.
MOST_KEYS = 10_000


def unlisted(store: Store, names: Collection[str]) -> Found:
    """What no key lists any more of the queues or partitions *names*. Looks at :data:`MOST_LOOKED_AT` keys of
    the database, and changes nothing."""
    found = Found()
    for _ in search(store, found, names, only_looks=True):
        if found.keys >= MOST_LOOKED_AT:
            break
    return found


def mend(store: Store, options: Options, declared: Iterable[str]) -> Found:
    """List again what no key lists any more, schedule again what has lost its due time, and count anew what
    is sorted in in fair queues where that differs. Returns what was not listed.

    Arguments:
        declared: queues of the app. The known ones may have been lost, too.
    """
    found = Found()
    finish(search(store, found))
    names = store.partitions.all_names([*store.queues(), *declared, *found.queues])
    for name in names:
        if count := give_times(store, options, name):
            found.add(name, Unlisted(scheduled=count))
    miscounted_ones = [name for name in names if miscounted(store, name, MOST_KEYS)]
    finish(check_fair(store, miscounted_ones, {}, searched=miscounted_ones))
    return found


def lost_times(store: Store, name: str) -> int:
    """How many scheduled messages of a queue or partition have lost their due times, at least."""
    keys = store.keys(name)
    ids, messages = answers(store.server, [("ZCARD", keys.schedule), ("HLEN", keys.messages)])
    return max(0, int(messages - ids))


def give_times(store: Store, options: Options, name: str) -> int:
    """Give these messages the due times that they say. Returns how many they were."""
    return finish(mend_schedules(store, options, [name])) if lost_times(store, name) else 0


def miscounted(store: Store, name: str, most: int) -> Mapping[int, tuple[int, int]]:
    """The steps of a fair queue or partition *name* in which not so many messages have a turn, or wait at a
    limit, as is noted: priority step -> what is noted, and how many there are. Empty if it has more than
    *most* keys, or workers change it all the time."""
    for _ in range(TRIES):
        [noted] = sorted_in(store, [name])
        states = list(islice(iter_keys(store, name), most + 1))
        if len(states) > most:
            return {}
        found = {step: sum(state.ready.get(step, 0) for state in states) for step in store.steps}
        [again] = sorted_in(store, [name])
        counts = {step: (again.get(step, 0), found[step]) for step in store.steps}
        differing = {step: both for step, both in counts.items() if both[0] != both[1]}
        if not differing or noted == again:
            return differing
    return {}
