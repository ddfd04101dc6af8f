"""Which part of its rate a producer keeps with a bound that is not reached (docs/large-messages.rst):
``python -m tools.bounded_rate``."""

from __future__ import annotations

from statistics import median
from time import perf_counter, process_time

from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from tools.harness.redis_server import RedisServer

#: Messages of a round, and rounds. Each round publishes to both queues.
MESSAGES, ROUNDS = 1000, 15

BOUND = {"x-max-length": 10**9, "x-overflow": "reject-publish"}


def main() -> None:
    with RedisServer() as server, Connection(server.url()) as connection:
        client = server.client()
        seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "bounded": []}
        producers = {}
        for name in seconds:
            channel = connection.channel()
            arguments = BOUND if name == "bounded" else None
            Queue(name, Exchange(name), name, queue_arguments=arguments)(channel).declare()
            producers[name] = connection.Producer(channel)
        for number in range(ROUNDS):
            # Each is the first one in turn.
            for name in sorted(seconds, reverse=bool(number % 2)):
                began, cpu = perf_counter(), process_time()
                for _ in range(MESSAGES):
                    producers[name].publish("hello", exchange=name, routing_key=name)
                seconds[name].append((perf_counter() - began, process_time() - cpu))
                client.delete(name)
    for index, what in enumerate(("by the clock", "by CPU of the producer")):
        rates = {name: MESSAGES / median(each[index] for each in some) for name, some in seconds.items()}
        said = ", ".join(f"{name} {rate:,.0f} messages/s" for name, rate in rates.items())
        print(f"{what}: {said}; with a bound {rates['bounded'] / rates['plain']:.2f}")


if __name__ == "__main__":
    main()
