"""Looks at queues many times a second: at limited ones what was taken from them, what is held, and what
waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from tests.chaos.site import Site

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

INTERVAL = 0.02

S = TypeVar("S")

#: All at one moment. The hashes of what is held are found by their names: that does not depend on what the
#: queue knows of its consumers. The key that never exists keeps the script off a slot that is being moved.
_LOOK = """
local held = 0
for _, key in ipairs(redis.call('KEYS', string.match(KEYS[1], '^.*}:') .. 'unacked:*')) do
  held = held + redis.call('HLEN', key)
end
local time = redis.call('TIME')
return {
  time[1] * 1000000 + time[2],
  held,
  redis.call('LLEN', ARGV[1]) + redis.call('LLEN', '{' .. ARGV[1] .. '}'),
  redis.call('HGET', KEYS[2], 'delivered'),
  string.match(redis.call('INFO', 'server'), 'run_id:(%w+)'),
  unpack(redis.call('HMGET', KEYS[1], 'paused_ms', 'interval_us', 'burst', 'full_at_us', 'concurrency')),
}
"""


@dataclass(frozen=True)
class Sample:
    """What a queue, or a partition of it, was like at one moment.

    Attributes:
        at: by the server's clock, seconds since the epoch.
        delivered: how many messages were ever taken from it.
        paused_ms: since when it was paused; ``None`` if it was not.
        rate: how many messages may be taken a second, and
        burst: how many at once; ``None`` for any number.
        full_at: from when on the whole burst may be taken.
        server: which one said so.
    """

    at: float
    held: int
    ready: int
    delivered: int
    paused_ms: int | None = None
    rate: float | None = None
    burst: int | None = None
    full_at: float = 0
    concurrency: int | None = None
    server: bytes = b""

    @property
    def tokens(self) -> float:
        """How many messages the rate allows now."""
        if self.rate is None or self.burst is None:
            return float("inf")
        return self.burst - max(0.0, self.full_at - self.at) * self.rate

    @property
    def places(self) -> float:
        """How many more messages may be held."""
        return float("inf") if self.concurrency is None else self.concurrency - self.held

    @property
    def offers(self) -> bool:
        """Whether there is a message, and it may be taken."""
        return self.ready > 0 and self.paused_ms is None and self.tokens >= 1 and self.places >= 1


class Watch(Generic[S]):
    """Takes samples from a thread, for as long as the ``with`` block lasts.

    Attributes:
        rounds: the samples of all queues, one after the other. Where a server could not be asked, there is no
            round.

    Arguments:
        queues: by name; of a queue with partitions each of them.
        look: takes the sample of a queue.
    """

    def __init__(
        self, site: Site, queues: Sequence[str], look: Callable[[Redis | RedisCluster, str], S]
    ) -> None:
        self._site = site
        self._queues = queues
        self._look = look
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="chaos-watch")
        self.rounds: list[dict[str, S]] = []

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        with self._site.client() as client:
            while self._queues and not self._stopped.wait(INTERVAL):
                try:
                    self.rounds.append({queue: self._look(client, queue) for queue in self._queues})
                except (RedisError, RedisClusterException, AttributeError):
                    # The server is being harmed. Without any node, redis-py uses None for one.
                    continue


def look(client: Redis | RedisCluster, queue: str) -> Sample:
    """What a limited queue is like now."""
    keys = [f"redisdelay:{{{queue}}}:{name}" for name in ("control", "history", "never")]
    row: Any = client.eval(_LOOK, len(keys), *keys, queue)
    at_us, held, ready, delivered, server, paused_ms, interval_us, burst, full_at_us, concurrency = row
    return Sample(
        at_us / 1e6,
        held,
        ready,
        int(delivered or 0),
        None if paused_ms is None else int(paused_ms),
        None if interval_us is None else 1e6 / float(interval_us),
        None if burst is None else int(burst),
        float(full_at_us or 0) / 1e6,
        None if concurrency is None else int(concurrency),
        server,
    )
