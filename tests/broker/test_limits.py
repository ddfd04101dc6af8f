"""Queues that an operator pauses and limits."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from kombu_redisdelay.broker.delivery import Request
from kombu_redisdelay.broker.limits import Limits, LimitStore, default_burst, interval_us
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.operations.limits import MOST
from tests.broker.rig import LEASE_MS, Rig, dead_letter, park, payload, taken, takes_of, texts

HOUR = 3_600_000
HOUR_US = HOUR * 1000.0


def limit(
    rig: Rig,
    queue: str = "q",
    *,
    interval_us: float | None = None,
    burst: int = 1,
    concurrency: int | None = None,
) -> None:
    limits = {"interval_us": interval_us, "burst": burst if interval_us else None, "concurrency": concurrency}
    LimitStore(rig.store).limit([queue], limits)


def put(rig: Rig, count: int, queue: str = "q") -> None:
    rig.put(queue, *map(str, range(count)))


class TestForeignFields:
    """What another program has written there is no limit, and no error for the other queues of a consumer."""

    @pytest.mark.parametrize(
        ("fields", "unreadable"),
        [
            ({"interval_us": "abc", "burst": "2"}, "interval_us"),
            ({"interval_us": "1000"}, "burst"),
            ({"interval_us": "1000", "burst": "abc"}, "burst"),
            ({"interval_us": "0", "burst": "1"}, "interval_us"),
            ({"interval_us": "-1", "burst": "1"}, "interval_us"),
            ({"interval_us": "nan", "burst": "1"}, "interval_us"),
            ({"interval_us": "inf", "burst": "1"}, "interval_us"),
            ({"interval_us": "1e-320", "burst": "1"}, "interval_us"),
            ({"interval_us": "1e300", "burst": "1"}, "interval_us"),
            ({"paused_ms": "1e300"}, "paused_ms"),
            ({"concurrency": "abc"}, "concurrency"),
            ({"paused_ms": "abc"}, "paused_ms"),
        ],
        ids=str,
    )
    def test_are_no_limits(self, rig: Rig, fields: dict[str, str], unreadable: str) -> None:
        put(rig, 2)
        rig.client.hset(rig.key("q", "control"), mapping=fields)
        limits = LimitStore(rig.store)
        assert limits.get(["q"]) == [Limits()]
        assert limits.unreadable("q") == [unreadable]
        assert taken(rig.consumer(), "q") != []

    def test_the_count_of_what_was_held_back(self, rig: Rig) -> None:
        put(rig, 2)
        LimitStore(rig.store).pause(["q"])
        rig.client.hset(rig.key("q", "control"), "held_back", "abc")
        assert taken(rig.consumer(), "q") == []
        assert LimitStore(rig.store).get(["q"])[0].throttled == 0
        assert LimitStore(rig.store).unreadable("q") == ["held_back"]

    def test_the_others_stay(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, concurrency=2)
        rig.client.hset(rig.key("q", "control"), mapping={"interval_us": "abc", "full_at_us": "abc"})
        assert len(taken(rig.consumer(), "q")) == 2


class TestPause:
    def test_nothing_is_taken(self, rig: Rig) -> None:
        put(rig, 2)
        LimitStore(rig.store).pause(["q"])
        assert taken(rig.consumer(), "q") == []
        assert rig.ready("q") == ["0", "1"]

    def test_other_queues_are_taken_from(self, rig: Rig) -> None:
        put(rig, 1)
        put(rig, 1, "other")
        LimitStore(rig.store).pause(["q"])
        assert [delivery.queue for delivery in taken(rig.consumer(), "q", "other", in_turn=False)] == [
            "other"
        ]

    def test_what_is_due_becomes_ready(self, rig: Rig) -> None:
        rig.schedule("q", "due", 1000)
        rig.schedule("q", payload("large", body="x" * BYTES_PER_CALL), 2000)
        LimitStore(rig.store).pause(["q"])
        rig.database.advance(HOUR)
        assert taken(rig.consumer(), "q") == []
        assert rig.ready("q")[0] == "due"
        assert len(rig.ready("q")) == 2

    def test_nobody_is_woken_again_and_again(self, rig: Rig) -> None:
        put(rig, 1)
        LimitStore(rig.store).pause(["q"])
        took = rig.consumer().take(Request(["q"], 1))
        assert (took.more, took.due, rig.tokens("q")) == ({}, {}, 0)
        assert takes_of(rig.consumer(), ["q"]).look() == ({}, {})

    def test_resuming_wakes(self, rig: Rig) -> None:
        put(rig, 1)
        LimitStore(rig.store).pause(["q"])
        taken(rig.consumer(), "q")
        LimitStore(rig.store).resume(["q"])
        assert rig.tokens("q") == 1
        assert texts(taken(rig.consumer(), "q")) == ["0"]

    def test_what_is_held_can_be_acked(self, rig: Rig) -> None:
        put(rig, 1)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        LimitStore(rig.store).pause(["q"])
        assert rig.ack(consumer, "q", delivery.tag)

    def test_a_take_without_acks_too(self, rig: Rig) -> None:
        put(rig, 1)
        LimitStore(rig.store).pause(["q"])
        assert taken(rig.consumer(), "q", no_ack=["q"]) == []

    def test_a_paused_queue_stays_known(self, rig: Rig) -> None:
        LimitStore(rig.store).pause(["q"])
        assert rig.store.queues() == ["q"]


class TestRate:
    def test_a_burst_and_then_one_by_one(self, rig: Rig) -> None:
        put(rig, 10)
        limit(rig, interval_us=HOUR_US, burst=3)
        consumer = rig.consumer()
        assert len(taken(consumer, "q", limit=2)) == 2
        assert len(taken(rig.consumer("other"), "q")) == 1
        assert taken(consumer, "q") == []
        rig.database.advance(HOUR)
        assert len(taken(consumer, "q")) == 1
        rig.database.advance(2 * HOUR)
        assert len(taken(rig.consumer("other"), "q")) == 2
        rig.database.advance(100 * HOUR)
        assert len(taken(consumer, "q")) == 3

    def test_the_consumer_learns_when_to_come_back(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        taken(rig.consumer(), "q", limit=1)
        took = rig.consumer().take(Request(["q"], 1))
        assert took.due["q"] == pytest.approx(3600, abs=5)
        assert (took.more, rig.tokens("q")) == ({}, 0)
        looked = takes_of(rig.consumer(), ["q"]).look()
        assert looked.due["q"] == pytest.approx(3600, abs=5)
        assert looked.ready == {}

    def test_what_is_due_earlier_comes_first(self, rig: Rig) -> None:
        put(rig, 2)
        rig.schedule("q", "m", 60_000)
        limit(rig, interval_us=HOUR_US)
        taken(rig.consumer(), "q", limit=1)
        assert rig.consumer().take(Request(["q"], 1)).due["q"] == pytest.approx(60, abs=5)

    def test_without_ready_messages_nobody_comes_back_for_a_token(self, rig: Rig) -> None:
        put(rig, 1)
        limit(rig, interval_us=HOUR_US)
        assert rig.consumer().take(Request(["q"], 1)).due == {}

    def test_one_consumer_comes_for_all(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, interval_us=HOUR_US)
        busy, watcher, other = (rig.consumer(name) for name in ("busy", "watcher", "other"))
        taken(busy, "q", limit=1)
        # Who got something wakes another one.
        assert rig.tokens("q") == 1
        for _ in range(2):
            assert watcher.take(Request(["q"], 1)).due["q"] == pytest.approx(3600, abs=5)
            assert (other.take(Request(["q"], 1)).due, takes_of(other, ["q"]).look().due) == ({}, {})
            assert takes_of(watcher, ["q"]).look().due["q"] == pytest.approx(3600, abs=5)
        assert rig.tokens("q") == 0
        rig.database.advance(HOUR)
        took = watcher.take(Request(["q"], 1))
        assert (texts(took.deliveries), took.due, rig.tokens("q")) == (["1"], {}, 1)
        assert other.take(Request(["q"], 1)).due["q"] == pytest.approx(3600, abs=5)
        assert watcher.take(Request(["q"], 1)).due == {}

    def test_others_come_when_the_watcher_does_not(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        for name in ("busy", "watcher"):
            taken(rig.consumer(name), "q", limit=1)
        rig.database.advance(HOUR)
        assert takes_of(rig.consumer("other"), ["q"]).look().ready == {"q": 1}
        assert len(taken(rig.consumer("other"), "q")) == 1

    def test_a_new_rate_is_watched_anew(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        for name in ("busy", "watcher"):
            taken(rig.consumer(name), "q", limit=1)
        limit(rig, interval_us=HOUR_US / 2)
        assert rig.tokens("q") == 1
        assert rig.consumer("other").take(Request(["q"], 1)).due["q"] == pytest.approx(1800, abs=5)

    def test_nobody_watches_a_rate_that_has_ended(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US, concurrency=2)
        for name in ("busy", "watcher"):
            taken(rig.consumer(name), "q", limit=1)
        control = rig.store.keys("q").limits
        assert rig.client.hexists(control, "watcher")
        limit(rig, concurrency=2)
        assert set(rig.client.hkeys(control)) == {b"concurrency", b"held_back"}

    @pytest.mark.parametrize("how", ["full", "busy", "gone"])
    def test_a_watcher_that_has_something_else_to_do_wakes_another_one(self, rig: Rig, how: str) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        taken(rig.consumer("busy"), "q", limit=1)
        watcher, other = rig.consumer("watcher"), rig.consumer("other")
        taken(watcher, "q", "p")
        assert rig.tokens("q") == 0
        if how == "full":
            watcher.take(Request(["q", "p"], 0))
        elif how == "busy":
            put(rig, 1, "p")
            assert len(taken(watcher, "q", "p", limit=1)) == 1
        else:
            watcher.take(Request(["q"], 1, polls_again=False))
        assert rig.tokens("q") == 1
        assert other.take(Request(["q"], 1)).due["q"] == pytest.approx(3600, abs=5)

    def test_while_another_one_watches_a_token_is_used_up(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        for name in ("busy", "watcher"):
            taken(rig.consumer(name), "q", limit=1)
        rig.put("q", "new")
        assert rig.tokens("q") == 1
        rig.consumer("other").take(Request(["q"], 0))
        assert rig.tokens("q") == 0

    def test_one_who_has_no_room_wakes_others_when_a_token_comes(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        taken(rig.consumer(), "q")
        rig.database.advance(HOUR)
        taken(rig.consumer(), "q", limit=0)
        assert rig.tokens("q") == 1

    def test_a_repeated_take_does_not_count_again(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, interval_us=HOUR_US, burst=2)
        consumer = rig.consumer()
        request = Request(["q"], 1)
        rig.exchange(consumer, request)
        assert texts(consumer.take(request).deliveries) == ["0"]
        assert texts(taken(consumer, "q")) == ["1"]

    def test_a_large_message_counts(self, rig: Rig) -> None:
        for number in range(2):
            rig.schedule("q", payload(str(number), body="x" * BYTES_PER_CALL), 1000 + number)
        limit(rig, interval_us=HOUR_US)
        rig.database.advance(HOUR)
        assert len(taken(rig.consumer(), "q")) == 1
        assert taken(rig.consumer(), "q") == []

    def test_a_rate_that_was_much_lower_is_forgotten(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, interval_us=1000 * HOUR_US)
        taken(rig.consumer(), "q")
        limit(rig, interval_us=HOUR_US)
        assert taken(rig.consumer(), "q") == []
        rig.database.advance(HOUR)
        assert len(taken(rig.consumer(), "q")) == 1

    @pytest.mark.parametrize("factor", [0.5, 1, 2])
    def test_another_rate_goes_on_with_what_was_taken(self, rig: Rig, factor: float) -> None:
        put(rig, 20)
        limit(rig, interval_us=HOUR_US, burst=5)
        consumer = rig.consumer()
        assert len(taken(consumer, "q")) == 5
        limit(rig, interval_us=HOUR_US * factor, burst=5)
        assert taken(consumer, "q") == []
        rig.database.advance(round(2 * HOUR * factor))
        assert len(taken(consumer, "q")) == 2
        limit(rig, interval_us=HOUR_US, burst=8)
        assert len(taken(consumer, "q")) == 3

    def test_after_a_while_another_rate_begins_with_its_burst(self, rig: Rig) -> None:
        put(rig, 20)
        limit(rig, interval_us=HOUR_US, burst=5)
        taken(rig.consumer(), "q")
        rig.database.advance(10 * HOUR)
        limit(rig, interval_us=2 * HOUR_US, burst=3)
        assert len(taken(rig.consumer(), "q")) == 3

    def test_the_largest_burst_of_the_lowest_rate(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, interval_us=interval_us("0.01/h"), burst=MOST)
        taken(rig.consumer(), "q", limit=1)
        rig.client.hset(rig.key("q", "control"), "full_at_us", 1.9e9 * 1e6 + MOST * interval_us("0.01/h"))
        assert taken(rig.consumer(), "q") == []

    def test_a_clock_that_was_set_back_does_not_stop_the_queue(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        taken(rig.consumer(), "q")
        rig.client.hincrby(rig.key("q", "control"), "full_at_us", 10**15)
        assert rig.consumer().take(Request(["q"], 1)).due["q"] == pytest.approx(3600, abs=5)


class TestConcurrency:
    def test_of_all_consumers_together(self, rig: Rig) -> None:
        put(rig, 10)
        limit(rig, concurrency=3)
        assert len(taken(rig.consumer("one"), "q", limit=2)) == 2
        assert len(taken(rig.consumer("two"), "q")) == 1
        assert taken(rig.consumer("three"), "q") == []
        assert rig.tokens("q") == 0

    @pytest.mark.parametrize(
        "how", ["ack", "dead_letter", "requeue", "put_back", "park", "discard", "requeue_later"]
    )
    def test_a_place_that_becomes_free_wakes_somebody(self, rig: Rig, how: str) -> None:
        put(rig, 2)
        limit(rig, concurrency=1)
        consumer = rig.consumer(delivery_limit=1)
        [delivery] = taken(consumer, "q")
        assert rig.tokens("q") == 0
        if how == "ack":
            assert rig.ack(consumer, "q", delivery.tag)
            assert not rig.ack(consumer, "q", delivery.tag)
        elif how == "dead_letter":
            dead_letter(consumer, delivery, "why")
        elif how == "requeue":
            assert consumer.requeue("q", delivery.tag)
        elif how == "put_back":
            consumer.put_back([delivery])
        elif how == "park":
            rig.schedule("q", "due before", HOUR - 1000)
            rig.use_up_token("q")
            park(consumer, delivery, "id", rig.database.now_ms() + HOUR)
        elif how == "requeue_later":
            rig.schedule("q", "due before", 1000)
            rig.use_up_token("q")
            assert consumer.requeue("q", delivery.tag, HOUR)
        else:
            assert consumer.discard("q", delivery.tag)
            consumer.confirm_acks()
        assert rig.tokens("q") == 1
        assert len(taken(rig.consumer("other"), "q")) == 1

    def test_the_dead_keep_their_places_until_they_are_recovered(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, concurrency=1)
        taken(rig.consumer("dead"), "q")
        rig.database.advance(2 * LEASE_MS)
        assert taken(rig.consumer(), "q") == []
        rig.recover("q")
        assert len(taken(rig.consumer(), "q")) == 1

    def test_without_acks_nothing_is_held(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, concurrency=1)
        assert len(taken(rig.consumer(), "q", no_ack=["q"])) == 3

    def test_an_ack_over_a_new_connection_to_a_server_without_the_script(self, rig: Rig) -> None:
        put(rig, 1)
        limit(rig, concurrency=1)
        consumer = rig.consumer()
        [delivery] = taken(consumer, "q")
        rig.client.script_flush()
        consumer.disconnect()
        assert rig.ack(consumer, "q", delivery.tag)

    def test_when_the_limit_is_cleared_acks_are_as_before(self, rig: Rig) -> None:
        put(rig, 3)
        limit(rig, concurrency=1)
        consumer = rig.consumer()
        first = taken(consumer, "q")
        limit(rig)
        [delivery, *_] = [*taken(consumer, "q"), *first]
        rig.use_up_token("q")
        assert rig.ack(consumer, "q", delivery.tag)
        assert rig.tokens("q") == 0


class TestLimitStore:
    def test_of_a_queue_without(self, rig: Rig) -> None:
        assert LimitStore(rig.store).get(["q"]) == [Limits()]

    def test_what_was_set(self, rig: Rig) -> None:
        limits = LimitStore(rig.store)
        limits.limit(["q"], {"interval_us": interval_us("100/m"), "burst": 10, "concurrency": 20})
        limits.pause(["q"])
        [found] = limits.get(["q"])
        assert found.paused_ms == pytest.approx(rig.database.now_ms(), abs=10_000)
        assert (found.rate, found.burst, found.concurrency) == ("100/m", 10, 20)
        limits.resume(["q"])
        limits.limit(["q"], {"interval_us": None, "burst": None, "concurrency": None})
        assert rig.client.exists(rig.key("q", "control")) == 0

    def test_what_was_held_back_is_counted(self, rig: Rig) -> None:
        put(rig, 2)
        limit(rig, interval_us=HOUR_US)
        # The first take had no room for more.
        taken(rig.consumer(), "q", limit=1)
        taken(rig.consumer(), "q", limit=0)
        assert LimitStore(rig.store).get(["q"])[0].throttled == 0
        taken(rig.consumer(), "q", limit=1)
        assert LimitStore(rig.store).get(["q"])[0].throttled == 1

    def test_a_key_that_holds_something_else_is_no_limit_and_is_named(self, rig: Rig) -> None:
        put(rig, 1)
        put(rig, 1, "other")
        rig.client.set(rig.key("q", "control"), "x")
        assert takes_of(rig.consumer(), ["q"]).look().ready == {"q": 1}
        assert len(taken(rig.consumer(), "q", "other")) == 2
        limits, named = LimitStore(rig.store), r"redisdelay:\{q\}:control' holds a string"
        for use in (lambda: limits.get(["q"]), lambda: limits.pause(["q"])):
            with pytest.raises(ResponseError, match=named):
                use()


@pytest.mark.parametrize(
    ("rate", "interval", "burst"),
    [
        ("10/s", 100_000, 10),
        ("100/m", 600_000, 2),
        ("1/h", 3_600_000_000, 1),
        (4, 250_000, 4),
        ("0.5", 2_000_000, 1),
        ("1/s", 1_000_000, 1),
        (" 1000000/s ", 1, 1_000_000),
        (2**-14, 16_384_000_000, 1),
        ("0.01/h", 360_000_000_000, 1),
    ],
)
def test_rates(rate: str | float, interval: float, burst: int) -> None:
    assert interval_us(rate) == interval
    assert default_burst(interval) == burst


@pytest.mark.parametrize(
    "rate",
    ["", "0", "0/s", "0." + "0" * 400 + "1", "-1/s", "100/d", "1/ms", "x/s", "nan", "inf", True, None, -1, 0],
)
def test_no_rates(rate: object) -> None:
    with pytest.raises(ValueError, match="such as 10/s"):
        interval_us(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rate",
    ["1000001/s", "10000000000/h", 1e15, "0.00999/h", "0.00001/h", "9" * 400, "9" * 5000],
)
def test_rates_out_of_bounds(rate: str | float) -> None:
    with pytest.raises(ValueError, match=r"from 0\.01/h to 1000000/s"):
        interval_us(rate)


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        ("100/m", "100/m"),
        ("60/m", "1/s"),
        ("10/s", "10/s"),
        ("1/h", "1/h"),
        ("0.5/h", "0.5/h"),
        ("7/m", "7/m"),
        ("0.01/h", "0.01/h"),
        ("1000000/s", "1000000/s"),
        ("3599999/h", "3599999/h"),
    ],
)
def test_rates_are_shown(rate: str, shown: str) -> None:
    assert Limits(interval_us=interval_us(rate), burst=1).rate == shown
