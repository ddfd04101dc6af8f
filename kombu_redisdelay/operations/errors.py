"""The errors of a broker, for code that shows them to a user."""

from __future__ import annotations

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

#: The broker cannot be reached, refuses the login, or refuses a command.
BROKER_ERRORS = (RedisError, OperationalError, ConnectionError, TimeoutError)
