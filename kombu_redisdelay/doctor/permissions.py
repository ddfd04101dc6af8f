"""Whether the user of the broker URL may do what the transport does (ACL)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import uuid4

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.keys import known_queues

_SCRIPT = "return 1"
_SHA = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"


def probes(store: Store) -> Mapping[str, tuple[str | int, ...]]:
    """Every command that we use, with arguments with which it does nothing that lasts.

    Rather tried than asked for: ``ACL DRYRUN`` is for administrators, and Redis 7.
    """
    keys = store.keys(f"doctor-{uuid4().hex}")
    a_list, a_hash, a_zset = keys.wake, keys.messages, keys.schedule
    return {
        "BRPOP": (a_list, 0.001),
        "DEL": (a_list,),
    }
