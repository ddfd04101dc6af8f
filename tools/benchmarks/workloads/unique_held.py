"""Very many keys that are held: what each takes beside its message, and how long scripts take beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer, Producer
from redis import Redis

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.broker.unique import check_unique
from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import used_memory
from tools.benchmarks.schedule import keys, now_ms
from tools.benchmarks.site import BODY, Drain, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases
from tools.benchmarks.workloads.burst import longest_script_ms
from tools.benchmarks.workloads.fleet import Probe
from tools.benchmarks.workloads.idle import drain_for

#: Those that take longer are looked at, microseconds.
_SLOW_US = 100

_PER_CALL = 2000

BYTES = "bytes of a key that waits"

#: Operation -> the figure of its longest script.
LONGEST = {
    what: f"{what}, longest script"
    for what in (
        *("publish, free", "publish, dropped", "publish, replaced", "cancel", "take and ack", "give back"),
        *("recover", "check", "purge"),
    )
}

ANSWER = "purge, longest answer"

#: The longest keys that the goal is for, in bytes.
_KEY_BYTES = 64

#: How many messages each operation is for.
_SOME = 500

_HOUR_MS = 3_600_000

#: Seconds for which a consumer may be silent that looks after others.
_LEASE = 5

#: A consumer on another machine.
_ELSEWHERE = "elsewhere.example.com:12345:0123456789ab:1:celery@worker-1"

# KEYS: ready list, the hash of what waits. ARGV: the key of number 0, and the numbers of the first and of the
# last copy.
_COPY_MESSAGES = """
local text, zero = redis.call('LINDEX', KEYS[1], -1), string.format('%012d', 0)
for n = ARGV[2], ARGV[3] do
  redis.call('LPUSH', KEYS[1], (string.gsub(text, zero, string.format('%012d', n))))
end
"""
_COPY_KEYS = """
local entry, zero = redis.call('HGET', KEYS[2], ARGV[1]), string.format('%012d', 0)
for n = ARGV[2], ARGV[3] do
  local number = string.format('%012d', n)
  redis.call('HSET', KEYS[2], (string.gsub(ARGV[1], zero, number)), (string.gsub(entry, zero, number)))
end
"""


def headers(number: int, mode: str = "done", **others: Any) -> dict[str, Any]:
    """Those of a message with the key of this *number*, and an id of the length of a UUID."""
    digits = f"{number:012}"
    key = digits.rjust(_KEY_BYTES, "k")
    return {"id": f"01234567-89ab-cdef-0123-{digits}", "x-unique": key, "x-unique-while": mode, **others}


def measure(site: Site, sizes: Sizes) -> Measured:
    figures: dict[str, float] = {}
    with site.connect() as connection, site.redis() as redis, Messages(connection) as messages:
        redis.config_set("slowlog-log-slower-than", _SLOW_US)
        redis.config_set("slowlog-max-len", 10_000)
        queue, k = site.declare(connection), keys(site.queue)
        producer = Producer(connection.default_channel)
        store = connection.default_channel.store

        def publish(numbers: Sequence[int], mode: str = "done", **others: Any) -> None:
            for number in numbers:
                producer.publish(BODY, routing_key=queue.name, headers=headers(number, mode, **others))

        def longest(what: str, do: Callable[[], object]) -> None:
            redis.slowlog_reset()
            do()
            figures[LONGEST[what]] = longest_script_ms(redis)

        publish([0])
        count = sizes["keys"]
        _copy(redis, _COPY_MESSAGES, (queue.name, k.unique), count)
        before = used_memory(redis)
        _copy(redis, _COPY_KEYS, (queue.name, k.unique), count)
        figures[BYTES] = (used_memory(redis) - before) / count

        some, new = range(_SOME), range(count + 1, count + 1 + _SOME)
        longest("publish, free", lambda: publish(new, "latest", **{"x-delay": _HOUR_MS}))
        longest("publish, dropped", lambda: publish(some))
        longest("publish, replaced", lambda: publish(new, "latest", **{"x-delay": _HOUR_MS}))
        ids = [headers(number)["id"] for number in new]
        longest("cancel", lambda: messages.cancel(Selection(ids=ids, queue=queue.name, state="scheduled")))
        longest("take and ack", lambda: _take_and_ack(site, connection))
        longest("give back", lambda: _give_back(connection, queue.name))
        _hand_out(redis, queue.name)
        longest("recover", lambda: _recover(redis, site))
        longest("check", lambda: _check(store, queue.name))

        redis.slowlog_reset()
        with Probe(site) as probe:
            queue.purge()
            while redis.info("memory")["lazyfree_pending_objects"]:
                sleep(0.001)
        figures[LONGEST["purge"]] = longest_script_ms(redis)
        figures[ANSWER] = probe.longest_ms
        queue.delete()
    return Measured(figures)


def _copy(redis: Redis, script: str, keys: Sequence[str], count: int) -> None:
    """Copy number 0 to each up to *count*."""
    copy = redis.register_script(script)
    for first in range(1, count + 1, _PER_CALL):
        last = min(first + _PER_CALL - 1, count)
        copy(keys=list(keys), args=[headers(0)["x-unique"], first, last])


def _take_and_ack(site: Site, connection: Any) -> None:
    drain = Drain(site, connection, prefetch=_SOME)
    with drain.consumer:
        drain.until(2 * _SOME)
    drain.channel.close()


def _give_back(connection: Any, queue: str) -> None:
    """Take messages, and close the channel without an ack."""
    seen: list[Any] = []
    channel = connection.channel()
    with Consumer(channel, [Queue(queue)], callbacks=[lambda _, m: seen.append(m)], prefetch_count=_SOME):
        while len(seen) < _SOME:
            connection.drain_events(timeout=10)
    channel.close()


def _hand_out(redis: Redis, queue: str) -> None:
    """Have a consumer that will not be heard of again hold messages and their keys."""
    k = keys(queue)
    for tag in range(_SOME):
        payload = redis.rpop(queue)
        assert isinstance(payload, bytes)
        _, _, key = json.loads(payload)["redisdelay-unique"]
        redis.hset(k.unacked(_ELSEWHERE), str(tag), b"0:%b" % payload)
        redis.hset(k.running, key, f"{_ELSEWHERE}\x1e{tag}")
        redis.hdel(k.unique, key)
    redis.zadd(k.consumers, {_ELSEWHERE: now_ms(redis) - 1})


def _check(store: Store, queue: str) -> None:
    begin_at: dict[str, Sequence[bytes]] = {}
    for _ in range(_SOME):
        check_unique(store, [queue], begin_at)


def _recover(redis: Redis, site: Site) -> None:
    """Have a consumer with a short lease look after the others, until the one elsewhere holds nothing."""
    with Connection(site.url, transport_options={"visibility_timeout": _LEASE}) as connection:
        channel = connection.channel()
        with Consumer(channel, [Queue(site.queue)], callbacks=[lambda _, m: None], prefetch_count=1):
            while redis.exists(keys(site.queue).unacked(_ELSEWHERE)):
                drain_for(connection, 0.05)


WORKLOAD = Workload(
    name="unique-held",
    about=f"beside a million keys of {_KEY_BYTES} bytes that are held, each operation for {_SOME} messages",
    cases=cases(OURS),
    units={BYTES: "bytes", **dict.fromkeys((*LONGEST.values(), ANSWER), "ms")},
    measure=measure,
    sizes={"keys": 1_000_000},
    quick_sizes=None,
    rounds=3,
)
