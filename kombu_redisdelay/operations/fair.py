"""Makes queues fair, and limits and pauses their keys, for all workers at once.

A queue with partitions is one queue here. Each partition is fair by itself, and each limit of a key counts in
each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu_redisdelay.broker import fair_keys
from kombu_redisdelay.broker.fair_keys import OFF, ON, PLAIN, KeyState, check_key, fair_key_of
from kombu_redisdelay.broker.limits import FairQueues, Limits
from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.server.wire import answers
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.operations.limits import AnyLimits, LimitChanges, changed_of_key
from kombu_redisdelay.operations.typed import fits
from kombu_redisdelay.public import public

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Stands for the key of messages without one: no key has quotation marks.
NO_KEY = '""'


@public
@dataclass(frozen=True, slots=True)
class KeyLimits(AnyLimits):
    """The limits of every key of a fair queue, or of one key. They hold for all workers together.

    Attributes:
        rate: how many messages of a key may be taken in which time, such as ``100/m``; ``None`` for any
            number.
        burst: with a rate, how many may be taken at once after a while without any; ``None`` without a rate.
        concurrency: how many messages of a key may be unacked; ``None`` for any number.
        paused_since: since when nothing of this key is taken, in UTC; ``None`` if it is not paused. Always
            ``None`` for every key.
        is_own: whether this key has a limit or a pause of its own. What it has not, is as for every key.
    """

    is_own: bool = False


#: Those of a key that has none of its own.
NO_LIMITS = KeyLimits()


def shown_key(key: str) -> str:
    """*key*, for people: in quotation marks if it is empty, or has spaces at its ends."""
    return key if key and key == key.strip() else f'"{key}"'


def written_key(text: str) -> str:
    """The key that a person has written, as it is or as :func:`shown_key` shows it."""
    is_shown = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1] if is_shown else text


def fits_key(key: str, pattern: str) -> bool:
    """Whether *key* fits *pattern*, which was checked: as it is, or as :func:`shown_key` shows it."""
    return fits(shown_key(key), pattern) or (key != "" and fits(key, pattern))


def said_of_key(key: str, headers: Mapping[str, Any]) -> str:
    """The key of a message for people, and what is wrong with its *headers*, if another transport has
    published it. Empty if it has no key."""
    try:
        fair_key_of(headers)
    except ValueError as exc:
        return f"{shown_key(key)} ({exc})"
    return shown_key(key) if key else ""


def make_fair(store: Store, queues: Iterable[str], app: Any = None) -> None:
    """Have workers serve the keys of *queues* in turn.

    Arguments:
        app: the Celery app, ``None`` if it is not known.

    Raises:
        ValueError: one of them is declared with ``x-expires``.
    """
    names = list(queues)
    for queue in names:
        if _expires(store, queue, app):
            raise ValueError(
                f"queue {queue!r} cannot be fair, because it is declared with 'x-expires': Redis would "
                "expire the list of each key by itself"
            )
    FairQueues(store).switch_on(store.partitions.all_names(names))


def make_plain(store: Store, queues: Iterable[str]) -> None:
    """Have workers move the messages of *queues* back, and then serve them in the order of their priority."""
    FairQueues(store).switch_off(store.partitions.all_names(queues))


def fair_states(store: Store, queues: Sequence[str]) -> list[str]:
    """``"on"`` for each of *queues* that is fair, ``"off"`` while its messages are moved back, else empty."""
    each = [store.partitions.names(queue) for queue in queues]
    states = iter(FairQueues(store).states([name for names in each for name in names]))
    return [together([next(states) for _ in names]) for names in each]


def together(states: Sequence[str]) -> str:
    """The state of a queue whose partitions have these."""
    return next((state for state in (ON, OFF) if state in states), PLAIN)


def limits_of_every_key(store: Store, queue: str) -> KeyLimits:
    """The limits of every key of *queue*."""
    [found] = FairQueues(store).limits(store.partitions.names(queue)[:1])
    return key_limits(found)


def limits_of_key(store: Store, queue: str, key: str) -> KeyLimits:
    """The limits that count for one key of *queue*.

    Raises:
        ValueError: *key* cannot be a key.
    """
    checked_key(key)
    name = store.partitions.names(queue)[0]
    [every], [state] = FairQueues(store).limits([name]), fair_keys.key_states(store, name, [key])
    return limits_of_state(every, state)


def own_limits_of_key(store: Store, queue: str, key: str) -> KeyLimits:
    """The same, but only the limits that the key has for itself."""
    checked_key(key)
    [state] = fair_keys.key_states(store, store.partitions.names(queue)[0], [key])
    return limits_of_state(fair_keys.StoredKeyLimits(), state)


def limits_of_state(every: fair_keys.StoredKeyLimits, state: KeyState) -> KeyLimits:
    """The limits that count for a key.

    Arguments:
        every: those of every key.
    """
    own = state.own
    counting = fair_keys.StoredKeyLimits(
        every.concurrency if own.concurrency is None else own.concurrency,
        *((every.interval_us, every.burst) if own.interval_us is None else (own.interval_us, own.burst)),
    )
    is_own = (own.concurrency, own.interval_us, state.paused_ms) != (None, None, None)
    return key_limits(counting, state.paused_ms, is_own)


def limit_keys(store: Store, queue: str, **changes: Unpack[LimitChanges]) -> None:
    """Change the limits of every key of *queue*: see :meth:`kombu_redisdelay.Queues.limit_keys`."""
    fair, names = FairQueues(store), store.partitions.names(queue)
    [before] = fair.limits(names[:1])
    fair.limit(names, changed_of_key(before, changes))


def limit_key(store: Store, queue: str, key: str, **changes: Unpack[LimitChanges]) -> None:
    """Change the limits of one key of *queue*: see :meth:`kombu_redisdelay.Queues.limit_key`."""
    checked_key(key)
    fair, names = FairQueues(store), store.partitions.names(queue)
    [before] = fair_keys.key_states(store, names[0], [key])
    changed = changed_of_key(before.own, changes)
    for name in names:
        fair.limit_key(name, key, changed)


def pause_key(store: Store, queue: str, key: str) -> None:
    """Have nothing of *key* taken.

    Raises:
        ValueError: *key* cannot be a key.
    """
    checked_key(key)
    for name in store.partitions.names(queue):
        FairQueues(store).pause_key(name, key)


def resume_key(store: Store, queue: str, key: str) -> None:
    """End the pause of *key*. Its limits stay.

    Raises:
        ValueError: *key* cannot be a key.
    """
    checked_key(key)
    for name in store.partitions.names(queue):
        FairQueues(store).resume_key(name, key)


def count_paused(store: Store, queue: str) -> tuple[int, int]:
    """How many keys of *queue* are paused, and how many ready messages they have, as far as these are sorted
    by key. Makes a few round trips for every 200 keys that have limits of their own."""
    states = [
        state for name in store.partitions.names(queue) for state in fair_keys.iter_paused_keys(store, name)
    ]
    return len({state.key for state in states}), sum(sum(state.ready.values()) for state in states)


def checked_key(key: str) -> str:
    """*key* as it is.

    Raises:
        ValueError: it cannot be a key.
    """
    check_key(key, "a key")
    return key


def key_limits(
    found: fair_keys.StoredKeyLimits, paused_ms: float | None = None, is_own: bool = False
) -> KeyLimits:
    """What the broker has found, as an operator sees it."""
    return KeyLimits(
        rate=Limits(interval_us=found.interval_us).rate,
        burst=None if found.interval_us is None else found.burst or 1,
        concurrency=found.concurrency,
        paused_since=None if paused_ms is None else from_ms(paused_ms),
        is_own=is_own,
    )


def is_declared_fair(queue: str, app: Any) -> bool:
    """Whether the app declares *queue* with ``x-fair``.

    Arguments:
        app: the Celery app, ``None`` if it is not known.
    """
    declared = _declared(queue, app)
    return declared is not None and bool((declared.queue_arguments or {}).get("x-fair"))


def _declared(queue: str, app: Any) -> Any:
    """The queue of kombu as the app declares it; ``None`` if it does not, or is not known."""
    return None if app is None else app.amqp.queues.get(queue)


def _expires(store: Store, queue: str, app: Any) -> bool:
    """Whether *queue* is declared with ``x-expires``, as far as the app knows, or a key in Redis tells."""
    declared = _declared(queue, app)
    if declared is not None and (declared.expires or "x-expires" in (declared.queue_arguments or {})):
        return True
    names = store.partitions.names(queue)
    keys = [key for name in names for key in (*store.ready_keys(name), store.keys(name).schedule)]
    return any(ttl > 0 for ttl in answers(store.server, (("PTTL", key) for key in keys)))
