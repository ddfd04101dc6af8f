"""What is left in Redis."""

from __future__ import annotations

import re
from collections.abc import Callable

from redis import Redis
from redis.cluster import RedisCluster
from redis.utils import str_if_bytes

from tests.chaos.transports import Transport

_SIZES = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "set": "SCARD", "stream": "XLEN"}


#: Of fair queues, what must not be there when all is done, though they are still fair.
_OF_FAIR_QUEUES = re.compile(
    r"redisdelay:\{.*\}:(fair|turns:|key:|limited|active|unacked-keys|earlier|tats|alarms).*"
)


def leftovers(client: Redis | RedisCluster, transport: Transport) -> dict[str, int]:
    """The keys that should not be there, with how much is in each."""
    return _sizes(client, lambda name: not transport.is_expected(name))


def left_of_fair_queues(client: Redis | RedisCluster) -> dict[str, int]:
    """The keys of fair queues that should not be there when these are empty, with how much is in each."""
    return _sizes(client, lambda name: _OF_FAIR_QUEUES.match(name) is not None)


def _sizes(client: Redis | RedisCluster, is_meant: Callable[[str], bool]) -> dict[str, int]:
    found = {}
    for key in client.scan_iter(count=1000):
        name = str_if_bytes(key)
        if is_meant(name):
            size = _SIZES.get(str_if_bytes(client.type(key)))
            found[name] = int(client.execute_command(size, key)) if size else 1
    return found
