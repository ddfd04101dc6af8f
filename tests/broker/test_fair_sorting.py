"""How messages come into a fair queue and out of it again, and which keys they have there."""

from __future__ import annotations

import json

import pytest

from kombu_redisdelay.broker.fair_keys import (
    OFF,
    ON,
    PLAIN,
    FairKey,
    StoredKeyLimits,
    fair_key_of,
    key_of,
)
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.broker.unique import DONE, DROPPED, Conflict, UniqueKey
from tests.broker.fair_kit import ids, keys_of, numbered, publish, take_all
from tests.broker.rig import Rig, taken
from tests.broker.test_fair_invariant import fair_payload, id_of
from tests.broker.test_mover import look, mover_of

HOUR = 3_600_000

BAD = [
    '"x-key": 5',
    '"x-key": null',
    '"x-key": {"x-key": "a"}',
    '"x-key": "%s"' % ("a" * 65),
    '"x-key": "a\\u0000"',
    '"x-key": "a\\u0085"',
    '"x-key": "a\\"b"',
    '"x-key": "a\\\\b"',
    '"x-key": "\\ud800"',
    '"other": {"x-key": "a"}',
    '"x-key": "a" "b"',
    '"x-key": ' + "[" * 2000,
    '"other": "' + "o" * 3_000_000 + '", "x-key": "a"',
    '"other": "\\"x-key\\": \\"a\\""',
    '"other": "x"}, "body": "\\"headers\\": {\\"x-key\\": \\"a\\"}", "other": {"x-key": "a"',
    '"x-key": "a"}, "headers": {"x-key": 5',
    '"x-key": "a", "x-key": null',
]


@pytest.mark.usefixtures("fair")
class TestKeys:
    def stock(self, rig: Rig, headers: str) -> str:
        text = f'{{"body": "", "headers": {{"id": "1", {headers}}}, "properties": {{}}}}'
        rig.client.lpush(rig.store.keys("q").ready, text)
        return text

    @pytest.mark.parametrize("headers", BAD, ids=lambda text: text[:30])
    def test_what_cannot_be_a_key_is_none(self, rig: Rig, headers: str) -> None:
        text = self.stock(rig, headers)
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.lrange(rig.store.keys("q").key_list(0, ""), 0, -1) == [text.encode()]

    @pytest.mark.parametrize("weight", ["0", "-1", "1e400", '"2"', "NaN", "1001", "null"])
    def test_what_cannot_be_a_weight_is_one(self, rig: Rig, weight: str) -> None:
        self.stock(rig, f'"x-key": "a", "x-key-weight": {weight}')
        [delivery] = taken(rig.consumer(), "q")
        assert key_of(delivery.payload) == (FairKey("a") if weight != "NaN" else key_of(delivery.payload))

    def test_what_a_stock_producer_pushes_gets_the_member(self, rig: Rig) -> None:
        rig.client.lpush(rig.store.keys("q").ready, fair_payload("1", "é", 2.5, stock=True))
        [delivery] = taken(rig.consumer(), "q")
        assert delivery.payload.startswith('{"redisdelay-key": "2.5 é", "body"'.encode())

    def test_a_member_may_be_escaped(self, rig: Rig) -> None:
        text = json.dumps({"redisdelay-due": 1, "redisdelay-key": "1 é", "body": "", "headers": {"id": "1"}})
        assert "\\u00e9" in text
        rig.put("q", text)
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.llen(rig.store.keys("q").key_list(0, "é")) == 1

    @pytest.mark.parametrize("member", [b"1 \xc3", b"1 \xed\xa0\x80", b"1 \xc0\x80", b"1 " + b"a" * 65])
    def test_a_member_that_is_no_key_is_none(self, rig: Rig, member: bytes) -> None:
        rig.client.lpush(rig.store.keys("q").ready, b'{"redisdelay-key": "' + member + b'", "headers": {}}')
        taken(rig.consumer(), "q", limit=0)
        assert rig.client.llen(rig.store.keys("q").key_list(0, "")) == 1

    def test_what_is_no_message_has_no_key(self, rig: Rig) -> None:
        rig.client.lpush(rig.store.keys("q").ready, "", "{}", "[]", "nonsense", b"\xff")
        assert len(taken(rig.consumer(), "q")) == 5

    def test_of_headers(self) -> None:
        assert fair_key_of({}) is None
        assert fair_key_of({"x-key": "a", "x-key-weight": 2}) == FairKey("a", 2)
        for headers in (
            {"x-key": 5},
            {"x-key": "a" * 65},
            {"x-key": 'a"'},
            {"x-key": "a\\"},
            {"x-key": "a\n"},
            {"x-key": "\ud800"},
            {"x-key": "a", "x-key-weight": 0},
            {"x-key": "a", "x-key-weight": float("nan")},
            {"x-key": "a", "x-key-weight": "2"},
            {"x-key": "a", "x-key-weight": True},
            {"x-key-weight": 2},
        ):
            with pytest.raises(ValueError, match="header 'x-key"):
                fair_key_of(headers)


class TestSwitching:
    def test_messages_go_back_in_portions(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", *numbered("a", 300))
        publish(rig, "b", *numbered("b", 3))
        me = rig.consumer()
        taken(me, "q", limit=0)
        taken(me, "q", limit=0)
        fair.switch_off(["q"])
        assert fair.states(["q"]) == [OFF]
        taken(me, "q", limit=0)
        assert 100 < len(rig.ready("q")) < 303
        while fair.states(["q"]) == [OFF]:
            taken(me, "q", limit=0)
        ids = [id_of(text) for text in rig.ready("q")]
        assert [id for id in ids if id[0] == "a"] == numbered("a", 300)
        assert [id for id in ids if id[0] == "b"] == numbered("b", 3)
        assert fair.states(["q"]) == [PLAIN]
        assert not rig.client.exists(rig.store.keys("q").limits)

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("keys", ["a", "abc"])
    def test_the_messages_of_a_key_stay_in_order(
        self, rig: Rig, fair: FairQueues, keys: str, again: bool
    ) -> None:
        me, got = rig.consumer(), []
        for key in keys:
            publish(rig, key, *numbered(key, 400))
        got += [id_of(each.payload.decode()) for each in taken(me, "q", limit=30)]
        fair.switch_off(["q"])
        # Some of them are moved back, and later ones come.
        got += [id_of(each.payload.decode()) for each in taken(me, "q", limit=30)]
        for key in keys:
            publish(rig, key, *numbered(key, 420)[400:])
        if again:
            fair.switch_on(["q"])
        while some := taken(me, "q", limit=50):
            got += [id_of(each.payload.decode()) for each in some]
        for key in keys:
            assert [id for id in got if id[0] == key] == numbered(key, 420)

    @pytest.mark.parametrize("done_by", ["take", "mover"])
    @pytest.mark.parametrize("damage", ["list", "field"])
    def test_it_ends_whatever_others_have_done(
        self, rig: Rig, fair: FairQueues, damage: str, done_by: str
    ) -> None:
        """The list of a key was deleted, or a field added: then no message was taken any more, or each mover
        went on for ever."""
        publish(rig, "a", *numbered("a", 3))
        me = rig.consumer()
        taken(me, "q", limit=1)
        if damage == "list":
            rig.client.delete(rig.key("q", ":a"))
        else:
            rig.client.hset(rig.store.keys("q").fair, "clock:77", "x")
        fair.switch_off(["q"])
        if done_by == "mover":
            look(mover_of(rig.store, "q"))
        else:
            taken(me, "q", limit=0)
        publish(rig, "b", "b0")
        assert ids(take_all(me)) == (["b0"] if damage == "list" else ["a1", "a2", "b0"])
        assert fair.states(["q"]) == [PLAIN]

    def test_a_plain_queue_is_not_switched_off(self, rig: Rig) -> None:
        FairQueues(rig.store).switch_off(["q"])
        assert not rig.client.exists(rig.store.keys("q").limits)

    def test_not_with_expires(self, rig: Rig) -> None:
        rig.expires_ms["q"] = HOUR
        with pytest.raises(ValueError, match="x-expires"):
            FairQueues(rig.store).switch_on(["q"])

    def test_a_pause_of_the_queue_ends_nothing(self, rig: Rig, fair: FairQueues) -> None:
        LimitStore(rig.store).pause(["q"])
        publish(rig, "a", "a0")
        me = rig.consumer()
        assert taken(me, "q") == []
        # It is sorted by key all the same.
        assert rig.ready("q") == []
        LimitStore(rig.store).resume(["q"])
        assert fair.states(["q"]) == [ON]
        assert ids(taken(me, "q")) == ["a0"]


@pytest.mark.usefixtures("fair")
class TestUnusedSteps:
    """The steps of a queue were changed, and messages of a step that is no longer used are sorted by key."""

    def sort_by_key(self, rig: Rig) -> Rig:
        before = Rig(rig.database, steps=(0, 5))
        publish(before, "a", *numbered("a", 300), step=5)
        publish(before, "b", "b0", step=5)
        me = before.consumer("before")
        for _ in range(2):
            taken(me, "q", limit=0)
        assert rig.client.hget(rig.store.keys("q").fair, "n:5") == b"301"
        return rig

    def test_are_taken(self, rig: Rig) -> None:
        me = self.sort_by_key(rig).consumer()
        got = ids(take_all(me))
        assert got.index("b0") < 150
        assert [id for id in got if id[0] == "a"] == numbered("a", 300)
        assert not rig.client.exists(rig.store.keys("q").fair)

    def test_are_found_by_who_has_no_room(self, rig: Rig) -> None:
        publish(rig, "a", "held")
        assert len(taken(rig.consumer(), "q")) == 1
        look(mover_of(self.sort_by_key(rig).store, "q"))
        assert rig.client.hget(rig.store.keys("q").fair, "n:0") == b"301"

    def test_at_a_limit_are_taken_later(self, rig: Rig, fair: FairQueues) -> None:
        self.sort_by_key(rig)
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        held = taken(Rig(rig.database, steps=(0, 5)).consumer("before"), "q", limit=5)
        assert sorted(keys_of(held)) == ["a", "b"]
        me = rig.consumer()
        assert taken(me, "q") == []
        fair.limit(["q"], StoredKeyLimits())
        assert len(take_all(me)) == 299


@pytest.mark.usefixtures("fair")
class TestOthers:
    def test_who_has_no_room_sorts(self, rig: Rig) -> None:
        publish(rig, "a", "held")
        taken(rig.consumer(), "q", limit=1)
        publish(rig, "a", *numbered("a", 250))
        look(mover_of(rig.store, "q"))
        assert rig.ready("q") == []
        assert rig.client.hget(rig.store.keys("q").fair, "n:0") == b"250"

    def test_without_consumers_the_length_of_the_list_tells_the_truth(self, rig: Rig) -> None:
        publish(rig, "a", "a0")
        look(mover_of(rig.store, "q"))
        assert len(rig.ready("q")) == 1

    @pytest.mark.parametrize("has_consumer", [True, False])
    def test_who_takes_nothing_moves_back(self, rig: Rig, fair: FairQueues, has_consumer: bool) -> None:
        me = rig.consumer()
        publish(rig, "a", "held")
        taken(me, "q", limit=1)
        publish(rig, "b", *numbered("b", 450))
        while rig.ready("q"):
            taken(me, "q", limit=0)
        if not has_consumer:
            rig.client.delete(rig.store.keys("q").consumers)
        fair.switch_off(["q"])
        look(mover_of(rig.store, "q"))
        assert fair.states(["q"]) == [PLAIN]
        assert len(rig.ready("q")) == 450

    def test_a_unique_key_is_held_by_what_is_sorted(self, rig: Rig) -> None:
        unique = UniqueKey("u", DONE)
        assert rig.publish_unique("q", "1", unique) is None
        me = rig.consumer()
        taken(me, "q", limit=0)
        assert rig.ready("q") == []
        assert rig.publish_unique("q", "2", unique) == Conflict(DROPPED, "1")

    def test_a_unique_key_behind_a_key(self, rig: Rig) -> None:
        member = '"redisdelay-unique": ["d", "1", "u"]'
        text = fair_payload("1", "a").replace('"body"', f'{member}, "body"')
        rig.put("q", text)
        rig.client.hset(rig.key("q", "unique"), "u", f"r0 {rig.database.now_ms()} 0 1")
        taken(rig.consumer(), "q")
        assert rig.client.hkeys(rig.key("q", "running")) == [b"u"]
