"""How much of Redis a million tasks take, by the size of their arguments, with zlib and without
(docs/large-messages.rst): ``python -m tools.message_memory``."""

from __future__ import annotations

import random
from typing import Any

from celery import Celery

from tools.harness.redis_server import RedisServer

#: Bytes of JSON of the arguments of a task -> how many tasks are measured.
SIZES = {100: 5000, 1_000: 5000, 16_000: 1000, 256_000: 60, 1_000_000: 20}

WORDS = (
    *("order", "customer", "address", "street", "city", "paid", "open", "amount"),
    *("currency", "product", "quantity", "price", "note"),
)


def record(chosen: random.Random) -> dict[str, Any]:
    """Something of about 100 bytes, as applications have it."""
    return {
        "id": chosen.randrange(10**8),
        "name": " ".join(chosen.choices(WORDS, k=4)),
        "amount": chosen.randrange(10**6) / 100,
        "at": f"2026-11-{chosen.randrange(1, 29):02}T{chosen.randrange(24):02}:00:00Z",
    }


def bytes_of_each(server: RedisServer, size: int, count: int, **options: Any) -> float:
    """Bytes of Redis that a task takes whose arguments have *size* bytes, in a queue of *count*."""
    client, chosen = server.client(), random.Random(size)
    client.flushall()
    app = Celery("measured", broker=server.url(), set_as_current=False)
    app.conf.broker_transport_options = {"message_size_warning": 0}
    before = client.info("memory")["used_memory_dataset"]
    for _ in range(count):
        app.send_task("import_orders", [[record(chosen) for _ in range(max(1, size // 110))]], **options)
    after = client.info("memory")["used_memory_dataset"]
    app.close()
    return float(after - before) / count


def main() -> None:
    print(f"{'JSON':>10} {'ready':>12} {'scheduled':>12} {'zlib, ready':>12}")
    with RedisServer() as server:
        for size, count in SIZES.items():
            kinds: list[dict[str, Any]] = [{}, {"countdown": 3600}, {"compression": "zlib"}]
            found = [bytes_of_each(server, size, count, **options) for options in kinds]
            print(f"{size:>10,}", *(f"{number:>12,.0f}" for number in found))


if __name__ == "__main__":
    main()
