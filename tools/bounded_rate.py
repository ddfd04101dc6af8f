"""Which part of its rate a producer keeps with a bound that is not reached (docs/large-messages.rst):
``python -m tools.bounded_rate``."""

from __future__ import annotations

from statistics import median
from time import process_time

from kombu import Connection, Queue
from kombu.entity import Exchange

from tools.harness.redis_server import RedisServer

#: Messages of a round, and rounds. Each round publishes to both queues.
MESSAGES, ROUNDS = 5000, 15

BOUND = {"x-max-length": 10**9, "x-overflow": "reject-publish"}


def main() -> None:
    with RedisServer() as server, Connection(server.url()) as connection:
        client = server.client()
        seconds: dict[str, list[float]] = {"plain": [], "bounded": []}
        producers = {}
        for name in seconds:
            channel = connection.channel()
            queue = Queue(name, Exchange(name), name, queue_arguments=BOUND if name == "bounded" else None)
            queue(channel).declare()
            producers[name] = connection.Producer(channel)
        for number in range(ROUNDS):
            # Each is the first one in turn.
            for name in sorted(seconds, reverse=bool(number % 2)):
                began = process_time()
                for _ in range(MESSAGES):
                    producers[name].publish("hello", exchange=name, routing_key=name)
                seconds[name].append(process_time() - began)
                client.delete(name)
        rates = {name: MESSAGES / median(each) for name, each in seconds.items()}
    print({name: f"{rate:,.0f} messages in a second of CPU" for name, rate in rates.items()})
    print(f"with a bound: {rates['bounded'] / rates['plain']:.3f}")


if __name__ == "__main__":
    main()
