"""Messages that come without a token: of ``redis://`` producers, and of programs that push to a list."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kombu.transport import virtual

from kombu_redisdelay.broker import members
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.consumed_queues import (
    GROUPS,
    LOOK_AGAIN,
    LOOK_AT_LEAST_EVERY,
    LOOK_EVERY,
    LOOK_NO_MORE,
    SETTLE,
    Tokenless,
    groups_of,
)
from tests.clock import Clock
from tests.transport.kit import LONG_POLL, Inbox, Site, drain, event_loop, publish, turn, waits

FEW = ["q1", "q2"]
MANY = [f"q{number:03}" for number in range(10 * QUEUES_PER_TAKE)]


class TestForeign:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def foreign(self, clock: Clock) -> Tokenless:
        return Tokenless(clock)

    def test_at_first_nothing_is_looked_for(self, foreign: Tokenless) -> None:
        assert foreign.next_look() is None
        foreign.peeked(FEW, any_ready=False)
        assert foreign.next_look() is None

    def test_what_is_there_twice_counts(self, foreign: Tokenless, clock: Clock) -> None:
        foreign.peeked(FEW, any_ready=True)
        assert foreign.next_look() == pytest.approx(SETTLE)
        clock.now += SETTLE
        groups = foreign.begin(FEW)
        assert foreign.looked(groups) == groups == groups_of(FEW)
        foreign.found(["q1"])
        assert foreign.next_look() == pytest.approx(LOOK_EVERY)

    def test_what_is_gone_at_the_second_look_does_not(self, foreign: Tokenless) -> None:
        """Somebody was woken by a token, and has it."""
        foreign.peeked(FEW, any_ready=True)
        foreign.begin(FEW)
        assert foreign.looked([]) == []
        assert foreign.next_look() is None

    def test_a_look_that_cannot_be_now_is_later(self, foreign: Tokenless, clock: Clock) -> None:
        foreign.peeked(FEW, any_ready=True)
        clock.now += SETTLE
        foreign.postpone()
        assert foreign.next_look() == pytest.approx(LOOK_EVERY)
        clock.now += LOOK_EVERY
        groups = foreign.begin(FEW)
        assert foreign.looked(groups) == groups

    def test_what_a_look_sees_is_looked_at_again(self, foreign: Tokenless) -> None:
        foreign.found(["q1"])
        groups = foreign.begin(MANY)
        assert foreign.looked(groups[1:2]) == ()
        assert foreign.next_look() == pytest.approx(SETTLE)
        assert foreign.begin(MANY) == groups[1:2]

    def test_looks_become_rare_and_end(self, foreign: Tokenless, clock: Clock) -> None:
        foreign.found(["q1"])
        waits = []
        while (wait := foreign.next_look()) is not None:
            waits.append(wait)
            clock.now += wait
            foreign.begin(FEW)
            foreign.looked([])
        assert waits == sorted(waits)
        assert waits[0] == pytest.approx(LOOK_EVERY)
        assert waits[-1] < LOOK_NO_MORE
        assert len(waits) < 250

    def test_another_consumer_may_be_faster(self, foreign: Tokenless) -> None:
        foreign.found(["q1"])
        foreign.found([])
        assert foreign.next_look() == pytest.approx(2 * LOOK_EVERY)
        foreign.found(["q1"])
        assert foreign.next_look() == pytest.approx(LOOK_EVERY)

    def test_looks_at_what_is_held_back_end_soon(self, foreign: Tokenless) -> None:
        foreign.found(["q1"])
        looks = 0
        while foreign.next_look() is not None:
            foreign.found([])
            looks += 1
        assert looks == 5
        foreign.taken()
        assert foreign.next_look() == pytest.approx(LOOK_AGAIN)

    def test_what_is_held_back_for_days_does_no_harm(self, foreign: Tokenless) -> None:
        """A paused queue: there is a take in vain each second."""
        foreign.found(["q1"])
        for _ in range(100_000):
            foreign.found([])
        assert foreign.next_look() is None
        foreign.found(["q1"])
        assert foreign.next_look() == pytest.approx(LOOK_EVERY)

    def test_tokens_do_not_keep_us_from_looking(self, foreign: Tokenless, clock: Clock) -> None:
        foreign.peeked(FEW, any_ready=False)
        clock.now += LOOK_AT_LEAST_EVERY / 2
        foreign.woken()
        assert foreign.next_look() is None
        clock.now += LOOK_AT_LEAST_EVERY / 2
        foreign.woken()
        wait = foreign.next_look()
        assert wait == pytest.approx(LOOK_EVERY)
        clock.now += LOOK_EVERY / 2
        foreign.woken()
        assert foreign.next_look() == pytest.approx(LOOK_EVERY / 2)

    def test_of_many_queues_some_are_looked_at_and_each_in_its_turn(self, foreign: Tokenless) -> None:
        foreign.found(["q157", "q003"])
        seen: set[str] = set()
        for _ in range(-(-len(groups_of(MANY)) // GROUPS)):
            first, *others = foreign.begin(MANY)
            assert first == ("q157", "q003")
            assert len(others) == GROUPS
            assert max(map(len, others)) == QUEUES_PER_TAKE
            seen.update(*others)
            foreign.looked([])
        assert seen == set(MANY)

    def test_only_the_latest_are_looked_at_each_time(self, foreign: Tokenless) -> None:
        foreign.found(MANY)
        assert foreign.begin(MANY)[0] == tuple(MANY[-QUEUES_PER_TAKE:])

    def test_a_queue_that_was_cancelled_stays_away(self, foreign: Tokenless) -> None:
        foreign.found(["q157", "q003"])
        foreign.looked(foreign.begin(MANY)[:1])
        foreign.forget("q003")
        assert not any("q003" in group for group in foreign.begin(MANY[4:]))


Run = Callable[[Callable[[], object]], None]


@pytest.mark.one_server
@pytest.mark.parametrize("count", [1, QUEUES_PER_TAKE, 3 * QUEUES_PER_TAKE, 10 * QUEUES_PER_TAKE])
@pytest.mark.parametrize("has_hub", [False, True])
class TestChannel:
    @pytest.fixture
    def channel(self, site: Site) -> Channel:
        channel: Channel = site.channel()
        return channel

    @pytest.fixture
    def run(self, channel: Channel, has_hub: bool) -> Run:
        connection = channel.connection.client
        if not has_hub:
            return lambda until: drain(connection, until)
        loop = event_loop(connection)
        return lambda until: turn(loop, until)

    @staticmethod
    def push(site: Site, channel: Channel, body: str, queue: str) -> None:
        """As a program that knows neither tokens nor what is ours in a message."""
        publish(channel, body, queue="elsewhere")
        message = json.loads(site.redis.rpop("elsewhere"))
        members.take_out(message)
        site.redis.lpush(queue, json.dumps(message))

    def test_one_that_was_found_is_followed_by_looks(
        self, site: Site, channel: Channel, run: Run, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From then on, nothing ends the wait for a token here, so whatever is noticed was looked for."""
        inbox = Inbox(channel, *MANY[:count], prefetch=1)
        run(lambda: waits(channel))
        self.push(site, channel, "first", MANY[count - 1])
        run(lambda: len(inbox) == 1)
        monkeypatch.setattr(channel, "brpop_timeout", LONG_POLL)
        inbox.messages[0].ack()
        [fetcher] = channel.intake.fetchers
        run(lambda: waits(channel) and fetcher._timeout >= LONG_POLL)
        # The same queue, and others.
        for number, queue in enumerate((MANY[count - 1], MANY[count // 2], MANY[0]), 2):
            self.push(site, channel, str(number), queue)
            run(lambda number=number: len(inbox) == 2 * number - 2)  # type: ignore[misc]
            # While this one is held, there is no room for another.
            self.push(site, channel, "held back", queue)
            inbox.messages[-1].ack()
            run(lambda number=number: len(inbox) == 2 * number - 1)  # type: ignore[misc]
            inbox.messages[-1].ack()

    def test_one_that_was_there_before_is_followed_by_looks(
        self, site: Site, channel: Channel, run: Run, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody has looked for it. After a lost connection, a worker begins so."""
        monkeypatch.setattr(channel, "brpop_timeout", LONG_POLL)
        self.push(site, channel, "before", MANY[0])
        inbox = Inbox(channel, *MANY[:count], on_message=virtual.Message.ack)
        run(lambda: len(inbox) == 1)
        run(lambda: waits(channel))
        self.push(site, channel, "after", MANY[count - 1])
        run(lambda: len(inbox) == 2)

    def test_messages_with_tokens_cause_no_looks(
        self, site: Site, channel: Channel, run: Run, count: int
    ) -> None:
        inbox = Inbox(channel, *MANY[:count], on_message=virtual.Message.ack)
        run(lambda: waits(channel))
        for number in range(1, 6):
            publish(channel, "ours", queue=MANY[number % count])
            run(lambda number=number: len(inbox) == number)  # type: ignore[misc]
        [fetcher] = channel.intake.fetchers
        due = fetcher.next_due()
        assert due is None or due <= LOOK_EVERY
        run(lambda: fetcher.next_due() is None)
