"""The queues that kombu has bound to exchanges, those of ``redis://`` included."""

from __future__ import annotations

import re

from kombu_redisdelay.broker.keys import bindings
from kombu_redisdelay.broker.server.replies import answers
from kombu_redisdelay.broker.store import Store, name_of

#: Keys that Redis looks at in one round trip.
KEYS_PER_CALL = 1000

#: Parts of a binding: routing key, pattern, queue. (``Channel.get_table`` of kombu's ``redis``.)
BINDING = 3


def bound_queues(store: Store) -> list[str]:
    """The queues that have a binding, sorted. Looks at each key of the database, in portions: kombu has
    no list of exchanges."""
    # Celery gives a queue without a declaration an exchange of its own.
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", f"{store.prefix}{bindings(in_slots=False)}.") + "*"
    separator = store.separator.encode()
    found: set[str | None] = set()
    cursor = b"0"
    while True:
        cursor, keys = store.server.call(
            "SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_CALL, "TYPE", "set"
        )
        for members in answers(store.server, (("SMEMBERS", key) for key in keys)):
            parts = (member.split(separator) for member in members)
            found |= {name_of(binding[-1]) for binding in parts if len(binding) == BINDING}
        if cursor in (b"0", 0):
            return sorted(filter(None, found))
