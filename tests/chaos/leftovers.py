"""What is left in Redis."""

from __future__ import annotations

from redis import Redis
from redis.cluster import RedisCluster
from redis.utils import str_if_bytes

from tests.chaos.transports import Transport

_SIZES = {"list": "LLEN", "hash": "HLEN", "zset": "ZCARD", "set": "SCARD", "stream": "XLEN"}


def leftovers(client: Redis | RedisCluster, transport: Transport) -> dict[str, int]:
    """The keys that should not be there, with how much is in each."""
    found = {}
    for key in client.scan_iter(count=1000):
        name = str_if_bytes(key)
        if not transport.is_expected(name):
            size = _SIZES.get(str_if_bytes(client.type(key)))
            found[name] = int(client.execute_command(size, key)) if size else 1
    return found
