"""A full Redis drains: it refuses what is published, as a whole, and all that takes messages out, moves them
or stops them goes on. So it is on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from kombu_redisdelay.broker.archive import Archive
from kombu_redisdelay.broker.fair_keys import StoredKeyLimits
from kombu_redisdelay.broker.finished import FinishedTask, FinishedTasks
from kombu_redisdelay.broker.keeping import move_older
from kombu_redisdelay.broker.keys import DEAD, FAILED
from kombu_redisdelay.broker.known_queues import record
from kombu_redisdelay.broker.limits import FairQueues, LimitStore
from kombu_redisdelay.broker.message import IGNORE, KEEP, REPLACE, Due
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE
from kombu_redisdelay.broker.portions import finish
from kombu_redisdelay.broker.schedule import Schedule, Withdrawal
from tests.broker.database import REAL_SERVERS, ClusterDatabase, Database
from tests.broker.database import database as open_database
from tests.broker.fair_kit import ids, numbered, publish, take_all
from tests.broker.rig import Rig, a_failure, check_fair, dead_letter, payload, take_out, taken, texts
from tests.broker.test_fair_invariant import fair_payload, id_of
from tests.environments import CLUSTER, CLUSTERS
from tools.harness.full import BALLAST
from tools.harness.process import wait_until

HOUR = 3_600_000


@pytest.fixture(scope="module", params=[*REAL_SERVERS, *CLUSTERS])
def real(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == CLUSTER:
        yield ClusterDatabase(request.getfixturevalue("shared_cluster"))
        return
    with open_database(request.param) as database:
        yield database


@pytest.fixture
def rig(real: Database) -> Iterator[Rig]:
    real.reset()
    yield Rig(real)
    real.relieve()


def contents(rig: Rig) -> dict[bytes, bytes]:
    return {key: rig.client.dump(key) for key in rig.all_keys() if b"ballast" not in key}


def scheduling(rig: Rig, id: str, on_conflict: str = KEEP, in_ms: float = HOUR) -> Any:
    return rig.store.schedule("q", 0, payload(id), Due(delay_ms=in_ms), "same", on_conflict)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda rig: rig.store.put("q", 0, "new"), id="ready"),
        pytest.param(lambda rig: rig.store.put("q", 0, "new", "head"), id="head"),
        pytest.param(lambda rig: scheduling(rig, "new"), id="duplicate"),
        pytest.param(lambda rig: scheduling(rig, "new", REPLACE), id="replace"),
        pytest.param(lambda rig: scheduling(rig, "new", REPLACE, 0), id="replace by one that is due"),
        pytest.param(
            lambda rig: rig.store.schedule("q", 0, "new", Due(delay_ms=HOUR), "new", REPLACE), id="nothing"
        ),
        pytest.param(
            lambda rig: rig.store.schedule("q", 0, "new", Due(delay_ms=HOUR), "new", IGNORE), id="ignore"
        ),
    ],
)
@pytest.mark.parametrize("is_together", [False, True], ids=["alone", "together"])
def test_a_publish_is_refused_as_a_whole(rig: Rig, call: Callable[[Rig], Any], is_together: bool) -> None:
    rig.store.run(scheduling(rig, "old"))
    rig.use_up_token("q")
    rig.database.fill()
    before = contents(rig)
    if is_together:
        errors = rig.store.run_all([call(rig)] * 2)
        assert [type(error) for error in errors] == [OutOfMemoryError] * 2
    else:
        with pytest.raises(OutOfMemoryError, match=r"^the server is out of memory \(maxmemory\)"):
            rig.store.run(call(rig))
    assert contents(rig) == before


#: A message that does not fit, whatever buffers of earlier ones are given back meanwhile.
HUGE = BALLAST // 2
#: A message, and how much room Redis has for it. How much it takes while it is read depends on buffers. From
#: the second on, there was room for the token of a message that was refused.
LARGE = BALLAST // 16
ROOMS = [LARGE * quarters // 4 for quarters in range(2, 10)]


@pytest.mark.parametrize("is_together", [False, True], ids=["alone", "together"])
def test_there_is_no_token_of_a_message_that_did_not_fit(rig: Rig, is_together: bool) -> None:
    """Its own bytes fill Redis, which has room again for what follows it."""
    run = rig.store.run_all if is_together else lambda calls: [rig.store.run(calls[0])]
    for room in ROOMS:
        rig.database.reset()
        rig.database.fill(room)
        try:
            is_refused = isinstance(run([rig.store.put("q", 0, "x" * LARGE)])[0], OutOfMemoryError)
        except OutOfMemoryError:
            is_refused = True
        # A message may be without a token: that delays it by a second.
        assert (len(rig.ready("q")), is_refused and rig.tokens("q")) == (not is_refused, 0), room


def test_the_token_of_others_stays(rig: Rig) -> None:
    rig.put("q", "small")
    rig.database.fill(room=LARGE)
    with pytest.raises(OutOfMemoryError):
        rig.put("q", "x" * HUGE)
    assert rig.tokens("q") == 1


def test_of_those_published_together_each_that_was_refused_is_told(rig: Rig) -> None:
    texts = ["before", "x" * HUGE, "behind"]
    rig.database.fill(room=LARGE // 2)
    replies = rig.store.run_all([rig.store.put("q", 0, text) for text in texts])
    are_refused = [isinstance(reply, OutOfMemoryError) for reply in replies]
    assert are_refused[1]
    assert rig.ready("q") == [
        text for text, is_refused in zip(texts, are_refused, strict=True) if not is_refused
    ]


def test_one_that_is_ignored_is_published_already(rig: Rig) -> None:
    rig.store.run(scheduling(rig, "old"))
    rig.database.fill()
    assert rig.store.run(scheduling(rig, "new", IGNORE)) == 1


def test_lines_about_finished_tasks_are_dropped(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """And acks go on, over the same connection."""
    rig.put("q", "a")
    me = rig.consumer(options=Options(keep_finished={}))
    [delivery] = taken(me, "q")
    assert me.finishing is not None
    rig.database.fill()
    for _ in range(2):
        for number in range(50):
            task = FinishedTask(number, None, None, 1, "succeeded", "-", "shop.close", "celery@w", "x" * 200)
            me.finishing.add("q", task)
        me.finishing.send()
    assert rig.ack(me, "q", delivery.tag)

    def is_said() -> bool:
        # If the server lacks the script, the lines are sent again, behind the ack: a consumer reads replies
        # again and again.
        me.confirm_acks()
        return bool(caplog.messages)

    wait_until(is_said, 30, "it is said")
    assert ["not kept now" in message for message in caplog.messages] == [True]
    assert FinishedTasks(rig.store).counts(["q"]) == [0]


def test_everything_is_taken_and_acked(rig: Rig) -> None:
    rig.put("q", *map(str, range(5)))
    for number in range(5):
        rig.schedule("q", f"due {number}", -1000)
    rig.database.fill()
    me = rig.consumer()
    deliveries = taken(me, "q", limit=100)
    assert len(deliveries) == 10
    assert all(rig.ack(me, "q", delivery.tag) for delivery in deliveries)
    assert me.give_back_all()


def test_what_a_worker_held_is_recovered(rig: Rig) -> None:
    rig.put("q", "a", "b")
    assert len(taken(rig.consumer("gone"), "q")) == 2
    rig.end_lease("q", "gone")
    rig.database.fill()
    assert rig.recover("q") == 2
    assert len(rig.ready("q")) == 2


def test_what_fails_waits_and_becomes_a_dead_letter(rig: Rig) -> None:
    rig.put("q", payload("later"), payload("dead"))
    me = rig.consumer()
    later, dead = taken(me, "q")
    rig.database.fill()
    assert me.requeue("q", later.tag, 1000)
    dead_letter(me, dead, "the test wants it")
    assert (len(rig.scheduled("q")), len(rig.dead("q"))) == (1, 1)


def test_one_that_is_consumed_without_acks_becomes_a_dead_letter(rig: Rig) -> None:
    """It is nowhere else by then."""
    rig.put("q", "no message")
    rig.database.fill()
    me = rig.consumer()
    [delivery] = taken(me, "q", no_ack=["q"])
    dead_letter(me, delivery, "it is none")
    assert len(rig.dead("q")) == 1


@pytest.mark.parametrize("copy", ["", f"0:{payload('1')}"], ids=["late", "early"])
def test_a_failed_task_is_acked_and_not_kept(rig: Rig, copy: str, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", payload("1"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    rig.database.fill()
    assert rig.fail(me, "q", delivery.tag, a_failure("1"), copy)
    assert (rig.failed("q"), len(rig.unacked("q"))) == ([], bool(copy))
    [record] = caplog.records
    assert "tasks.fail[1]" in record.getMessage()


@pytest.mark.parametrize(("how", "ready"), [(REQUEUE, 1), (REMOVE, 0)])
def test_failed_tasks_are_taken_out(rig: Rig, how: str, ready: int) -> None:
    rig.put("q", payload("1"))
    me = rig.consumer()
    rig.fail(me, "q", taken(me, "q")[0].tag, a_failure("1"))
    rig.database.fill()
    assert len(list(Archive(rig.store, FAILED).take_out("q", how, rig.failed("q")))) == 1
    assert (len(rig.failed("q")), len(rig.ready("q"))) == (0, ready)


@pytest.mark.parametrize(("how", "ready"), [(REQUEUE, 1), (REMOVE, 0)])
def test_dead_letters_are_taken_out(rig: Rig, how: str, ready: int) -> None:
    rig.put("q", payload("dead"))
    me = rig.consumer()
    dead_letter(me, taken(me, "q")[0], "because")
    rig.database.fill()
    assert take_out(rig.store, "q", how) == 1
    assert (len(rig.ready("q")), len(rig.dead("q"))) == (ready, 0)


def test_dead_letters_of_an_older_release_stay_where_they_are_until_there_is_room(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    older = [f"170000000000{n} 1 0 rejected\n{payload(str(n))}" for n in range(3)]
    rig.client.lpush(rig.store.keys("q").dead, *older)
    rig.database.fill()
    finish(move_older(rig.store, ["q"], refused=lambda queue, error: None))
    assert (rig.older_dead("q"), rig.dead("q")) == (older, [])
    # Who reads them is told, and goes on with others. They are counted, and can be cleared.
    assert take_out(rig.store, "q", REQUEUE) == 0
    assert [message.startswith("Dead letters of queue 'q' that a worker") for message in caplog.messages] == [
        True
    ]
    assert Archive(rig.store, DEAD).counts(["q"]) == [3]
    rig.database.relieve()
    assert take_out(rig.store, "q", REMOVE, lambda letter: letter.id == "1") == 1
    assert (rig.older_dead("q"), len(rig.dead("q"))) == ([], 2)
    rig.client.lpush(rig.store.keys("q").dead, *older)
    rig.database.fill()
    assert Archive(rig.store, DEAD).clear("q") == 5


def test_a_queue_is_paused_limited_and_resumed(rig: Rig) -> None:
    rig.put("q", "a")
    rig.database.fill()
    limits, me = LimitStore(rig.store), rig.consumer()
    limits.pause(["q"])
    assert taken(me, "q") == []
    limits.resume(["q"])
    limits.limit(["q"], {"concurrency": 1})
    assert len(taken(me, "q")) == 1


def test_a_rate_with_a_lower_burst_holds(rig: Rig) -> None:
    """The next take puts right what is written of the rate, and takes nothing."""
    limits, me = LimitStore(rig.store), rig.consumer()
    limits.limit(["q"], {"interval_us": 1e8, "burst": 100})
    rig.put("q", *map(str, range(100)))
    assert len(taken(me, "q", limit=50)) == 50
    rig.database.fill()
    limits.limit(["q"], {"interval_us": 1e8, "burst": 1})
    assert taken(me, "q") == []


@pytest.mark.parametrize(
    "limits",
    [StoredKeyLimits(concurrency=1), StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1)],
    ids=["concurrency", "rate"],
)
def test_a_key_that_is_at_its_limit_leaves_others_alone(rig: Rig, limits: StoredKeyLimits) -> None:
    """The take raised, and nothing was taken of any queue."""
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    fair.limit(["q"], limits)
    publish(rig, "a", *numbered("a", 3))
    assert len(taken(me, "q", limit=1)) == 1
    rig.database.fill()
    assert taken(me, "q", limit=1) == []
    rig.database.relieve()
    publish(rig, "b", "b0")
    rig.database.fill()
    assert ids(taken(me, "q")) == ["b0"]


def test_keys_are_limited_and_paused(rig: Rig) -> None:
    """What was unacked could not be counted, and until it is, nothing is taken."""
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    publish(rig, "a", *numbered("a", 3))
    [delivery] = taken(me, "q", limit=1)
    rig.database.fill()
    fair.pause_key("q", "b")
    fair.limit(["q"], StoredKeyLimits(concurrency=1))
    assert taken(me, "q") == []
    # Its consumer knows of no limit.
    rig.client.hdel(rig.store.keys("q").unacked("me"), delivery.tag)
    check_fair(rig.store, ["q"], {})
    assert ids(taken(me, "q")) == ["a1"]


def test_a_fair_queue_becomes_plain(rig: Rig) -> None:
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    publish(rig, "a", *numbered("a", 3))
    taken(me, "q", limit=1)
    rig.database.fill()
    fair.switch_off(["q"])
    assert ids(take_all(me)) == ["a1", "a2"]


def test_the_token_of_a_permit_may_be_refused(rig: Rig) -> None:
    LimitStore(rig.store).limit(["q"], {"concurrency": 1})
    rig.put("q", payload("dead"))
    me = rig.consumer()
    [delivery] = taken(me, "q")
    rig.use_up_token("q")
    rig.database.fill()
    assert me.make_dead("q", delivery.tag, "the test wants it")
    assert len(rig.dead("q")) == 1


@pytest.mark.parametrize(
    "limits",
    [StoredKeyLimits(concurrency=1), StoredKeyLimits(interval_us=HOUR * 1000.0, burst=1)],
    ids=["held", "rate"],
)
def test_a_take_that_only_finds_a_key_at_its_limit(rig: Rig, limits: StoredKeyLimits) -> None:
    """It raised an error, and its consumer got nothing of any queue."""
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    fair.limit(["q"], limits)
    rig.put("q", *(fair_payload(f"a{number}", "a") for number in range(2)))
    rig.put("other", "b")
    [delivery] = taken(me, "q", limit=1)
    rig.database.fill()
    assert taken(me, "q") == []
    assert rig.ack(me, "q", delivery.tag)
    assert len(taken(me, "q", "other")) == (2 if limits.concurrency else 1)


def test_a_key_is_paused_and_the_others_go_on(rig: Rig) -> None:
    """What was taken is counted then, and nothing is taken meanwhile."""
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    rig.put("q", *(fair_payload(f"{key}{number}", key) for number in range(3) for key in "ab"))
    assert len(taken(me, "q", limit=2)) == 2
    rig.database.fill()
    fair.pause_key("q", "a")
    assert [id_of(each.payload) for each in taken(me, "q")] == ["b1", "b2"]
    fair.resume_key("q", "a")
    assert [id_of(each.payload) for each in taken(me, "q")] == ["a1", "a2"]


def test_a_queue_becomes_plain(rig: Rig) -> None:
    fair, me = FairQueues(rig.store), rig.consumer()
    fair.switch_on(["q"])
    fair.limit(["q"], StoredKeyLimits(concurrency=1))
    rig.put("q", *(fair_payload(f"a{number}", "a") for number in range(3)))
    assert len(taken(me, "q")) == 1
    rig.database.fill()
    fair.switch_off(["q"])
    assert len(taken(me, "q")) == 2


def test_scheduled_messages_are_moved_and_removed(rig: Rig) -> None:
    for number in range(6):
        rig.schedule("q", payload(str(number)), HOUR + number, id=str(number))
    rig.database.fill()
    schedule = Schedule(rig.store)
    due_ms = rig.database.now_ms() + 2 * HOUR
    [found] = schedule.find("q", "0")
    assert schedule.reschedule(found, found.payload, due_ms), "to a later time"
    assert "0" in rig.scheduled("q")[-1]
    [found] = schedule.find("q", "1")
    assert schedule.reschedule(found, found.payload, 0), "to now"
    assert schedule.cancel("q", ["2"]) == [1]
    assert len(list(Withdrawal(rig.store).by_ids("q", ["3"]))) == 1
    assert len(list(schedule.remove("q", schedule.find("q", "4")))) == 1
    assert rig.store.purge("q") == 3


def test_revoked_ones_are_looked_for(rig: Rig) -> None:
    rig.put("q", "known")
    rig.database.fill()
    assert Withdrawal(rig.store).claim("q", "stamps", "me")
    assert not Withdrawal(rig.store).claim("q", "stamps", "other")


def test_it_goes_on_with_its_history_when_there_is_room(rig: Rig) -> None:
    rig.put("q", "a", "b")
    me = rig.consumer()
    rig.database.fill()
    assert texts(taken(me, "q", limit=1)) == ["a"]
    record(rig.store, ["q"])
    rig.database.relieve()
    record(rig.store, ["q"])
    assert rig.client.hget(rig.key("q", "history"), "delivered") == b"1"
