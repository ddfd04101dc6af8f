"""One task for each key: what a message says of its key, and what becomes of it when it is published.

A message of its queue holds the key. The scripts that move the message also move the key
(lua/include/unique.lua), so no lock stays behind when a message is cancelled or a worker dies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dateutil.parser import isoparse

from kombu_redisdelay.broker.keys import RedisKeys
from kombu_redisdelay.broker.members import UNIQUE_BEGINS, UNIQUE_WITHIN, check_size
from kombu_redisdelay.broker.message import DELAY_HEADER, ETA_HEADER, Due, from_ms, message_id, to_ms
from kombu_redisdelay.broker.portions import Chore, Doing, Upkeep
from kombu_redisdelay.broker.publish_calls import Bindings, Call, only_if
from kombu_redisdelay.broker.server.scripts import CHECK_UNIQUE, PUBLISH_UNIQUE, ScriptCall, run_each
from kombu_redisdelay.broker.server.wire import PackedKeys, answers
from kombu_redisdelay.broker.store import Store

#: Header that has the key: a text.
UNIQUE_HEADER = "x-unique"

#: Header that has the mode: one of the three below. Without it, it is :data:`WAITING`.
WHILE_HEADER = "x-unique-while"

#: Header that says, with :data:`LATEST`, for how many seconds after it was first published newer messages may
#: postpone a message; if it is due later than that, they cannot postpone it.
AT_MOST_HEADER = "x-unique-at-most"

#: A message is dropped while another one is scheduled or ready.
WAITING = "waiting"
#: A message is dropped until another one is acked or given up.
DONE = "done"
#: One message is ready or being handled, and one is next. The newest body and time win.
LATEST = "latest"
MODES = (WAITING, DONE, LATEST)

#: Celery's headers, and options, of a task that publishes itself again, as ``retry()`` and ``replace()`` do.
CONTINUED = ("retries", "replaced_task_nesting")

#: Keys of messages that one script checks.
CHECKED_PER_SCRIPT = 100

#: The longest key, in bytes.
LONGEST_KEY = 256

#: What became of a message that met another one with its key.
DROPPED, REPLACED = "dropped", "replaced"

#: The member of a message. The group is the key as scripts read it.
_MEMBER = re.compile(rb'"redisdelay-unique": \["[dl]", "[ !#-~]*", "([ !#-~]*)"\]')

#: The same, whatever the mode is. The group is the id.
_ID = re.compile(rb'"redisdelay-unique": \["[wdl]", "([ !#-~]*)", "[ !#-~]*"\]')

#: What errors say of the headers.
_KEY, _WHILE, _AT_MOST = (f"header {name!r}" for name in (UNIQUE_HEADER, WHILE_HEADER, AT_MOST_HEADER))

#: A key that is written as it is: ASCII without the characters that are escaped.
_AS_IT_IS = re.compile(r'[^%"\\\x80-\U0010ffff]*')

#: An id that can have a key.
_ID_WITH_KEY = re.compile(r"[!#-\[\]-~]+")

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")


class UniqueKey(NamedTuple):
    """The key of a message.

    Attributes:
        key: as the application knows it.
        mode: one of :data:`MODES`.
        at_most_ms: for how long after its first publish newer messages may postpone it, ms; 0 for no limit.
        expires_ms: when the message expires, ms since the epoch: from then on it holds no key; 0 for never.
    """

    key: str
    mode: str
    at_most_ms: float = 0
    expires_ms: float = 0

    @property
    def letter(self) -> str:
        """The mode as scripts know it."""
        return self.mode[0]

    @property
    def field(self) -> str:
        """The key as it is in Redis: ASCII, without what ends a text of JSON."""
        return written(self.key)

    def member(self, id: str) -> str:
        """What the message with this *id*, which has passed :func:`check_id`, says of it, as JSON."""
        return f'["{self.letter}", "{id}", "{self.field}"]'


def written(key: str) -> str:
    """*key* as it is in Redis."""
    if _AS_IT_IS.fullmatch(key):
        return key
    return json.dumps(key.replace("%", "%25").replace('"', "%22").replace("\\", "%5C"))[1:-1]


def read(text: str) -> str:
    """The key that :func:`written`, or the member of a message, has as *text*."""
    return text.replace("%22", '"').replace("%5C", "\\").replace("%25", "%")


def unique_of(headers: Mapping[str, Any]) -> UniqueKey | None:
    """What the *headers* of a message say of its key; ``None`` if it has none.

    Raises:
        ValueError: a header is invalid. The error names it and the value.
    """
    key = headers.get(UNIQUE_HEADER)
    if key is None:
        for name in (WHILE_HEADER, AT_MOST_HEADER):
            if headers.get(name) is not None:
                raise ValueError(f"header {name!r} needs header {UNIQUE_HEADER!r}")
        return None
    check_key(key, _KEY)
    mode = headers.get(WHILE_HEADER, WAITING)
    check_mode(mode, _WHILE)
    at_most = headers.get(AT_MOST_HEADER)
    if at_most is not None:
        check_at_most(at_most, mode, _AT_MOST)
    # What JSON makes of it: a member of an enumeration of texts may be formatted as its name.
    return UniqueKey(str.__str__(key), mode, (at_most or 0) * 1000, expires_ms(headers))


def is_continued(headers: Mapping[str, Any]) -> bool:
    """Whether a message with these *headers* is of a task that has published itself again. It has begun, so
    no newer message replaces it."""
    return any(map(headers.get, CONTINUED))


def check_key(key: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *key* cannot be a key."""
    if isinstance(key, str) and 0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable():
        # Most keys. What follows takes five times as long.
        return
    if not isinstance(key, str) or not key:
        raise ValueError(f"{what} must be a text that is not empty, not {key!r}")
    if _UNPRINTABLE.search(key):
        raise ValueError(f"{what} must have no control characters: {key!r}")
    check_size(key, LONGEST_KEY, what)


def check_mode(mode: object, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *mode* is no mode."""
    if mode not in MODES:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, MODES))}, not {mode!r}")


def check_at_most(at_most: object, mode: str, what: str) -> None:
    """Raise a ``ValueError`` about *what* if *at_most* is neither ``None`` nor a number of seconds, or *mode*
    has no use for it."""
    if at_most is None:
        return
    if isinstance(at_most, bool) or not isinstance(at_most, (int, float)) or not 0 < at_most < float("inf"):
        raise ValueError(f"{what} must be a number of seconds above 0, not {at_most!r}")
    if mode != LATEST:
        raise ValueError(f"{what} goes with the mode {LATEST!r} only, not with {mode!r}")


def check_id(id: str) -> None:
    """Raise a ``ValueError`` if a message with a key cannot have this *id*: scripts read it in its text."""
    if not _ID_WITH_KEY.fullmatch(id):
        raise ValueError(
            "the id of a message with a key must consist of printable ASCII characters without spaces, "
            f"quotation marks and backslashes, not {id!r}"
        )


def expires_ms(headers: Mapping[str, Any]) -> float:
    """When a Celery task expires, ms since the epoch; 0 for never, or if the header says no time."""
    expires = headers.get("expires")
    if not isinstance(expires, str) or not expires:
        return 0
    try:
        return max(0, to_ms(isoparse(expires)))
    except (ValueError, OverflowError):
        return 0


class Conflict(NamedTuple):
    """What became of a message that met another one with its key.

    Attributes:
        outcome: :data:`DROPPED` or :data:`REPLACED`.
        holder: id of the message that holds the key. If the new one replaced it, it has this id now.
        has_namesake: whether another message with the id of the new one is known to wait or run.
    """

    outcome: str
    holder: str
    has_namesake: bool = False

    def is_of(self, id: str) -> bool:
        """Whether a message with this *id*, that of the new one, waits or runs."""
        return self.has_namesake or id == self.holder


class Replacement(NamedTuple):
    """The message whose place a new one takes.

    Attributes:
        name: of the message that it replaces; empty if it replaces none.
        at_latest_ms: when the new one must be due at the latest, ms since the epoch; 0 for any time.
    """

    name: str = ""
    at_latest_ms: int = 0


def next_replacement(reply: Any) -> Replacement | None:
    """What a message is to replace in its next call, as the *reply* to its call says; ``None`` if it is
    done."""
    if isinstance(reply, list) and reply[0] in (b"replace", b"again"):
        _, name, *times = reply
        return Replacement(name.decode(), int(times[0]) if times and times[0] else 0)
    return None


def publishing(
    store: Store,
    queue: str,
    step: int,
    text: str,
    due: Due,
    message_id: str,
    unique: UniqueKey,
    bindings: Bindings | None = None,
    *,
    is_continued: bool = False,
    is_repeated: bool = False,
    instead_of: str = "",
) -> Call:
    """The call that publishes a message with a key. Its reply says what has happened
    (``lua/publish_unique.lua``), or is 0 as for :meth:`~kombu_redisdelay.broker.store.Store.put`.

    Arguments:
        is_continued: whether a task publishes itself again.
        is_repeated: whether the message may have been published before.
        instead_of: the name of the message that it is to replace, whose id it has.
    """
    expires_ms = store.expires_ms.get(queue, 0)
    rare = ""
    is_rare = expires_ms or is_continued or is_repeated or instead_of
    if is_rare or due.at_ms or due.delay_ms or unique.at_most_ms or unique.expires_ms:
        rare = "{} {} {} {:d} {:d} {} {:.0f} {}".format(
            *(expires_ms, due.at_ms, due.delay_ms, is_continued, is_repeated),
            *(unique.at_most_ms, unique.expires_ms, instead_of),
        )
    # In the order of PUBLISH_UNIQUE.names: Script.arguments() takes a microsecond to check it.
    args = (text, step, message_id, unique.field, unique.letter, store.separator, rare)
    used = store.with_expiring(queue, _packed(store.keys(queue), step))
    return only_if(bindings, PUBLISH_UNIQUE, used, args)


@lru_cache(maxsize=4096)
def _packed(keys: RedisKeys, step: int) -> PackedKeys:
    return PackedKeys((keys.ready_at(step), keys.wake, *keys.scheduling, keys.ready))


def due_at(message: Mapping[str, Any], due_ms: int) -> dict[str, Any]:
    """*message* with another due time, ms since the epoch. A worker looks at the ``eta`` of a task."""
    headers = {**message["headers"], ETA_HEADER: from_ms(due_ms).isoformat()}
    headers.pop(DELAY_HEADER, None)
    return {**message, "headers": headers}


def under_id(message: Mapping[str, Any], id: str) -> dict[str, Any]:
    """*message* with another *id*, wherever it says its own."""
    own = message_id(message)
    headers, properties = dict(message["headers"] or {}), dict(message["properties"])
    for where, names in ((headers, ("id", "root_id")), (properties, ("message_id", "correlation_id"))):
        where.update({name: id for name in names if where.get(name) == own})
    if message_id({"headers": headers, "properties": properties}) != id:
        # It was known by its delivery tag.
        properties["message_id"] = id
    return {**message, "headers": headers, "properties": properties}


def id_in(name: str) -> str:
    """The id of the message that is scheduled under this *name*."""
    return name.partition("\x1f")[0]


def conflict_in(reply: Any) -> Conflict | None:
    """What the *reply* says of another message with the key; ``None`` if there was none."""
    if isinstance(reply, list):
        outcome, holder, has_namesake = reply
        return Conflict(outcome.decode(), holder.decode(errors="replace"), bool(has_namesake))
    return None


def id_of(stored: bytes) -> str | None:
    """The id of a message with a key; ``None`` if it has no key. *stored* is how it is in Redis."""
    begin = stored.find(UNIQUE_BEGINS, 0, UNIQUE_WITHIN)
    match = None if begin < 0 else _ID.match(stored, begin)
    return None if match is None else match[1].decode()


def field_until_ack(payload: bytes) -> str | None:
    """The key of a message, as it is in Redis, if it is held until the message is acked; else ``None``.

    Arguments:
        payload: the message as it is in Redis. One that another program has written says nothing of this.
    """
    # Most that have a key hold it only until then.
    begin = payload.find(UNIQUE_BEGINS, 0, UNIQUE_WITHIN)
    if begin < 0 or payload.startswith(b"w", begin + len(UNIQUE_BEGINS)):
        return None
    match = _MEMBER.match(payload, begin)
    return None if match is None else match[1].decode()


def check_unique(store: Store, queues: Sequence[str], begin_at: dict[str, Sequence[bytes]]) -> None:
    """Free keys that no message holds any more, and release messages that wait for them. Looks at some keys
    of those of *queues* that have any. Makes one or two round trips.

    Arguments:
        begin_at: queue -> where to begin. It is kept from one call to the next.
    """
    keys = {queue: store.keys(queue) for queue in queues}
    looks = (
        (("EXISTS", each.unique, each.running), ("ZCOUNT", each.schedule, "+inf", "+inf"))
        for each in keys.values()
    )
    counts = answers(store.server, (command for both in looks for command in both))
    some = [queue for queue, *found in zip(queues, counts[::2], counts[1::2], strict=True) if any(found)]
    calls: list[ScriptCall] = [
        (
            CHECK_UNIQUE,
            (keys[queue].wake, keys[queue].ready),
            (store.separator, CHECKED_PER_SCRIPT, *begin_at.pop(queue, (b"0", b"0", b"0"))),
        )
        for queue in some
    ]
    begin_at.update(zip(some, run_each(store.server, calls), strict=True))


def _checking(upkeep: Upkeep) -> Doing:
    begin_at: dict[str, Sequence[bytes]] = {}
    return lambda turn: check_unique(upkeep.store, turn.queues, begin_at)


CHORES = (Chore("free unique keys that no message holds", _checking),)
