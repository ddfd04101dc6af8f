"""The errors of a broker, for code that shows them to a user."""

from __future__ import annotations

from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.words import printable

#: The broker cannot be reached, or does not answer.
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OperationalError, ConnectionError, TimeoutError)

#: The broker cannot be reached, refuses the login, or refuses a command.
BROKER_ERRORS = (RedisError, OperationalError, ConnectionError, TimeoutError)


def may_pass(error: BaseException) -> bool:
    """Whether *error*, of a broker, may be over a little later: it is away, or refuses for a while."""
    refusal = refusal_of(error)
    return isinstance(error, UNREACHABLE) if refusal is None else refusal.is_for_a_while


def why(error: BaseException) -> str:
    """What *error* says, in a line that is safe to print. If a server has refused, what is wrong and what to
    do comes first."""
    said = " ".join(str(error).split()) or type(error).__name__
    refusal = refusal_of(error)
    if refusal is not None and refusal.hint not in said:
        said = f"{refusal.hint} ({said.rstrip('.')})"
    return printable(said)
