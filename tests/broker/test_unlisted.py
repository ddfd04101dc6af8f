"""What no key lists any more is found by its name, and listed again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis.exceptions import ConnectionError, NoPermissionError

from kombu_redisdelay.broker import unlisted
from kombu_redisdelay.broker.fair_keys import OFF, ON, PLAIN, StoredKeyLimits, sorted_by_key
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.broker.maintenance import Maintenance
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.broker.unique import DONE, DROPPED, Conflict, UniqueKey, check_unique
from kombu_redisdelay.broker.unlisted import INTERVAL, KEYS_PER_INTERVAL, Found, Relisting, Unlisted, search
from tests.broker.fair_kit import ids, numbered, publish, take_all
from tests.broker.rig import Rig, check_fair, payload, taken
from tests.broker.test_mover import look, mover_of
from tests.clock import Clock

MINUTE, HOUR = 60, 3600


def searched(rig: Rig, queues: Sequence[str] | None = None, *, only_looks: bool = False) -> Found:
    found = Found()
    finish(search(rig.store, found, queues, only_looks=only_looks))
    return found


def fill(rig: Rig, *queues: str) -> None:
    """Have a consumer of each queue hold a message, and lose what says so."""
    for queue in queues:
        rig.put(queue, payload(f"m-{queue}"))
        taken(rig.consumer("lost"), queue)
        rig.client.delete(rig.store.keys(queue).consumers)


class TestSearch:
    def test_a_consumer_is_listed_again(self, rig: Rig) -> None:
        fill(rig, "q")
        assert rig.recover("q") == 0
        assert searched(rig).queues["q"] == Unlisted(consumers=1, unacked=1, is_unknown=False)
        assert rig.recover("q") == 1
        assert len(rig.ready("q")) == 1

    def test_one_that_lives_is_not_lost(self, rig: Rig) -> None:
        fill(rig, "q")
        searched(rig)
        recoverer = rig.recoverer()
        assert finish(recoverer.recover(["q"])) == 0
        # Its next renewal.
        rig.client.zadd(rig.store.keys("q").consumers, {"lost": rig.database.now_ms() + 60_000})
        rig.wait(HOUR)
        assert finish(recoverer.recover(["q"])) == 0

    def test_what_is_listed_is_left_alone(self, rig: Rig) -> None:
        rig.put("q", payload("m"))
        taken(rig.consumer(), "q")
        before = rig.client.zrange(rig.store.keys("q").consumers, 0, -1, withscores=True)
        assert searched(rig).queues == {}
        assert rig.client.zrange(rig.store.keys("q").consumers, 0, -1, withscores=True) == before

    def test_a_look_changes_nothing(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", "1", "2")
        taken(rig.consumer(), "q", limit=0)
        rig.client.delete(rig.key("q", "turns:0"), rig.known)
        fill(rig, "other")
        found = searched(rig, only_looks=True).queues
        assert found["q"] == Unlisted(lists=1, sorted_by_key=2, is_unknown=True)
        assert found["other"] == Unlisted(consumers=1, unacked=1)
        assert not rig.client.exists(rig.key("q", "turns:0"), rig.known, rig.key("other", "consumers"))

    def test_only_some_queues(self, rig: Rig) -> None:
        fill(rig, "a", "b")
        assert list(searched(rig, ["a"]).queues) == ["a"]
        assert not rig.client.exists(rig.key("b", "consumers"))

    @pytest.mark.parametrize("name", ["scheduled", "fair", "dead", "paused"])
    def test_a_queue_is_known_again(self, rig: Rig, fair: FairQueues, name: str) -> None:
        if name == "scheduled":
            rig.schedule("other", payload("m"), 1000)
        elif name == "dead":
            rig.client.lpush(rig.key("other", "dead"), "x")
        else:
            FairQueues(rig.store).switch_on(["other"])
        rig.client.delete(rig.known)
        rig.store = rig.new_store()
        assert searched(rig).queues["other"].is_unknown
        assert rig.store.queues() == ["other", "q"]

    def test_of_another_prefix_is_not_looked_at(self, rig: Rig) -> None:
        other = Rig(rig.database, prefix=rig.database.prefix + "a*")
        fill(other, "q")
        assert searched(Rig(rig.database, prefix=rig.database.prefix + "ab")).queues == {}
        assert list(searched(other).queues) == ["q"]

    def test_strange_names(self, rig: Rig) -> None:
        """Of queues, consumers and keys; and what another program has put there."""
        for name in ("a]b", "[x", "é", "*", "a\\"):
            fill(rig, name)
        rig.client.set(rig.key("bad", ":x"), "no list")
        rig.client.lpush(rig.key("bad2", "unacked:x"), "no hash")
        rig.client.hset(
            rig.store.keys("q").schedule.replace("q", "\udcff").encode(errors="surrogateescape"), "a", "b"
        )
        found = searched(rig)
        assert set(found.queues) == {"a]b", "[x", "é", "*", "a\\"}
        assert not found.is_whole

    def test_many_of_them_in_portions(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unlisted, "NAMES_PER_SCRIPT", 3)
        monkeypatch.setattr(unlisted, "KEYS_PER_CALL", 5)
        for number in range(20):
            rig.client.hset(rig.key("q", f"unacked:c{number}"), "1", f"0:{payload(str(number))}")
        assert searched(rig).queues["q"] == Unlisted(consumers=20, unacked=20)
        assert rig.client.zcard(rig.key("q", "consumers")) == 20

    def test_not_allowed(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(rig, "q")
        monkeypatch.setattr(type(rig.store.server.servers()[0]), "call", _refuse_scan)
        found = searched(rig)
        assert (found.queues, found.is_refused, found.is_whole) == ({}, True, False)

    def test_in_a_queue_that_expires(self, rig: Rig) -> None:
        rig.expires_ms["q"] = 100_000
        fill(rig, "q")
        rig.client.pexpire(rig.key("q", "unacked:lost"), 50_000)
        searched(rig)
        assert 0 < rig.client.pttl(rig.key("q", "consumers")) <= 50_000

    @pytest.mark.many_messages
    @pytest.mark.one_server
    def test_when_redis_is_full(self, rig: Rig, fair: FairQueues) -> None:
        publish(rig, "a", "1")
        taken(rig.consumer(), "q", limit=0)
        rig.client.delete(rig.key("q", "turns:0"))
        rig.database.fill()
        try:
            assert searched(rig).queues["q"] == Unlisted(lists=1, sorted_by_key=1)
        finally:
            rig.database.relieve()
        assert len(take_all(rig.consumer())) == 1


def _refuse_scan(self: object, *command: object) -> object:
    assert command[0] == "SCAN"
    raise NoPermissionError("this user has no permissions to run the 'scan' command")


class TestWhen:
    """A search each hour, by one of a fleet."""

    @pytest.fixture
    def searches(self, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
        """The queues of each search."""
        made: list[set[str]] = []

        def noted(store: object, found: Found, queues: Sequence[str]) -> object:
            made.append(set(queues))
            yield
            found.keys += self.keys

        monkeypatch.setattr(unlisted, "search", noted)
        monkeypatch.setattr(unlisted, "SPREAD", 0.0)
        self.keys = 0
        return made

    def go_on(self, each: Relisting, queues: Sequence[str], now: float) -> Sequence[str]:
        return sorted(finish(each.go_on(queues, now)))

    def test_once_an_hour_in_a_fleet(self, rig: Rig, searches: list[set[str]]) -> None:
        me, other = Relisting(rig.store, "me", 0.0), Relisting(rig.store, "other", 0.0)
        for each in (me, other):
            for now in (0, MINUTE, HOUR - 1):
                self.go_on(each, ["a", "b"], now)
        assert searches == [{"a", "b"}]
        # One that has another queue, too.
        self.go_on(other, ["b", "c"], HOUR)
        assert searches == [{"a", "b"}, {"c"}]
        rig.client.delete(*rig.all_keys())
        self.go_on(me, ["a", "b"], HOUR)
        assert searches[2:] == [{"a", "b"}]

    def test_for_how_long(self, rig: Rig, searches: list[set[str]]) -> None:
        self.go_on(Relisting(rig.store, "me", 0.0), ["a"], 0)
        ttl = rig.client.ttl(rig.store.keys("a").claim("unlisted"))
        assert INTERVAL - MINUTE < ttl <= INTERVAL

    def test_less_often_among_many_keys(self, rig: Rig, searches: list[set[str]]) -> None:
        self.keys = 3 * KEYS_PER_INTERVAL
        me = Relisting(rig.store, "me", 0.0)
        for now in (0, HOUR, 2 * HOUR):
            self.go_on(me, ["a"], now)
        assert len(searches) == 1
        assert rig.client.ttl(rig.store.keys("a").claim("unlisted")) > 2 * HOUR
        self.go_on(me, ["a"], 3 * HOUR)
        assert len(searches) == 2

    def test_what_has_lost_something_comes_at_once(self, rig: Rig, searches: list[set[str]]) -> None:
        me, other = Relisting(rig.store, "me", 0.0), Relisting(rig.store, "other", 0.0)
        self.go_on(me, ["a", "b"], 0)
        for each in (me, other):
            each.search_at_once(["b", "gone"])
        assert self.go_on(me, ["a", "b"], 1) == ["b"]
        # Another one does it just now.
        assert self.go_on(other, ["a", "b"], 1) == []
        assert searches == [{"a", "b"}, {"b"}]
        assert self.go_on(me, ["a", "b"], 2) == []

    def test_other_chores_have_their_turn(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unlisted, "SPREAD", 0.0)
        monkeypatch.setattr(unlisted, "ROUND_TRIPS", 2)
        monkeypatch.setattr(unlisted, "KEYS_PER_CALL", 1)
        fill(rig, *(f"q{number}" for number in range(10)))
        me, rounds = Relisting(rig.store, "me", 0.0), 0
        queues = [f"q{number}" for number in range(10)]
        # The server tells its keys in an order of its own.
        while rig.client.exists(*(rig.key(queue, "consumers") for queue in queues)) < len(queues):
            made = sum(1 for _ in me.go_on(queues, 0))
            assert made <= 2 + 1
            rounds += 1
            assert rounds < 100
        assert rounds > 2

    def test_never_where_it_is_not_allowed(
        self, rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def refused(store: object, found: Found, queues: Sequence[str]) -> object:
            calls.append(queues)
            found.is_refused = True
            yield

        monkeypatch.setattr(unlisted, "search", refused)
        monkeypatch.setattr(unlisted, "SPREAD", 0.0)
        me = Relisting(rig.store, "me", 0.0)
        for now in range(0, 5 * HOUR, HOUR // 2):
            rig.client.delete(rig.store.keys("a").claim("unlisted"))
            self.go_on(me, ["a"], now)
        assert len(calls) == 1
        assert not caplog.messages

    def test_an_error_ends_the_search_only(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(store: object, found: Found, queues: Sequence[str]) -> object:
            yield
            raise ConnectionError("gone")

        monkeypatch.setattr(unlisted, "search", failing)
        monkeypatch.setattr(unlisted, "SPREAD", 0.0)
        me = Relisting(rig.store, "me", 0.0)
        with pytest.raises(ConnectionError):
            self.go_on(me, ["a"], 0)
        assert self.go_on(me, ["a"], 1) == []

    def test_by_maintenance(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        fill(rig, "q")
        clock = Clock()
        maintenance = Maintenance(rig.store, rig.recoverer(), Options(), 10, clock=clock)
        for _ in range(8):
            while maintenance.round_trip(["q"]):
                pass
            clock.now += 11
        assert rig.client.zscore(rig.key("q", "consumers"), "lost") is not None
        assert caplog.messages == [
            "Listed 1 consumer(s) of queue 'q' with 1 message(s) again, because keys in Redis were lost"
        ]


class TestHolders:
    """Those whose messages others wait for are listed again at once."""

    def test_of_a_unique_key(self, rig: Rig) -> None:
        unique = UniqueKey("u", DONE)
        assert rig.publish_unique("q", "1", unique) is None
        taken(rig.consumer("lost"), "q")
        rig.client.delete(rig.key("q", "consumers"))
        assert rig.publish_unique("q", "2", unique) == Conflict(DROPPED, "1")
        check_unique(rig.store, ["q"], {})
        assert rig.recover("q") == 1

    def test_of_a_permit(self, rig: Rig, fair: FairQueues) -> None:
        fair.limit(["q"], StoredKeyLimits(concurrency=1))
        publish(rig, "a", "1", "2")
        taken(rig.consumer("lost"), "q")
        rig.client.delete(rig.key("q", "consumers"))
        me = rig.consumer()
        assert taken(me, "q") == []
        check_fair(rig.store, ["q"], {})
        assert rig.recover("q") == 1
        assert ids(taken(me, "q", limit=1)) == ["1"]


@pytest.mark.usefixtures("fair")
class TestTurns:
    def lose(self, rig: Rig, *names: str) -> None:
        assert rig.client.delete(*(rig.key("q", name) for name in names)) == len(names)

    def sort_by_key(self, rig: Rig, *keys: str, each: int = 3) -> None:
        for key in keys:
            publish(rig, key, *numbered(key, each))
        taken(rig.consumer(), "q", limit=0)

    @pytest.mark.parametrize("lost", [["turns:0"], ["fair"], ["turns:0", "fair"]], ids="-".join)
    @pytest.mark.parametrize("by", ["take", "mover"])
    def test_later_messages_bring_all_back(self, rig: Rig, lost: list[str], by: str) -> None:
        me = rig.consumer()
        publish(rig, "other", "held")
        assert len(taken(me, "q")) == 1
        self.sort_by_key(rig, "a", "b")
        self.lose(rig, *lost)
        for key in "ab":
            publish(rig, key, f"{key}-later")
        if by == "mover":
            look(mover_of(rig.store, "q"))
        got = ids(take_all(me, limit=2))
        assert sorted(got) == sorted([*numbered("a", 3), "a-later", *numbered("b", 3), "b-later"])
        assert got.index("a-later") > got.index("a2")

    def test_one_that_comes_back_brings_the_others_back(self, rig: Rig) -> None:
        me = rig.consumer()
        self.sort_by_key(rig, "a")
        [delivery] = taken(me, "q", limit=1)
        self.lose(rig, "turns:0", "fair")
        assert me.give_back("q", delivery.tag)
        assert ids(take_all(me)) == numbered("a", 3)

    def test_a_count_that_was_lost_ends_nothing_when_one_comes_back(self, rig: Rig) -> None:
        me = rig.consumer()
        self.sort_by_key(rig, "a", "b")
        [delivery] = taken(me, "q", limit=1)
        publish(rig, "c", "c0")
        [other] = taken(me, "q", limit=1)
        self.lose(rig, "fair")
        assert me.give_back("q", other.tag)
        assert sorted(ids(take_all(me))) == sorted(
            {*numbered("a", 3), *numbered("b", 3), "c0"} - set(ids([delivery]))
        )

    def test_a_key_at_its_limit_gets_no_turn(self, rig: Rig) -> None:
        fair = FairQueues(rig.store)
        fair.pause_key("q", "a")
        publish(rig, "a", "a0")
        publish(rig, "b", "b0")
        me = rig.consumer()
        assert ids(taken(me, "q")) == ["b0"]
        publish(rig, "a", "a1")
        taken(me, "q", limit=0)
        assert not rig.client.zscore(rig.key("q", "turns:0"), "a")
        assert rig.client.hget(rig.key("q", "fair"), "is_uncounted:0") is None

    def test_a_removal_does_not_end_what_is_not_counted(self, rig: Rig) -> None:
        self.sort_by_key(rig, "a", "b")
        rig.client.hdel(rig.key("q", "fair"), "n:0")
        ready = ReadyLists(rig.store)
        assert ready.remove(next(ready.iter("q", ['"a0"'])))
        assert sorted(ids(take_all(rig.consumer()))) == ["a1", "a2", *numbered("b", 3)]

    def test_maintenance_counts_anew(self, rig: Rig) -> None:
        self.sort_by_key(rig, "a", "b")
        self.lose(rig, "fair")
        assert check_fair(rig.store, ["q"], {}) == ["q"]
        assert sorted_by_key(rig.store, ["q"]) == [{0: 6}]
        assert check_fair(rig.store, ["q"], {}) == []

    def test_what_is_too_much_goes_after_a_search(self, rig: Rig) -> None:
        """The list of a key was lost."""
        self.sort_by_key(rig, "a", "b")
        self.lose(rig, ":a")
        assert check_fair(rig.store, ["q"], {}) == ["q"]
        # There may be a list without a turn.
        assert sorted_by_key(rig.store, ["q"]) == [{0: 6}]
        assert check_fair(rig.store, ["q"], {}, searched=["q"]) == []
        assert sorted_by_key(rig.store, ["q"]) == [{0: 3}]
        self.lose(rig, ":b")
        check_fair(rig.store, ["q"], {}, searched=["q"])
        assert not rig.client.exists(rig.key("q", "fair"), rig.key("q", "turns:0"))

    def test_maintenance_finds_lists_without_a_turn(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        self.sort_by_key(rig, "a", "b")
        self.lose(rig, "turns:0")
        clock = Clock()
        maintenance = Maintenance(rig.store, rig.recoverer(), Options(), 10, clock=clock)
        for _ in range(3):
            while maintenance.round_trip(["q"]):
                pass
            clock.now += 11
        assert sorted_by_key(rig.store, ["q"]) == [{0: 6}]
        assert rig.client.hget(rig.key("q", "fair"), "is_uncounted:0") is None
        assert len(take_all(rig.consumer())) == 6
        assert caplog.messages == [
            "Gave 2 key(s) of queue 'q' with 6 message(s) a turn again, because keys in Redis were lost"
        ]

    def test_many_keys_are_estimated(self, rig: Rig) -> None:
        keys = [f"k{number}" for number in range(700)]
        for key in keys:
            rig.client.lpush(rig.key("q", f":{key}"), payload(key))
        rig.client.zadd(rig.key("q", "turns:0"), {key: number for number, key in enumerate(keys)})
        check_fair(rig.store, ["q"], {})
        [counts] = sorted_by_key(rig.store, ["q"])
        assert counts[0] == 700
        assert rig.client.hget(rig.key("q", "fair"), "is_uncounted:0") == b"1"
        # It would be closed now if it was believed.
        rig.client.hset(rig.key("q", "fair"), "n:0", 5)
        got = take_all(rig.consumer())
        assert len(got) == 700
        check_fair(rig.store, ["q"], {}, searched=["q"])
        assert not rig.client.exists(rig.key("q", "fair"), rig.key("q", "turns:0"))

    @pytest.mark.parametrize("lost", [["turns:0"], ["turns:0", "fair"], ["limited", "turns:0"]], ids="-".join)
    def test_fair_off_finds_them(self, rig: Rig, lost: list[str]) -> None:
        fair = FairQueues(rig.store)
        fair.pause_key("q", "paused")
        publish(rig, "paused", "p0")
        publish(rig, "b", *numbered("b", 2))
        me = rig.consumer()
        assert len(taken(me, "q", limit=1)) == 1
        publish(rig, "c", *numbered("c", 2))
        taken(me, "q", limit=0)
        self.lose(rig, *lost)
        fair.switch_off(["q"])
        assert sorted(ids(take_all(me))) == ["b1", "c0", "c1", "p0"]
        assert fair.states(["q"]) == [PLAIN]

    def test_what_is_not_said_to_be_fair_any_more_is_moved_back(self, rig: Rig) -> None:
        fair = FairQueues(rig.store)
        self.sort_by_key(rig, "a")
        self.lose(rig, "control")
        check_fair(rig.store, ["q"], {})
        assert fair.states(["q"]) == [OFF]
        assert ids(take_all(rig.consumer())) == numbered("a", 3)
        assert fair.states(["q"]) == [PLAIN]
        # Without the hash of counts, only a search finds it.
        fair.switch_on(["q"])
        self.sort_by_key(rig, "a")
        self.lose(rig, "control", "fair")
        searched(rig)
        assert ids(take_all(rig.consumer())) == numbered("a", 3)
        fair.switch_on(["q"])
        assert fair.states(["q"]) == [ON]

    @pytest.mark.parametrize("lost", [["turns:0"], ["fair"], ["turns:0", "fair"]], ids="-".join)
    def test_a_purge_finds_them(self, rig: Rig, lost: list[str]) -> None:
        self.sort_by_key(rig, "a", "b")
        self.lose(rig, *lost)
        publish(rig, "b", "b3")
        assert rig.store.purge("q") == 7
        assert rig.store.purge("q") == 0
        assert take_all(rig.consumer()) == []
        left = {key.rpartition(b"}:")[2] for key in rig.all_keys() if b"}:" in key}
        assert left <= {b"control", b"history", b"consumers", b"wake"}

    @pytest.mark.parametrize("lost", ["active", "unacked-keys"])
    def test_permits_are_counted_anew(self, rig: Rig, lost: str) -> None:
        fair = FairQueues(rig.store)
        fair.limit(["q"], StoredKeyLimits(concurrency=2))
        publish(rig, "a", *numbered("a", 6))
        me = rig.consumer()
        first, second = taken(me, "q")
        self.lose(rig, lost)
        rig.ack(me, "q", first.tag)
        check_fair(rig.store, ["q"], {})
        assert len(taken(me, "q")) == 1
        rig.ack(me, "q", second.tag)
        assert len(taken(me, "q")) == 1

    @pytest.mark.parametrize("is_lost", [True, False])
    def test_a_unique_key_whose_list_was_lost_is_free(self, rig: Rig, is_lost: bool) -> None:
        """Though the queue is never empty."""
        unique, me = UniqueKey("u", DONE), rig.consumer()
        assert rig.publish_unique("q", "1", unique) is None
        taken(me, "q", limit=0)
        publish(rig, "a", "a0")
        taken(me, "q", limit=0)
        if is_lost:
            self.lose(rig, ":")
        for minutes in (0, 11):
            state, since_ms, *rest = rig.client.hget(rig.key("q", "unique"), "u").decode().split(" ")
            older = " ".join((state, str(int(since_ms) - minutes * 60_000), *rest))
            rig.client.hset(rig.key("q", "unique"), "u", older)
            if minutes:
                # The next one of each other key is younger.
                self.lose(rig, ":a")
                rig.client.lpush(rig.key("q", ":a"), f'{{"redisdelay-due": {rig.database.now_ms()}, "x": 1}}')
            check_unique(rig.store, ["q"], {})
            held = bool(rig.client.hexists(rig.key("q", "unique"), "u"))
            assert held is not (is_lost and minutes > 0)

    def test_limits_of_keys_count_again(self, rig: Rig) -> None:
        fair = FairQueues(rig.store)
        fair.pause_key("q", "a")
        rig.client.hdel(rig.key("q", "control"), "has_key_limits")
        check_fair(rig.store, ["q"], {})
        publish(rig, "a", "a0")
        assert taken(rig.consumer(), "q") == []
        self.lose(rig, "key-limits")
        check_fair(rig.store, ["q"], {})
        assert rig.client.hgetall(rig.key("q", "control")) == {b"fair": b"on"}
        assert ids(taken(rig.consumer(), "q")) == ["a0"]


@pytest.mark.one_server
@pytest.mark.many_messages
@pytest.mark.parametrize(
    ("keys", "is_limited", "most"),
    [(1, False, 1), (10, False, 1), (10, True, 1)],
    ids=["one", "ten", "limited"],
)
def test_a_portion_costs_one_command_more(
    rig: Rig, fair: FairQueues, keys: int, is_limited: bool, most: int
) -> None:
    """To see whether the keys have their turns whose lists have messages."""
    if is_limited:
        fair.limit(["q"], StoredKeyLimits(concurrency=1000))
    me = rig.consumer()
    names = [f"k{number}" for number in range(keys)]
    for name in names:
        publish(rig, name, f"{name}-first")
    taken(me, "q", limit=0)
    taken(me, "q", limit=0)
    for name in names:
        publish(rig, name, *numbered(name, 5))
    rig.client.config_resetstat()
    taken(me, "q", limit=0)
    calls = {name[8:]: each["calls"] for name, each in rig.client.info("commandstats").items()}
    assert calls["lpush"] == keys
    # Of the unsorted messages. Nothing else asks for turns, and none is written.
    assert calls.get("zmscore", 0) == most
    assert calls.get("zadd", 0) == 1, "a token"
    assert calls.get("hmget", 0) == 1 + is_limited
