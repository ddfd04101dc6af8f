"""A channel with more queues than one take works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic, sleep

import pytest
from kombu.entity import Queue
from kombu.transport import virtual

from kombu_redisdelay.broker.delivery import Looked, Peek, Taken
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE, Takes
from kombu_redisdelay.transport.consumed_queues import LOOK_AFTER, QUEUES_OF_MORE, PolledQueues
from tests.clock import Clock
from tests.transport.kit import Inbox, Site, drain, publish, waits

MANY = [f"q{number:02}" for number in range(3 * QUEUES_PER_TAKE)]


def looked(ready: Sequence[str] = (), due: Mapping[str, float] | None = None) -> Looked:
    return Looked(dict.fromkeys(ready, 1), due or {})


def left(more: Sequence[str] = (), due: Mapping[str, float] | None = None) -> Taken:
    return Taken([], 0, due or {}, dict.fromkeys(more, 1))


def choose(polled: PolledQueues, order: Sequence[str]) -> Sequence[str]:
    return polled.choose(order)[0]


class TestPolledQueues:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def polled(self, clock: Clock) -> PolledQueues:
        polled = PolledQueues(MANY, clock)
        polled.looked(looked())
        return polled

    def test_few_queues_are_always_asked(self, polled: PolledQueues) -> None:
        assert choose(polled, MANY[:QUEUES_PER_TAKE]) == MANY[:QUEUES_PER_TAKE]
        assert not polled.needs_look(MANY[:QUEUES_PER_TAKE])

    def test_of_many_those_that_have_something(self, polled: PolledQueues) -> None:
        polled.woken("q30")
        polled.looked(looked(["q20"]))
        polled.taken(["q10"], left(["q10"]))
        assert choose(polled, MANY) == ["q10", "q20", "q30"]
        assert choose(polled, MANY[::-1]) == ["q30", "q20", "q10"]
        assert polled

    def test_one_that_a_take_has_emptied_is_not_polled(self, polled: PolledQueues) -> None:
        polled.woken("q30")
        polled.taken(["q30"], left())
        assert list(choose(polled, MANY)) == []
        assert not polled

    def test_the_first_in_order(self, polled: PolledQueues) -> None:
        polled.looked(looked(MANY))
        assert polled.choose(MANY) == (MANY[:QUEUES_OF_MORE], True)

    def test_what_is_due_comes_first(self, polled: PolledQueues, clock: Clock) -> None:
        polled.looked(looked(MANY, {"q47": 5, "q46": 6}))
        assert polled.next_due() == 5
        clock.now += 5
        assert polled.next_due() == 0
        assert choose(polled, MANY) == [*MANY[: QUEUES_OF_MORE - 1], "q47"]

    def test_however_much_is_due_there_is_place_for_what_is_ready(self, polled: PolledQueues) -> None:
        polled.looked(looked(["q40"], dict.fromkeys(MANY[:30], 0)))
        assert "q40" in choose(polled, MANY)

    def test_the_highest_priorities_come_first(self, polled: PolledQueues) -> None:
        polled.looked(Looked({**dict.fromkeys(MANY, 2), "q45": 1, "q30": 4, "q40": 1}, {}))
        chosen = choose(polled, MANY)
        assert chosen == [*MANY[: QUEUES_OF_MORE - 2], "q40", "q45"]
        polled.taken(chosen, left())
        assert "q30" not in choose(polled, MANY)

    def test_so_much_is_due_that_it_takes_several(self, polled: PolledQueues) -> None:
        polled.looked(looked(due=dict.fromkeys(MANY, 0.0)))
        seen: list[str] = []
        while polled.next_due() is not None:
            chosen = choose(polled, MANY)
            seen += chosen
            polled.taken(chosen, left())
        assert seen == MANY

    def test_a_due_time_that_was_cancelled_is_forgotten(self, polled: PolledQueues) -> None:
        polled.looked(looked(due={"q05": 7}))
        polled.taken(["q05"], left())
        assert polled.next_due() is None

    def test_of_schedules_that_were_not_looked_at_nothing_is_forgotten(self, polled: PolledQueues) -> None:
        polled.looked(looked(due={"q05": 7, "q15": 6}))
        polled.peeked(Peek(False, {}, MANY[10:]))
        assert polled.next_due() == 7

    def test_a_queue_that_was_cancelled_stays_away(self, polled: PolledQueues) -> None:
        """Also if a reply that was on its way names it."""
        consumed = dict.fromkeys(MANY)
        polled = PolledQueues(consumed)
        polled.woken("q05")
        del consumed["q05"]
        polled.forget("q05")
        polled.taken([], left(["q05"], {"q05": 0}))
        polled.looked(looked(["q05"], {"q05": 0}))
        assert not polled
        assert polled.next_due() is None

    def test_looks_once_in_a_while(self, polled: PolledQueues, clock: Clock) -> None:
        assert not polled.needs_look(MANY)
        clock.now += LOOK_AFTER
        assert polled.needs_look(MANY)
        polled.looked(looked())
        assert not polled.needs_look(MANY)
        polled.look_soon()
        assert polled.needs_look(MANY)


class TestChannel:
    def test_every_queue_is_served(self, site: Site) -> None:
        channel = site.channel()
        for queue in MANY:
            publish(channel, queue, f"{queue} again", queue=queue)
        inbox = Inbox(channel, *MANY, prefetch=5, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: len(inbox) == 2 * len(MANY))
        assert sorted(inbox.bodies) == sorted([*MANY, *(f"{queue} again" for queue in MANY)])

    def test_in_turn(self, site: Site) -> None:
        channel = site.channel()
        for queue in MANY:
            publish(channel, *[queue] * 3, queue=queue)
        inbox = Inbox(channel, *MANY, prefetch=1, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: len(inbox) == len(MANY) + 1)
        assert set(inbox.bodies[: len(MANY)]) == set(MANY)

    @pytest.mark.one_server
    @pytest.mark.parametrize("strategy", ["priority", "sorted"])
    def test_in_strict_order(self, site: Site, strategy: str) -> None:
        """Also for what comes while later queues are being emptied."""
        channel = site.channel(queue_order_strategy=strategy)
        for queue in MANY[10:]:
            publish(channel, queue, queue, queue=queue)

        def ack(message: virtual.Message) -> None:
            if len(inbox) == 40:
                publish(channel, "urgent", queue=MANY[3])
            message.ack()

        inbox = Inbox(channel, *MANY, prefetch=1, on_message=ack)
        expected = [queue for queue in MANY[10:] for _ in range(2)]
        expected.insert(40, "urgent")
        drain(channel.connection.client, lambda: len(inbox) == len(expected))
        assert inbox.bodies == expected

    @pytest.mark.one_server
    def test_a_high_priority_comes_before_what_is_polled(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, *["low"] * 10, queue=MANY[20], priority=9)

        def ack(message: virtual.Message) -> None:
            if len(inbox) == 5:
                publish(channel, "high", queue=MANY[40], priority=0)
            message.ack()

        inbox = Inbox(channel, *MANY, prefetch=1, on_message=ack)
        drain(channel.connection.client, lambda: len(inbox) == 11)
        assert inbox.bodies.index("high") == 5

    @pytest.mark.one_server
    @pytest.mark.parametrize("strategy", ["priority", "round_robin"])
    @pytest.mark.parametrize("prefetch", [1, 7])
    def test_priorities_count_among_all_that_is_ready(self, site: Site, strategy: str, prefetch: int) -> None:
        channel = site.channel(queue_order_strategy=strategy)
        for number, queue in enumerate(MANY):
            for priority in (9, 6, 3, 0)[number % 3 :]:
                publish(channel, str(priority), queue=queue, priority=priority)
        inbox = Inbox(channel, *MANY, prefetch=prefetch, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: len(inbox) == len(MANY) * 3)
        assert inbox.bodies == sorted(inbox.bodies)

    @pytest.mark.one_server
    def test_none_starves_while_messages_are_due_in_others(self, site: Site) -> None:
        channel = site.channel()
        for queue in MANY[:30]:
            for number in range(20):
                publish(channel, "due", queue=queue, headers={"x-delay": 1 + 20 * number})

        def ack(message: virtual.Message) -> None:
            sleep(0.01)
            message.ack()

        inbox = Inbox(channel, *MANY, prefetch=1, on_message=ack)
        publish(channel, "plain", queue=MANY[40])
        drain(channel.connection.client, lambda: "plain" in inbox.bodies)
        assert len(inbox) < 300

    def test_a_queue_that_wakes_us_is_known_after_a_get_of_another(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        channel = site.channel()
        # A second later it would be found anyway.
        monkeypatch.setattr(Takes, "peek", lambda takes: Peek(False, {}, ()))
        monkeypatch.setattr(Takes, "look", lambda takes: Looked({}, {}))
        inbox = Inbox(channel, *MANY, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: waits(channel))
        assert channel.basic_get("another") is None
        publish(site.channel(), "m", queue=MANY[40])
        drain(channel.connection.client, lambda: len(inbox) == 1)

    @pytest.mark.parametrize("is_busy", [False, True])
    def test_what_adds_no_token_is_found(self, site: Site, is_busy: bool) -> None:
        """A stock producer does not."""
        channel = site.channel()
        publish(channel, "stock", queue=MANY[40])
        raw = site.redis.rpop(site.keys(MANY[40]).ready)
        site.redis.delete(site.keys(MANY[40]).wake)
        if is_busy:
            publish(channel, "again", queue=MANY[0])

        def ack(message: virtual.Message) -> None:
            if message.payload == "again":
                publish(channel, "again", queue=MANY[0])
            message.ack()

        inbox = Inbox(channel, *MANY, on_message=ack)
        drain(channel.connection.client, lambda: not channel.intake.expects_more or len(inbox) > 5)
        site.redis.lpush(site.keys(MANY[40]).ready, raw)
        drain(channel.connection.client, lambda: "stock" in inbox.bodies)

    @pytest.mark.one_server
    @pytest.mark.usefixtures("long_polls")
    def test_countdowns_of_many_queues_come_in_time(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel, *MANY, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: not channel.intake.expects_more)
        began = monotonic()
        for queue in MANY:
            publish(channel, queue, queue=queue, headers={"x-delay": 2500})
        drain(channel.connection.client, lambda: len(inbox) == len(MANY))
        assert monotonic() - began > 2.4

    def test_a_cancelled_queue_is_left_alone(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel, *MANY, on_message=virtual.Message.ack)
        drain(channel.connection.client, lambda: not channel.intake.expects_more)
        inbox.consumer.cancel_by_queue(MANY[5])
        publish(channel, "left", queue=MANY[5])
        publish(channel, "wanted", queue=MANY[6])
        drain(channel.connection.client, lambda: len(inbox) == 1)
        drain(channel.connection.client, lambda: not channel.intake.expects_more)
        assert inbox.bodies == ["wanted"]
        assert site.ready(MANY[5]) == 1
        inbox.consumer.add_queue(Queue(MANY[5]))
        inbox.consumer.consume()
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["wanted", "left"]
