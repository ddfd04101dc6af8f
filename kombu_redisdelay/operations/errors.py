"""The errors of a broker, for code that shows them to a user."""

from __future__ import annotations

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

#: The broker cannot be reached, or does not answer.
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OperationalError, ConnectionError, TimeoutError)

#: The broker cannot be reached, refuses the login, or refuses a command.
BROKER_ERRORS = (RedisError, OperationalError, ConnectionError, TimeoutError)
