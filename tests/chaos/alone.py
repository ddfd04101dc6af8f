"""What it costs that a message which came back again and again is held alone.

``python -m tests.chaos.alone`` says it.

Taking is measured by itself, in batches that are acked with one command: whatever else a consumer does makes
the share of it smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.options import Options
from tests.broker.database import RealDatabase
from tests.broker.rig import Rig, payload, taken, with_count
from tools.harness.redis_server import RedisServer

MESSAGES = 20_000
ROUNDS = 9
MESSAGE = payload("a task", body="W1tdLCB7fSwgeyJjYWxsYmFja3MiOiBudWxsfV0=" * 4)
SUSPECT = with_count(MESSAGE, 3, lost=3)


class NobodyAlone(Options):
    """As if there was no such rule."""

    @property
    def isolated_after(self) -> int:
        return 0


def without(rig: Rig) -> Consumer:
    return rig.consumer(options=NobodyAlone())


def with_nothing_redelivered(rig: Rig) -> Consumer:
    return rig.consumer()


def while_another_holds_one(rig: Rig) -> Consumer:
    rig.put("q", SUSPECT)
    assert len(taken(rig.consumer("another"), "q")) == 1
    return rig.consumer()


def while_one_is_passed_over(rig: Rig) -> Consumer:
    busy = rig.consumer()
    rig.put("q", MESSAGE)
    taken(busy, "q")
    rig.put("q", SUSPECT)
    return busy


CASES: dict[str, Callable[[Rig], Consumer]] = {
    "without the rule": without,
    "nothing redelivered": with_nothing_redelivered,
    "another consumer holds one alone": while_another_holds_one,
    "a busy consumer passes over one in every take": while_one_is_passed_over,
}


def messages_a_second(rig: Rig, prepare: Callable[[Rig], Consumer]) -> float:
    rig.database.reset()
    consumer = prepare(rig)
    unacked = rig.store.keys("q").unacked(consumer.name)
    for _ in range(MESSAGES // 500):
        rig.client.lpush("q", *[MESSAGE] * 500)
    done = 0
    began = perf_counter()
    while done < MESSAGES:
        tags = [delivery.tag for delivery in taken(consumer, "q")]
        rig.client.hdel(unacked, *tags)
        done += len(tags)
    return MESSAGES / (perf_counter() - began)


def main() -> None:
    rates: dict[str, list[float]] = {name: [] for name in CASES}
    with RedisServer() as server:
        rig = Rig(RealDatabase(server))
        for _ in range(ROUNDS):
            # In turn, so that whatever else the machine does meets all of them.
            for name, prepare in CASES.items():
                rates[name].append(messages_a_second(rig, prepare))
    base = median(rates["without the rule"])
    for name, of_rounds in rates.items():
        rate = median(of_rounds)
        print(f"{name:48}{rate:10,.0f} messages/s{rate / base:8.2f}")


if __name__ == "__main__":
    main()
