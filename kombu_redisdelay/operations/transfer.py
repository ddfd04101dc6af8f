"""The common part of moving over from ``redis://`` and moving back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.words import first_of

#: Workers that are named.
MOST_NAMED = 10

if TYPE_CHECKING:
    from celery import Celery
    from kombu.connection import Connection


class InUse(Exception):
    """Workers of the side that is left are connected, or it cannot be seen whether any are.

    Attributes:
        advice: what to do about it.
        forced: what it means to go on all the same.
    """

    def __init__(self, found: str, names: Sequence[str], advice: str, forced: str) -> None:
        super().__init__(f"{found}: {first_of(names, MOST_NAMED)}")
        self.advice = advice
        self.forced = forced


class Transfer(Access):
    """A broker that moves from one of the two transports to the other. Arguments are those of
    :class:`~kombu_redisdelay.operations.access.Access`.

    Raises:
        ValueError: the broker is a cluster. ``redis://`` knows no clusters.
    """

    def __init__(self, broker: Celery | Connection | str) -> None:
        super().__init__(broker)
        if self.store.server.has_slots:
            self.close()
            raise ValueError(
                "the broker is a Redis Cluster, which redis:// cannot use: there is nothing to adopt"
            )

    def check_not_in_use(self) -> None:
        """
        Raises:
            InUse: workers of the side that is left are connected, or the user may not see whether any are.
        """
        raise NotImplementedError
