"""What a broker raises, for those who show it."""

from __future__ import annotations

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

#: It cannot be reached, does not let us in, or refuses what was asked.
BROKER_ERRORS = (RedisError, OperationalError, ConnectionError, TimeoutError)
