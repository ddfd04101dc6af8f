"""Very many failed tasks: what each takes, how long a list of them takes, and how long scripts take beside
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from time import perf_counter, sleep
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.failure import Failure
from kombu_redisdelay.broker.keeping import trim
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import finish
from tools.benchmarks.app import new_app
from tools.benchmarks.peers import OURS
from tools.benchmarks.redis_info import used_memory
from tools.benchmarks.results import percentile
from tools.benchmarks.schedule import keys
from tools.benchmarks.site import BODY, Site
from tools.benchmarks.workload import Measured, Sizes, Workload, cases
from tools.benchmarks.workloads.burst import longest_script_ms

#: Those that take longer are looked at, microseconds.
_SLOW_US = 100

_PER_CALL = 2000

BYTES, PAGE, GROUPS = "bytes of a failed task", "page of 50, p50", "groups, p50"

#: Operation -> the figure of its longest script.
LONGEST = {what: f"{what}, longest script" for what in ("fail", "fail, 1 MB", "requeue", "remove", "trim")}

#: How many tasks each operation is for, and how many of the large ones.
_SOME, _LARGE = 500, 20
#: The longest argument of a message that is kept whole: its JSON is in Base64.
_LARGEST = (2**20 - 4096) * 3 // 4

#: As many kinds of failures as an application may have.
_KINDS = 100

_TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 1, in close\n' * 6

#: More than any of the figures.
_ANY = 10**12

#: More than any of the figures.
_ANY = 10**10

_ZERO = "01234567-89ab-cdef-0123-000000000000"

# KEYS: failed, its heads, its messages. ARGV: the id of number 0, the numbers of the first and of the last
# copy, and of how many tasks they are.
_COPY = """
local head, stored = redis.call('HGET', KEYS[2], ARGV[1]), redis.call('HGET', KEYS[3], ARGV[1])
local at = redis.call('ZSCORE', KEYS[1], ARGV[1])
local before, behind = string.match(head, '^(%d+ %d+ )%S+( .*)$')
for n = ARGV[2], ARGV[3] do
  local name = string.sub(ARGV[1], 1, 24) .. string.format('%012d', n)
  redis.call('ZADD', KEYS[1], string.format('%.3f', at + n / 1000), name)
  redis.call('HSET', KEYS[2], name, before .. 'shop.task' .. n % ARGV[4] .. behind)
  redis.call('HSET', KEYS[3], name, stored)
end
"""


def measure(site: Site, sizes: Sizes) -> Measured:
    count = sizes["tasks"]
    figures: dict[str, float] = {}
    keep = {"count": _ANY, "age": _ANY // 1000, "bytes": _ANY}
    with (
        Connection(site.url, transport_options={"keep_failed": keep}) as connection,
        closing(new_app(site)) as app,
        site.redis() as redis,
        Messages(connection) as messages,
    ):
        redis.config_set("slowlog-log-slower-than", _SLOW_US)
        redis.config_set("slowlog-max-len", 10_000)
        queue = site.declare(connection)

        def fail(ids: Sequence[str], argument: Any) -> None:
            for id in ids:
                app.send_task("shop.task0", [argument], task_id=id)
            _fail(connection, queue, len(ids))

        @contextmanager
        def longest(what: str) -> Iterator[None]:
            redis.slowlog_reset()
            yield
            figures[LONGEST[what]] = longest_script_ms(redis)

        fail([_ZERO], BODY)
        before = used_memory(redis)
        _copy(redis, queue.name, count)
        figures[BYTES] = (used_memory(redis) - before) / count

        failed = Selection(state="failed", queue=queue.name)
        figures[PAGE] = _p50_ms(lambda: messages.page(failed, newest_first=True), sizes["looks"])
        figures[GROUPS] = _p50_ms(lambda: messages.failures(failed), sizes["looks"])
        with longest("fail"):
            fail([f"small-{number}" for number in range(_SOME)], BODY)
        with longest("fail, 1 MB"):
            fail([f"large-{number}" for number in range(_LARGE)], "x" * _LARGEST)
        with longest("requeue"):
            messages.requeue(failed, limit=_SOME)
        with longest("remove"):
            messages.remove(failed, limit=_SOME)
        with longest("trim"):
            options = Options(keep_failed={**keep, "count": messages.count(failed) - _SOME})
            finish(trim(connection.default_channel.store, options, [queue.name]))
        messages.remove(failed)
        # Another round must not take for its own what is freed then.
        while redis.info("memory")["lazyfree_pending_objects"]:
            sleep(0.01)
        queue.purge()
        queue.delete()
    return Measured(figures)


def _fail(connection: Any, queue: Queue, count: int) -> None:
    """Have so many messages fail, as a worker does with late acks."""
    failed = 0

    def on_message(body: Any, message: Any) -> None:
        nonlocal failed
        failed += 1
        error = "ConnectionError"
        message.channel.qos.failures[message.delivery_tag] = Failure(
            message.headers["id"],
            message.headers["task"],
            error,
            "refused",
            _TRACEBACK,
            "celery@worker",
            1,
            1.5,
        )
        message.ack()

    channel = connection.channel()
    with Consumer(channel, [queue], callbacks=[on_message], prefetch_count=_SOME):
        while failed < count:
            connection.drain_events(timeout=10)
    channel.close()


def _copy(redis: Any, queue: str, count: int) -> None:
    """Copy number 0 to each up to *count*."""
    k, copy = keys(queue), redis.register_script(_COPY)
    tasks, messages, *_ = k.archive(FAILED)
    for first in range(1, count + 1, _PER_CALL):
        last = min(first + _PER_CALL - 1, count)
        copy(keys=[tasks, k.failed_heads, messages], args=[_ZERO, first, last, _KINDS])
    [(group, line)] = [(g, n) for g, n in redis.hgetall(k.failed_groups).items() if g]
    error, times = group.split()[1], line.split(b" ", 1)[1]
    kinds = {b"shop.task%d %b" % (kind, error): b"%d %b" % (count // _KINDS, times) for kind in range(_KINDS)}
    redis.hset(k.failed_groups, mapping=kinds)


def _p50_ms(do: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = perf_counter()
        do()
        took.append((perf_counter() - began) * 1000)
    return percentile(took, 50)


WORKLOAD = Workload(
    name="failed-held",
    about=f"a million failed tasks of {_KINDS} kinds: lists of them, and each operation for {_SOME}",
    cases=cases(OURS),
    units={BYTES: "bytes", **dict.fromkeys((PAGE, GROUPS, *LONGEST.values()), "ms")},
    measure=measure,
    sizes={"tasks": 1_000_000, "looks": 50},
    quick_sizes=None,
    rounds=3,
)
