"""The public API over queues: what is in them, what may be taken from them, and what has happened."""

from __future__ import annotations

from collections.abc import Iterable

from kombu_redisdelay.operations import limits
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.history import QueueHistory, queue_history
from kombu_redisdelay.operations.limits import UNCHANGED, QueueLimits, Unchanged, queue_limits
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.operations.timeline import Span, timeline
from kombu_redisdelay.public import public


@public
class Queues(Access):
    """The queues of a broker. A queue that is not known gives an empty result, not an error. The messages in
    them are seen with :class:`~kombu_redisdelay.Messages`.

    Arguments and errors are the same as for :class:`~kombu_redisdelay.operations.access.Access`. Every method
    may raise ``redis.exceptions.RedisError``.
    """

    def pause(self, queue: str | Iterable[str]) -> None:
        """Have no worker take anything from *queue*, or from several, until :meth:`resume`. What workers have
        taken, they run. Messages can be published, and become ready when they are due."""
        limits.pause(self.store, [queue] if isinstance(queue, str) else queue)

    def resume(self, queue: str | Iterable[str]) -> None:
        """End the pause of *queue*, or of several. The limits stay."""
        limits.resume(self.store, [queue] if isinstance(queue, str) else queue)

    def limit(
        self,
        queue: str,
        *,
        rate: str | float | Unchanged | None = UNCHANGED,
        burst: int | Unchanged | None = UNCHANGED,
        concurrency: int | Unchanged | None = UNCHANGED,
    ) -> None:
        """Limit what all workers together take from *queue*. Only the limits that are given change; ``None``
        ends one.

        Arguments:
            rate: as Celery's ``rate_limit``: ``"100/m"``, or with ``/s`` or ``/h``, or a number of messages a
                second.
            burst: how many messages may be taken at once after a while without any. Over any time, no more
                are taken than the rate allows in that time and *burst*. The default, also for ``None``, is
                what the rate allows in a second, and at least one; one for each partition. It follows a new
                rate. Another burst stays.
            concurrency: how many messages of the queue may be unacked.

        Raises:
            TypeError: no limit is given.
            ValueError: *rate* is no rate, below 0.01/h or above 1000000/s; *burst* is given without a rate;
                *burst* or *concurrency* is not a whole number from 1 to 1,000,000,000, or smaller than the
                number of partitions.
        """
        limits.limit(self.store, queue, rate=rate, burst=burst, concurrency=concurrency)

    def limits(self, queue: str) -> QueueLimits:
        """Whether *queue* is paused, and its limits."""
        [found] = queue_limits(self.store, [queue])
        return found

    def history(self, queue: str) -> QueueHistory:
        """What has happened to the messages of *queue*, by minute for an hour and by hour for a week."""
        [found] = queue_history(self.store, [queue])
        return found

    def stats(self, queue: str) -> QueueStats:
        """How many messages *queue* has in each state, since when the next one waits, and how many consumers
        there are."""
        [found] = queue_stats(self.store, [queue])
        return found

    def timeline(self, queue: str) -> list[Span]:
        """How many messages of *queue* are due in which time from now."""
        return timeline(self.store, [queue])
