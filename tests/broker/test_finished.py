"""How a consumer keeps a line of each finished task."""

from __future__ import annotations

import logging
import os

import pytest

from kombu_redisdelay import metrics
from kombu_redisdelay.broker import finished
from kombu_redisdelay.broker.consumer import Consumer
from kombu_redisdelay.broker.finished import LINES_PER_CALL, LONGEST_ID, TOGETHER, FinishedTask, FinishedTasks
from kombu_redisdelay.broker.options import Options
from tests.broker.rig import Rig, line_of
from tools.harness.process import wait_until

QUEUE = "q"


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent, a test sends."""
    monkeypatch.setattr(finished, "SEND_AFTER", 3600)


def keeping(rig: Rig, name: str = "me", **limits: float) -> Consumer:
    return rig.consumer(name, options=Options(keep_finished=limits))


def end(rig: Rig, consumer: Consumer, *ids: str, ago_ms: int = 0) -> None:
    assert consumer.finishing is not None
    for id in ids:
        at_ms = rig.database.now_ms() - ago_ms
        task = FinishedTask(at_ms, 0.25, None, 1, "failed", "KeyError", "shop.close", "celery@w", id)
        consumer.finishing.add(QUEUE, task)


def send(consumer: Consumer) -> None:
    assert consumer.finishing is not None
    consumer.finishing.send()
    consumer.confirm_acks()


def ids(rig: Rig) -> list[str]:
    found = [FinishedTask.of(line) for line, *_ in FinishedTasks(rig.store).oldest(QUEUE)]
    return [task.id for task in found if task is not None]


def test_off_by_default(rig: Rig) -> None:
    assert rig.consumer().finishing is None


def test_what_is_kept_and_for_how_long(rig: Rig) -> None:
    me = keeping(rig, count=30, age=60)
    end(rig, me, "old", "older", ago_ms=61_000)
    end(rig, me, "new")
    send(me)
    assert ids(rig) == ["new"]
    assert 0 < rig.client.pttl(rig.store.keys(QUEUE).finished) <= 60_000
    end(rig, me, *(f"{number:02}" for number in range(LINES_PER_CALL + 1)))
    send(me)
    assert ids(rig) == [f"{number:02}" for number in range(LINES_PER_CALL - 29, LINES_PER_CALL + 1)]


def test_a_long_id_is_cut(rig: Rig) -> None:
    me = keeping(rig)
    end(rig, me, "x" * 1_000_000, "with spaces\n")
    send(me)
    assert ids(rig) == ["x" * LONGEST_ID, "with spaces\n"]


def test_what_is_sent_again_comes_once(rig: Rig) -> None:
    """The connection was lost before the replies were read. Other consumers do not matter."""
    me, other = keeping(rig), keeping(rig, "other")
    for consumer, names in ((me, "ab"), (other, "cd")):
        for name in names:
            assert consumer.finishing is not None
            end(rig, consumer, name)
            consumer.finishing.send()
    # Redis has read them before it answers another one.
    wait_until(lambda: len(ids(rig)) == 4, 30, "all lines")
    for consumer in (me, other):
        line_of(consumer, QUEUE).disconnect()
        consumer.confirm_acks()
    assert sorted(ids(rig)) == ["a", "b", "c", "d"]
    end(rig, me, "e")
    send(me)
    assert len(ids(rig)) == 5


def test_a_child_sends_nothing_of_its_parent(rig: Rig) -> None:
    me = keeping(rig)
    end(rig, me, "a")
    if not (child := os.fork()):
        assert me.finishing is not None
        me.finishing.send()
        os._exit(0)
    os.waitpid(child, 0)
    assert ids(rig) == []
    send(me)
    assert ids(rig) == ["a"]


def test_they_are_sent_together_and_soon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    me = keeping(rig)
    names = [f"{number:03}" for number in range(TOGETHER)]
    end(rig, me, *names)
    wait_until(lambda: ids(rig) == names, 30, "that many are sent at once")
    monkeypatch.setattr(finished, "SEND_AFTER", 0.05)
    end(rig, me, "few")
    # The thread may still wait as it did before.
    end(rig, me, *names)
    wait_until(lambda: len(ids(rig)) == 2 * TOGETHER + 1, 30, "the next ones")
    end(rig, me, "last")
    wait_until(lambda: ids(rig)[-1:] == ["last"], 30, "that a few are sent soon")


def test_what_cannot_be_kept_is_counted_and_told_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(metrics, "finished_not_kept", lambda queue, tasks: counted.append(tasks))
    me, key = keeping(rig), rig.store.keys(QUEUE).finished
    rig.client.set(key, "of another program")
    rig.client.set(rig.store.keys(QUEUE).finished_sent("me"), "as well")
    for _ in range(2):
        end(rig, me, "a", "b")
        send(me)
    assert (counted, len(caplog.records)) == ([2, 2], 1)
    assert caplog.records[0].levelno == logging.ERROR
    rig.client.delete(key)
    end(rig, me, "c")
    send(me)
    assert ids(rig) == ["c"]
    rig.client.delete(key)
    rig.client.set(key, "once more")
    end(rig, me, "d")
    send(me)
    assert (counted, len(caplog.records)) == ([2, 2, 1], 2)


def test_no_more_wait_than_memory_can_hold(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, "MOST_WAITING", 3)
    me = keeping(rig)
    end(rig, me, *"abcde")
    send(me)
    assert ids(rig) == ["a", "b", "c"]


def test_they_are_sent_when_the_consumer_gives_back(rig: Rig) -> None:
    me = keeping(rig)
    end(rig, me, "a")
    me.give_back_all()
    assert ids(rig) == ["a"]
