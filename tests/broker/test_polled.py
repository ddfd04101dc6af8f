"""Takes of a consumer with many queues: from the polled ones, and from those that were woken meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.delivery import Request, Taken
from kombu_redisdelay.broker.takes import QUEUES_PER_TAKE
from tests.broker.rig import Rig, payload, takes_of, texts

HOUR = 3_600_000
MANY = [f"q{number:03}" for number in range(300)]


@pytest.fixture
def me(rig: Rig) -> Consumer:
    return rig.consumer()


def take(consumer: Consumer, polled: Sequence[str] = (), *, limit: int = 64, in_turn: bool = True) -> Taken:
    return consumer.take(Request(MANY, limit, in_turn, polled=polled))


class TestWhatIsPolled:
    def test_is_taken_from_and_nothing_else(self, rig: Rig, me: Consumer) -> None:
        for queue in MANY[:3]:
            rig.put(queue, queue)
            rig.use_up_token(queue)
        taken = take(me, [MANY[2], MANY[0]])
        assert texts(taken.deliveries) == [MANY[2], MANY[0]]
        assert taken.more == {}

    def test_may_have_more(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[5], "a", "b")
        taken = take(me, [MANY[5], MANY[6]], limit=1)
        assert texts(taken.deliveries) == ["a"]
        assert taken.more == {MANY[5]: 1}
        assert rig.tokens(MANY[5]) == 1

    def test_is_migrated_and_tells_when_the_next_is_due(self, rig: Rig, me: Consumer) -> None:
        rig.schedule(MANY[1], "now", 1000)
        rig.schedule(MANY[1], "later", 2 * HOUR)
        rig.schedule(MANY[2], "not looked at", 2 * HOUR)
        rig.use_up_token(MANY[1])
        rig.use_up_token(MANY[2])
        rig.database.advance(HOUR)
        taken = take(me, [MANY[1]])
        assert texts(taken.deliveries) == ["now"]
        assert list(taken.due) == [MANY[1]]

    def test_more_than_a_take_works_on(self, rig: Rig, me: Consumer) -> None:
        for queue in MANY[:20]:
            rig.put(queue, queue)
        taken = take(me, MANY[:20])
        assert texts(taken.deliveries) == MANY[:QUEUES_PER_TAKE]
        assert taken.more == dict.fromkeys(MANY[QUEUES_PER_TAKE:20], 1)


class TestWhatWasWoken:
    def test_is_taken_from(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[7], "polled")
        rig.put(MANY[200], "woken")
        taken = take(me, [MANY[7]])
        assert texts(taken.deliveries) == ["polled", "woken"]
        assert rig.tokens(MANY[200]) == 0

    def test_a_higher_priority_comes_first(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[7], "low", step=9)
        rig.put(MANY[200], "high", step=0)
        assert texts(take(me, [MANY[7]], limit=1).deliveries) == ["high"]

    @pytest.mark.parametrize("ready", [1, 17, 40, 300])
    def test_strict_order_holds_for_any_number(self, rig: Rig, me: Consumer, ready: int) -> None:
        """Whatever the caller believes to be polled."""
        for queue in MANY[-ready:]:
            rig.put(queue, queue)
        polled = MANY[-ready:][-QUEUES_PER_TAKE:]
        assert texts(take(me, polled, limit=2, in_turn=False).deliveries) == MANY[-ready:][:2]

    def test_if_there_is_no_place_it_may_have_more(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[200], "woken")
        taken = take(me, MANY[:QUEUES_PER_TAKE], in_turn=False)
        assert taken.deliveries == []
        assert taken.more == {MANY[200]: 1}
        assert rig.tokens(MANY[200]) == 1

    def test_if_nobody_asks_for_it_it_waits(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[200], "woken")
        taken = me.take(Request(MANY, 64, polled=MANY[:3], also_woken=False))
        assert (taken.deliveries, taken.more) == ([], {})
        assert rig.tokens(MANY[200]) == 1

    @pytest.mark.parametrize("limit", [0, 5])
    def test_nothing_is_polled_and_nobody_asks_for_it(self, rig: Rig, me: Consumer, limit: int) -> None:
        """As when an alarm goes off for a message that was cancelled, while there is no credit."""
        assert me.take(Request(MANY, limit, polled=[], also_woken=False)).deliveries == []
        takes_of(me, MANY).ask_for(Request(MANY, limit, polled=[], also_woken=False))

    @pytest.mark.many_messages
    def test_none_is_passed_over_for_ever(self, rig: Rig, me: Consumer) -> None:
        """Also if all others are woken again and again."""
        came: set[str] = set()
        for _ in range(-(-len(MANY) // QUEUES_PER_TAKE)):
            for queue in MANY:
                rig.put(queue, queue)
            came |= {delivery.queue for delivery in take(me, limit=QUEUES_PER_TAKE).deliveries}
        assert came == set(MANY)

    def test_without_acks_and_with_expiry(self, rig: Rig, me: Consumer) -> None:
        rig.expires_ms[MANY[9]] = HOUR
        for queue in (MANY[8], MANY[9]):
            rig.put(queue, queue)
        taken = me.take(Request(MANY, 64, no_ack=[MANY[8]], polled=[]))
        assert [delivery.needs_ack for delivery in taken.deliveries] == [False, True]
        assert rig.unacked(MANY[8]) == {}
        assert rig.client.pttl(rig.store.keys(MANY[9]).unacked("me")) > 0
        assert rig.client.pttl(rig.store.keys(MANY[9]).consumers) > HOUR

    def test_a_prefix_and_a_name_like_a_key(self, rig: Rig) -> None:
        prefixed = Rig(rig.database, prefix="redisdelay:{x}:wake")
        odd = "redisdelay:{a}:wake}:wake"
        prefixed.put(odd, "m", step=3)
        taken = prefixed.consumer().take(Request([*MANY, odd], 1, polled=[]))
        assert [(delivery.queue, delivery.payload) for delivery in taken.deliveries] == [(odd, b"m")]

    def test_it_is_held_by_a_known_consumer(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[30], payload("m"))
        take(me)
        rig.end_lease(MANY[30])
        assert rig.recover(MANY[30]) == 1


class TestLostReply:
    def lose(self, rig: Rig, consumer: Consumer, polled: Sequence[str], limit: int = 64) -> None:
        rig.exchange(consumer, Request(MANY, limit, polled=polled))

    def test_brings_what_was_woken_again(self, rig: Rig, me: Consumer) -> None:
        """Nobody has heard which queues these were."""
        rig.put(MANY[1], "polled", "polled too")
        rig.put(MANY[250], "woken", "woken too")
        self.lose(rig, me, [MANY[1]], limit=3)
        assert rig.ready(MANY[250]) == ["woken too"]
        assert texts(take(me, limit=3).deliveries) == ["polled", "woken", "polled too"]
        assert texts(take(me, [MANY[250]]).deliveries) == ["woken too"]

    def test_lost_twice(self, rig: Rig, me: Consumer) -> None:
        rig.put(MANY[250], "woken")
        self.lose(rig, me, [])
        rig.put(MANY[251], "later")
        self.lose(rig, me, [])
        assert texts(take(me).deliveries) == ["woken"]
        assert texts(take(me).deliveries) == ["later"]

    def test_the_first_never_arrived(self, rig: Rig, me: Consumer) -> None:
        takes_of(me, MANY).ask_for(Request(MANY, 64, polled=[]))
        rig.put(MANY[250], "woken")
        # Tokens are looked at by the take after this one.
        assert texts(take(me).deliveries) == []
        assert texts(take(me).deliveries) == ["woken"]
