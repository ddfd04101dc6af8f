"""What is not where it should be, and how it is put right: keys in Redis were deleted or evicted, or a
producer has other options than the workers.

Workers put right what keys have lost, too: in some seconds what they come across, and each hour what only a
search of the database finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf

from kombu.utils.json import loads

from kombu_redisdelay.broker.bindings import Binding, bindings_of, separators
from kombu_redisdelay.broker.fair_counts import check_fair
from kombu_redisdelay.broker.fair_keys import iter_keys, sorted_by_key
from kombu_redisdelay.broker.keeping import trim
from kombu_redisdelay.broker.keys import ARCHIVED
from kombu_redisdelay.broker.message import check, eta_ms, message_id
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import mend_schedules
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.stranded import Destined, Stranded, StrandedLists
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
    is sorted by key in fair queues, and what is kept, where that differs. Returns what was not listed.

    Arguments:
        declared: queues of the app. The known ones may have been lost, too.
    """
    found = Found()
    finish(search(store, found))
    names = store.partitions.all_names([*store.queues(), *declared, *found.queues])
    for name in names:
        if count := give_times(store, options, name):
            found.add(name, Unlisted(scheduled=count))
        if count := lost_names(store, name):
            found.add(name, Unlisted(kept=count))
    finish(trim(store, None, names))
    miscounted_ones = [name for name in names if miscounted(store, name, MOST_KEYS)]
    finish(check_fair(store, miscounted_ones, {}, searched=miscounted_ones))
    return found


def lost_times(store: Store, name: str) -> int:
    """How many scheduled messages of a queue or partition have lost their due times, at least."""
    keys = store.keys(name)
    ids, messages = answers(store.server, [("ZCARD", keys.schedule), ("HLEN", keys.messages)])
    return max(0, int(messages - ids))


def lost_names(store: Store, name: str) -> int:
    """How many failed tasks and dead letters of a queue or partition no index lists any more, at least."""
    archives = [store.keys(name).archive(state) for state in ARCHIVED]
    looks = ((("ZCARD", keys.names), ("HLEN", keys.heads), ("HLEN", keys.messages)) for keys in archives)
    counts = iter(answers(store.server, [look for each in looks for look in each]))
    each = zip(counts, counts, counts, strict=True)
    return sum(max(0, heads - names, messages - names) for names, heads, messages in each)


def give_times(store: Store, options: Options, name: str) -> int:
    """Give these messages the due times that they say. Returns how many they were."""
    return finish(mend_schedules(store, options, [name])) if lost_times(store, name) else 0


def miscounted(store: Store, name: str, most: int) -> Mapping[int, tuple[int, int]]:
    """The steps of a fair queue or partition *name* in which not so many messages have a turn, or wait at a
    limit, as is noted: priority step -> what is noted, and how many there are. Empty if it has more than
    *most* keys, or workers change it all the time."""
    for _ in range(TRIES):
        [noted] = sorted_by_key(store, [name])
        states = list(islice(iter_keys(store, name), most + 1))
        if len(states) > most:
            return {}
        found = {step: sum(state.ready.get(step, 0) for state in states) for step in store.steps}
        [again] = sorted_by_key(store, [name])
        counts = {step: (again.get(step, 0), found[step]) for step in store.steps}
        differing = {step: both for step, both in counts.items() if both[0] != both[1]}
        if not differing or noted == again:
            return differing
    return {}


def stranded_lists(store: Store) -> StrandedLists:
    """The stranded messages of *store*."""
    return StrandedLists(store, partial(_destined, now_ms=store.now_ms()))


def find_stranded(
    store: Store, queues: Sequence[str], known: Collection[str], exchanges: Iterable[str]
) -> list[Stranded]:
    """The stranded lists of *queues*, by a number of commands that depends on the number of queues alone.

    Arguments:
        known: the names of all queues.
        exchanges: those whose bindings may tell a separator that is not common.
    """
    # On a cluster, the server of all bindings may be away.
    bindings: Iterable[Binding] = () if store.server.has_slots else bindings_of(store, exchanges)
    names = store.partitions.all_names(queues)
    # Due times do not matter, and a user may have no permission for the server's clock.
    lists = StrandedLists(store, partial(_destined, now_ms=inf))
    return list(lists.find(names, separators(store, bindings), {*names, *known}))


def options_for(store: Store, stranded: Sequence[Stranded]) -> str | None:
    """The transport options with which workers look at these lists, as Python; ``None`` if no options lead to
    all of them."""
    found = {each.separator for each in stranded}
    if len(found) != 1:
        return None
    [separator] = found
    is_ours = separator == store.separator
    steps = sorted({0, *(each.step for each in stranded), *(store.steps if is_ours else ())})
    return repr({**({} if is_ours else {"sep": separator}), "priority_steps": steps})


def _destined(entry: bytes, now_ms: float) -> Destined | None:
    try:
        message = check(loads(entry))
        message["properties"].setdefault("delivery_tag", "")
        due_ms = eta_ms(message["headers"])
        return Destined(message_id(message), due_ms if due_ms > now_ms else None)
    except Exception:
        # Foreign bytes may make the decoder raise any exception.
        return None
