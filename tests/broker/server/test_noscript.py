"""A server that does not know a script: new, restarted, failed over, or flushed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.bindings import LastingBindings, QueueBinding
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Delivery
from kombu_redisdelay.broker.fair_keys import StoredKeyLimits, greatest_keys, iter_keys
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.broker.message import Due
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REQUEUE
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.schedule import Schedule, Scheduled, Withdrawal
from kombu_redisdelay.broker.server.scripts import (
    CONSUMERS,
    FINISH,
    FORWARD,
    KNOWN,
    MEND_SCHEDULE,
    RENEW,
    SCHEDULE,
    TIDY,
    UNLIST,
)
from kombu_redisdelay.broker.stranded import Destination, Destined, Leftover, Leftovers, StrandedLists
from kombu_redisdelay.broker.unacked import UnackedHashes
from kombu_redisdelay.broker.unique import UniqueKey, check_unique
from kombu_redisdelay.broker.unknown_tasks import find_waiting
from kombu_redisdelay.broker.unlisted import search_for
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.queue_reasons import isolated
from kombu_redisdelay.operations.stats import queue_stats
from tests.broker.database import Database
from tests.broker.rig import Rig, a_failure, dead_letter, park, payload, take_out, taken, trim_failed
from tools.harness.process import wait_until

HOUR = 3_600_000


def expire_and_recover(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.end_lease("q", consumer.name)
    return rig.recover("q")


def bury_and_requeue(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    dead_letter(consumer, delivery, "why")
    return take_out(rig.store, "q", REQUEUE)


def move_older_and_requeue(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.client.lpush(rig.store.keys("q").dead, "1700000000000 1 0 rejected\nm")
    return take_out(rig.store, "q", REQUEUE)


def fail_and_requeue(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.fail(consumer, "q", delivery.tag, a_failure("m"))
    finish(trim_failed(rig.store, Options().kept_failed, ["q"]))
    return len(list(Archive(rig.store, FAILED).take_out("q", REQUEUE, rig.failed("q"))))


def ack_where_places_are_limited(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    LimitStore(rig.store).limit(["q"], {"concurrency": 2})
    rig.put("q", "another")
    [another] = taken(consumer, "q")
    return rig.ack(consumer, "q", another.tag)


def publish_with_a_key(rig: Rig, consumer: Consumer, delivery: Delivery) -> None:
    rig.publish_unique("q", "m", UniqueKey("k", "latest"))
    # It says since when it is held.
    assert rig.client.delete(rig.key("q", "unique"))


def ack_with_a_key(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.publish_unique("q", "m", UniqueKey("k", "done"))
    *_, keyed = taken(consumer, "q")
    return rig.ack(consumer, "q", keyed.tag)


def check_keys(rig: Rig, consumer: Consumer, delivery: Delivery) -> None:
    rig.publish_unique("q", "m", UniqueKey("k", "done"))
    rig.client.delete(rig.store.keys("q").ready)
    rig.database.advance(1000)
    check_unique(rig.store, ["q"], {})


def remove_ready(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.put("q", "another")
    ready = ReadyLists(rig.store)
    return [ready.remove(found) for found in ready.iter("q")]


def tidy(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    in_use = [*(rig.key("q", name) for name in ("schedule", "messages", "dead", "control", "consumers"))]
    in_use.append(rig.store.keys("q").ready)
    keys = [rig.key("q", "consumers"), rig.key("q", "history"), *in_use, rig.key("q", "wake")]
    return TIDY(rig.store.server, keys, [rig.key("q", "unacked:"), 10, len(in_use)])


def defer_unknown(rig: Rig, consumer: Consumer, delivery: Delivery) -> None:
    consumer.defer_unknown("q", delivery.tag, "id", "task")
    consumer.confirm_acks()


def adopt(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    unacked = f"{rig.store.prefix}unacked"
    rig.client.hset(unacked, "tag", "taken")
    leftovers = Leftovers(rig.store, unacked, f"{unacked}_index")
    moved = leftovers.move([(Leftover(b"tag", b"taken"), Destination(("q",), 0, b"m", "id", HOUR))])
    return [outcome for _, _, outcome in moved]


def bring_back(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    queue = rig.store.keys("q").ready
    rig.client.lpush(f"{queue}:4", "a", "b")
    lists = StrandedLists(rig.store, lambda entry: Destined(entry.decode(), HOUR if entry == b"b" else None))
    return [moved for found in lists.find(["q"], [":"], ["q"]) for moved in lists.move(found)]


def schedule_ready(rig: Rig, consumer: Consumer, delivery: Delivery) -> object:
    rig.put("q", "early")
    lists = ReadyLists(rig.store)
    found = list(lists.iter("q"))
    return len(list(lists.schedule_all("q", found, lambda each: (each.payload.decode(), HOUR, False))))


BINDING = QueueBinding("films", "new", "", "q")

CALLS: dict[str, Callable[[Rig, Consumer, Delivery], object]] = {
    "bind": lambda rig, consumer, delivery: LastingBindings(rig.store).bind([BINDING], again=False),
    "unbind": lambda rig, consumer, delivery: LastingBindings(rig.store).unbind("q", "films", "new"),
    "clear_failed": lambda rig, consumer, delivery: Archive(rig.store, FAILED).clear("q"),
    "put": lambda rig, consumer, delivery: rig.store.run(rig.store.put("q", 0, "m", "head")),
    "publish_unique": publish_with_a_key,
    "ack_unique": ack_with_a_key,
    "check_unique": check_keys,
    "clear": lambda rig, consumer, delivery: rig.store.purge("q"),
    "schedule": lambda rig, consumer, delivery: rig.schedule("q", "m", HOUR),
    "schedule_all": lambda rig, consumer, delivery: rig.store.run_all(
        [rig.store.schedule("q", 0, "m", Due(delay_ms=HOUR), id) for id in ("id 1", "id 2")]
    ),
    "take": lambda rig, consumer, delivery: taken(consumer, "q"),
    "requeue": lambda rig, consumer, delivery: consumer.requeue("q", delivery.tag),
    "requeue_later": lambda rig, consumer, delivery: consumer.requeue("q", delivery.tag, HOUR),
    "defer_unknown": defer_unknown,
    "waiting_tasks": lambda rig, consumer, delivery: find_waiting(rig.store, {"q": ""}),
    "put_back": lambda rig, consumer, delivery: consumer.put_back([delivery]),
    "park": lambda rig, consumer, delivery: park(consumer, delivery, "id", rig.database.now_ms() + HOUR),
    "dead_letter": lambda rig, consumer, delivery: dead_letter(consumer, delivery, "why"),
    "recover": expire_and_recover,
    "give_back_all": lambda rig, consumer, delivery: consumer.give_back_all(),
    "renew": lambda rig, consumer, delivery: RENEW(rig.store.server, [rig.key("q", "consumers")], ["me", 1]),
    "mend schedule": lambda rig, consumer, delivery: MEND_SCHEDULE(
        rig.store.server,
        [rig.key("q", name) for name in ("schedule", "messages", "dead:index", "duplicates")],
        ["0", 10, 10],
    ),
    "page": lambda rig, consumer, delivery: list(Schedule(rig.store).iter("q", None, None)),
    "find": lambda rig, consumer, delivery: list(Schedule(rig.store).find("q", "id")),
    "cancel": lambda rig, consumer, delivery: Schedule(rig.store).cancel("q", ["id"]),
    "withdraw": lambda rig, consumer, delivery: list(Withdrawal(rig.store).by_ids("q", ["id"])),
    "claim": lambda rig, consumer, delivery: Withdrawal(rig.store).claim("q", "what", "who"),
    "remove": lambda rig, consumer, delivery: list(
        Schedule(rig.store).remove("q", [Scheduled("q", b"id", HOUR, b"0:m")])
    ),
    "reschedule": lambda rig, consumer, delivery: Schedule(rig.store).reschedule(
        Scheduled("q", b"id", HOUR, b"0:m"), b"m", HOUR
    ),
    "dead": bury_and_requeue,
    "older dead": move_older_and_requeue,
    "failed": fail_and_requeue,
    "finish": lambda rig, consumer, delivery: FINISH(
        rig.store.server,
        [rig.key("q", name) for name in ("finished", "finished:sent:me")],
        FINISH.arguments(["a line"], number=1, count=10, age_ms=HOUR),
    ),
    "forward": lambda rig, consumer, delivery: FORWARD(
        rig.store.server,
        [rig.key("q", name) for name in ("ready", "schedule", "messages", "wake", "consumers")],
        [1, 1, "", 0],
    ),
    "record": lambda rig, consumer, delivery: record(rig.store, ["q"]),
    "history": lambda rig, consumer, delivery: queue_history(rig.store, ["q"]),
    "stats": lambda rig, consumer, delivery: queue_stats(rig.store, ["q"]),
    "alone": lambda rig, consumer, delivery: isolated(rig.store, {"q": 1}, ["q"]),
    "consumers": lambda rig, consumer, delivery: CONSUMERS(
        rig.store.server, [rig.key("q", "consumers")], [1, 0.5, 10, 10]
    ),
    "remember": lambda rig, consumer, delivery: KNOWN(rig.store.server, [rig.known], [0, 0, 0, "a", "b"]),
    "unused": lambda rig, consumer, delivery: KNOWN(rig.store.server, [rig.known], [1, 1, 1, "q"]),
    "tidy": tidy,
    "fair": lambda rig, consumer, delivery: limit_keys(rig),
    "control": lambda rig, consumer, delivery: LimitStore(rig.store).limit(["q"], {"concurrency": 1}),
    "ack": ack_where_places_are_limited,
    "ready": lambda rig, consumer, delivery: list(ReadyLists(rig.store).iter("q")),
    "remove_ready": remove_ready,
    "held": lambda rig, consumer, delivery: len(list(UnackedHashes(rig.store).iter("q"))),
    "adopt": adopt,
    "bring_back": bring_back,
    "unwake": lambda rig, consumer, delivery: UNLIST(
        rig.store.server, (rig.store.keys("q").wake, rig.store.keys("q").ready), ("1",)
    ),
    "schedule_ready": schedule_ready,
    "leave": lambda rig, consumer, delivery: consumer.membership.leave(["q"]),
    "relist": lambda rig, consumer, delivery: search_for(rig.store, "q"),
}


def limit_keys(rig: Rig) -> tuple[list[str], list[StoredKeyLimits]]:
    fair = FairQueues(rig.store)
    fair.switch_on(["q"])
    fair.limit(["q"], StoredKeyLimits(concurrency=1))
    fair.limit_key("q", "key", StoredKeyLimits(concurrency=2))
    greatest = greatest_keys(rig.store, "q", 1)
    rig.store.purge("q")
    return greatest, [state.own for state in iter_keys(rig.store, "q")]


_SINCE = re.compile(rb'"redisdelay-unknown": \d+|\b\d{13,16}\b')


def everything(rig: Rig) -> dict[bytes, object]:
    """Every list and hash; not the zsets, which depend on the time."""
    contents: dict[bytes, object] = {}
    for key in rig.all_keys():
        kind = rig.client.type(key)
        if kind == b"list":
            contents[key] = [value.split(b" ", 1)[-1] for value in rig.client.lrange(key, 0, -1)]
        elif kind == b"hash":
            # Delivery tags are times.
            values = rig.client.hgetall(key)
            contents[key] = sorted(values.values()) if b":unacked" in key else _timeless(values)
        else:
            contents[key] = kind
    return contents


def _timeless(values: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """A hash without the moments at which a minute or an hour of the history began, and since when a message
    waits for a worker that knows its task, or is a dead letter."""
    of_history = (b"minute", b"hour")
    return {
        name: value.partition(b" ")[2] if name in of_history else _SINCE.sub(b"", value)
        for name, value in values.items()
    }


@pytest.mark.parametrize("name", CALLS)
def test_every_call_does_the_same(database: Database, name: str) -> None:
    results = []
    for flush in (False, True):
        database.reset()
        rig = Rig(database)
        rig.put("q", payload("0"), "1")
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q", limit=1)
        if flush:
            rig.client.script_flush()
        CALLS[name](rig, consumer, delivery)
        results.append(everything(rig))
    assert results[0] == results[1]


def test_the_script_is_there_afterwards(rig: Rig) -> None:
    rig.client.script_flush()
    rig.schedule("q", "m", HOUR)
    script, keys, args = rig.store.schedule("q", 0, "m", Due(delay_ms=HOUR), "another")
    assert script is SCHEDULE
    assert rig.store.server.call(*script.command(keys, args)) == 1


def test_an_ack_that_lacks_its_script_is_sent_again(rig: Rig) -> None:
    """And what was sent behind it gets its own reply."""
    rig.put("q", "0", "1")
    consumer = rig.consumer()
    first, second = taken(consumer, "q")
    consumer.defer_unknown("q", first.tag, "0", "task")
    consumer.confirm_acks()
    rig.client.script_flush()
    consumer.defer_unknown("q", second.tag, "1", "task")
    key = rig.store.keys("q").ready
    assert [consumer.store.server.call("LLEN", key), consumer.store.server.call("TYPE", key)] == [0, b"none"]
    consumer.confirm_acks()
    assert len(rig.scheduled("q")) == 2


def test_the_first_ack_is_done_though_nothing_is_sent_behind_it(rig: Rig) -> None:
    """A program without an event loop may do something else for an hour then."""
    rig.publish_unique("q", "0", UniqueKey("k", "done"))
    consumer = rig.consumer()
    for tag in (delivery.tag for delivery in taken(consumer, "q")):
        rig.client.script_flush()
        consumer.ack("q", tag)
    wait_until(lambda: not rig.client.exists(rig.key("q", "running")), 30, "the key is free")


def test_every_script_of_the_broker_is_tried() -> None:
    from kombu_redisdelay.broker.server import scripts

    names = {name for name, value in vars(scripts).items() if isinstance(value, scripts.Script)}
    assert names == {
        *("PUBLISH_UNIQUE", "CHECK_UNIQUE"),
        *("COUNT_KEYS", "CHECK_KEYS", "CLEAR_KEYS", "READ_KEYS", "FIND_GREATEST"),
        *("READ_ORDERS", "FIND_LARGE"),
        *("PUT", "CLEAR", "SCHEDULE", "TAKE", "LOOK", "GIVE_BACK", "ACK"),
        "FIND_UNKNOWN",
        *("PARK", "KEEP", "RENEW", "CONSUMERS", "MEND_SCHEDULE"),
        *("PAGE", "FIND", "REMOVE", "RESCHEDULE", "TAKE_OUT", "MOVE_DEAD"),
        *("CLAIM", "SET_LIMITS", "RECORD", "HISTORY"),
        *("PAGE_LIST", "MOVE_READY", "READ_UNACKED", "RELIST"),
        *("FORWARD", "STATS", "FIND_ISOLATED", "KNOWN", "TIDY", "UNLIST", "ADOPT"),
        *("TRIM", "FINISH"),
        "BIND",
    }, "a script that CALLS does not know of"
