"""Finds ready messages where no worker looks, because their producer has another ``sep`` or other
``priority_steps``, and says which options bring them back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from math import inf

from kombu.utils.json import loads

from kombu_redisdelay.broker.bindings import Binding, bindings_of, separators
from kombu_redisdelay.broker.message import check, eta_ms, message_id
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.stranded import Destined, Stranded, StrandedLists


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
