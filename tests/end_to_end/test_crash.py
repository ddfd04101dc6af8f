"""A message that would end its worker when its callback is long done becomes a dead letter at once."""

from __future__ import annotations

import json

from tests.end_to_end.fuzz.wellformed import protocol_2, written
from tests.end_to_end.installation import QUEUE, Installation

SETTINGS = {"broker_transport_options": {"delivery_limit": 3}}
GOOD = [f"good {number}" for number in range(5)]


def test_a_time_limit_that_the_pool_cannot_set(site: Installation) -> None:
    poison = protocol_2("poison", "work_late")
    poison["headers"]["timelimit"] = ["x", "y"]
    site.redis.execute_command("LPUSH", QUEUE, written("poison", poison))
    producer = site.producer()
    for label in GOOD:
        producer.send_task("work_late", [label])
    site.supervise(
        lambda: set(GOOD) <= set(site.ledger.ended()) and bool(site.dead()),
        60,
        "the end of everything",
        pool="prefork",
        settings=SETTINGS,
        expected="timelimit",
    )
    [letter] = site.dead()
    why, message = letter.split(b"\n", 1)
    assert why.endswith(b"header 'timelimit' is not two numbers of seconds")
    assert json.loads(message)["case"] == "poison"
