"""The plain take (lua/include/take_plain.lua) does what the take of any consumer does (take_any.lua), or
nothing: both are tried on the same state, and what they reply and leave behind is compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.server.scripts import TAKE
from kombu_redisdelay.broker.server.wire import unpacked
from kombu_redisdelay.broker.takes import CHANGING
from tests.broker.rig import Rig
from tests.environments import examples

BOTH = "return take_plain() or take_any()\n"
PLAIN, ANY = (TAKE.text.replace(BOTH, f"return {name}()\n") for name in ("take_plain", "take_any"))

QUEUES = ("a", "b", "c")
FAR, PAST = 4_000_000_000_000, 1

PAYLOADS = st.sampled_from(
    [
        json.dumps({"body": "x"}),
        json.dumps({"redisdelay-due": 1, "body": "x"}),
        json.dumps({"redisdelay-deliveries": 2, "redisdelay-lost": 1, "body": "x"}),
        json.dumps({"redisdelay-deliveries": 5, "redisdelay-lost": 3, "body": "x"}),
        json.dumps({"body": "x" * 5000}),
        "garbage",
        "",
    ]
)

#: Of a queue: what is ready, what else it has, and how long the lease of the consumer lasts.
STATES = st.fixed_dictionaries(
    {
        "ready": st.lists(PAYLOADS, max_size=6),
        "lease_ms": st.sampled_from([0, 1, FAR]),
        "scheduled_ms": st.sampled_from([None, None, FAR, PAST, float("inf")]),
        "odd": st.sampled_from([None] * 6 + ["step", "paused", "rate", "unique", "running", "tag", "wake"]),
    }
)

REQUESTS = st.fixed_dictionaries(
    {
        "limit": st.integers(0, 8),
        "in_turn": st.booleans(),
        "isolated": st.sampled_from([0, 3]),
        "bytes": st.sampled_from([6000, 1_000_000]),
        "order": st.permutations(range(len(QUEUES))),
    }
)


def arrange(rig: Rig, states: Mapping[str, Mapping[str, Any]], name: str, first_tag: str) -> None:
    rig.database.reset()
    for queue, state in states.items():
        keys, client = rig.store.keys(queue), rig.client
        if state["ready"]:
            client.lpush(keys.ready, *state["ready"])
        if state["lease_ms"]:
            client.zadd(keys.consumers, {name: state["lease_ms"]})
        if state["scheduled_ms"] is not None:
            client.zadd(keys.schedule, {"id": state["scheduled_ms"]})
            client.hset(keys.messages, "id", "0:{}")
        match state["odd"]:
            case "step":
                client.lpush(keys.ready_at(rig.store.steps[1]), "{}")
            case "paused":
                client.hset(keys.limits, "paused_ms", 1)
            case "rate":
                client.hset(keys.limits, mapping={"interval_us": 1_000_000, "burst": 2})
            case "unique" | "running":
                client.hset(getattr(keys, state["odd"]), "some", "key")
            case "tag":
                client.hset(keys.unacked(name), first_tag, "0:{}")
            case "wake":
                client.zadd(keys.wake, {"1": 0})


def left(rig: Rig) -> dict[bytes, Any]:
    """What is in Redis. What depends on the moment is left out."""
    found: dict[bytes, Any] = {}
    for key in rig.client.keys("*"):
        value: Any
        match rig.client.type(key):
            case b"list":
                value = rig.client.lrange(key, 0, -1)
            case b"hash":
                value = rig.client.hgetall(key)
            case _:
                value = rig.client.zrange(key, 0, -1, withscores=True)
        if key.endswith(b":consumers"):
            # Renewed, or as it was.
            value = [(member, 10**12 < score < FAR or score) for member, score in value]
        if key.endswith(b":control"):
            value.pop(b"full_at_us", None)
            value.pop(b"watched_us", None)
        found[key] = value, rig.client.ttl(key) > 0
    return found


def reply_of(reply: Sequence[Any]) -> list[Any]:
    """*reply* without the server's clock, and with times from now on in seconds."""
    _, missing, migrated, due, *rest = reply
    in_pairs = due.split()
    seconds = {index: int(us) // 10_000_000 for index, us in zip(in_pairs[::2], in_pairs[1::2], strict=True)}
    return [missing, migrated, seconds, *rest]


@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(states=st.lists(STATES, min_size=1, max_size=len(QUEUES)), request=REQUESTS)
def test_both_do_the_same(rig: Rig, states: list[dict[str, Any]], request: dict[str, Any]) -> None:
    rig.database.reset()
    queues = [QUEUES[index] for index in request["order"] if index < len(states)]
    consumer = rig.consumer()
    take = consumer.takes_in(0)
    asked = Request(queues, request["limit"], in_turn=request["in_turn"])
    _, _, count, *rest = unpacked(take.ask_for(asked))
    keys, args = rest[: int(count)], rest[int(count) :]
    at = {name: index for index, name in enumerate(TAKE.names)}
    args[at["isolated_from"]], args[at["byte_limit"]] = request["isolated"], request["bytes"]
    outcomes = []
    for text in (ANY, PLAIN):
        arrange(rig, dict(zip(QUEUES, states, strict=False)), consumer.name, str(args[at["first_tag"]]))
        before = left(rig)
        reply = rig.client.eval(text, len(keys), *keys, *args)
        outcomes.append((reply, before, left(rig)))
    (any_reply, _, any_left), (plain_reply, before, plain_left) = outcomes
    if plain_reply is None:
        assert plain_left == before
    else:
        assert reply_of(plain_reply) == reply_of(any_reply)
        assert plain_left == any_left


@pytest.mark.parametrize("count", [1, 16])
def test_nearly_all_takes_are_plain(rig: Rig, count: int) -> None:
    queues = [f"q{number}" for number in range(count)]
    for queue in queues:
        rig.put(queue, "m")
    rig.schedule(queues[0], "later", 60_000)
    take = rig.consumer().takes_in(0)
    take.queues = queues
    _, _, keys, *rest = unpacked(take.ask_for(Request(take.queues, 10)))
    assert rig.client.eval(PLAIN, int(keys), *rest) is not None


def test_what_changes_with_each_take_stands_first() -> None:
    assert TAKE.names[: len(CHANGING)] == CHANGING
