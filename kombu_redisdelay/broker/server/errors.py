"""The errors of a server."""

from __future__ import annotations

from redis.exceptions import ConnectionError

from kombu_redisdelay.refusals import Refusal


class WrongServer(ConnectionError):
    """The server that answers is of another kind than the broker URL says. Connecting again would not help:
    the URL has to be changed."""


class NothingDone(ConnectionError):
    """The server was not reached, or has refused. So it does no harm to try again.

    Attributes:
        refusal: what the server has answered; ``None`` if it was not reached, or no row knows the answer.
    """

    refusal: Refusal | None = None

    def __init__(self, said: str = "", refusal: Refusal | None = None) -> None:
        super().__init__(said)
        self.refusal = refusal

    def __repr__(self) -> str:
        # That of redis-py 8 names only the class. Celery logs it.
        return f"{type(self).__name__}({str(self)!r})"


class Unreachable(NothingDone):
    """There is no connection to the server, and none can be made."""


class Refuses(NothingDone):
    """The server is there, and refuses for a while: :mod:`kombu_redisdelay.refusals`."""


class TooFewReplicas(NothingDone):
    """The server does not write, because too few replicas follow it: ``min-replicas-to-write``."""


class NotThePrimary(NothingDone):
    """The server that answers is a replica, or has just become one."""
