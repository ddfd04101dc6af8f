"""The public API over queues: what is in them, what may be taken from them, and what has happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kombu_redisdelay.operations import fair, limits
from kombu_redisdelay.operations.access import Access, check_limit
from kombu_redisdelay.operations.columns import sort_keys
from kombu_redisdelay.operations.fair import KeyLimits
from kombu_redisdelay.operations.history import QueueHistory, queue_history
from kombu_redisdelay.operations.key_stats import QueueKeys, queue_keys
from kombu_redisdelay.operations.limits import LimitChanges, QueueLimits, queue_limits
from kombu_redisdelay.operations.stats import QueueStats, queue_stats
from kombu_redisdelay.operations.timeline import Span, timeline
from kombu_redisdelay.public import public

if TYPE_CHECKING:
    from typing_extensions import Unpack


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

    def limit(self, queue: str, **changes: Unpack[LimitChanges]) -> None:
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
            TypeError: no limit is given, or one that there is not.
            ValueError: *rate* is no rate, below 0.01/h or above 1000000/s; *burst* is given without a rate;
                *burst* or *concurrency* is not a whole number from 1 to 1,000,000,000, or smaller than the
                number of partitions.
        """
        limits.limit(self.store, queue, **changes)

    def limits(self, queue: str) -> QueueLimits:
        """Whether *queue* is paused, and its limits."""
        [found] = queue_limits(self.store, [queue])
        return found

    def make_fair(self, queue: str | Iterable[str]) -> None:
        """Have workers serve the keys of *queue*, or of several, in turn. It holds for all workers at once,
        from their next take on.

        Raises:
            ValueError: one of them is declared with ``x-expires``.
        """
        fair.make_fair(self.store, [queue] if isinstance(queue, str) else queue, self.app)

    def make_plain(self, queue: str | Iterable[str]) -> None:
        """End what :meth:`make_fair` began. Workers move the messages back, some with each take, in the order
        in which the keys have their turns. The limits of keys stay, and count when the queue is fair
        again."""
        fair.make_plain(self.store, [queue] if isinstance(queue, str) else queue)

    def keys(self, queue: str, *, limit: int | None = None) -> QueueKeys:
        """The keys of *queue*, those with the most ready messages first: what waits with each of them, and
        what they are allowed. Makes a few round trips for every 200 keys, and reads up to 10,000 scheduled
        and 10,000 unacked messages.

        Arguments:
            limit: the largest number of keys; ``None`` for all. With 100,000 keys, all take ten times as
                long as a few.

        Raises:
            ValueError: *limit* is not a whole number from 0.
        """
        check_limit(limit)
        found = queue_keys(self.store, queue, limit)
        return replace(found, keys=sort_keys(found.keys)[:limit])

    def limit_keys(self, queue: str, **changes: Unpack[LimitChanges]) -> None:
        """Limit what all workers together take of each key of *queue*. Arguments and errors are the same as
        for :meth:`limit`, but that partitions do not share a limit: it counts in each of them. The limits
        count while the queue is fair."""
        fair.limit_keys(self.store, queue, **changes)

    def limit_key(self, queue: str, key: str, **changes: Unpack[LimitChanges]) -> None:
        """Give one key of *queue* limits of its own, in place of those of every key. Arguments and errors are
        the same as for :meth:`limit_keys`; but ``None`` is the limit of every key.

        Raises:
            ValueError: *key* cannot be a key, besides.
        """
        fair.limit_key(self.store, queue, key, **changes)

    def key_limits(self, queue: str, key: str | None = None) -> KeyLimits:
        """The limits of every key of *queue*; with a *key*, whether it is paused, and the limits that count
        for it.

        Raises:
            ValueError: *key* cannot be a key.
        """
        if key is None:
            return fair.limits_of_every_key(self.store, queue)
        return fair.limits_of_key(self.store, queue, key)

    def pause_key(self, queue: str, key: str) -> None:
        """Have no worker take messages of *key* from *queue*, until :meth:`resume_key`. It counts while the
        queue is fair.

        Raises:
            ValueError: *key* cannot be a key.
        """
        fair.pause_key(self.store, queue, key)

    def resume_key(self, queue: str, key: str) -> None:
        """End the pause of *key*. Its limits stay.

        Raises:
            ValueError: *key* cannot be a key.
        """
        fair.resume_key(self.store, queue, key)

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
