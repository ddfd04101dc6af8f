"""Bytes by queue, state and task."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Queues, TaskMemory
from kombu_redisdelay.operations.estimate import NODE_BYTES
from kombu_redisdelay.operations.memory import MESSAGES
from kombu_redisdelay.operations.memory_report import number_of_messages, remarks
from kombu_redisdelay.operations.queue_bytes import NOTES
from kombu_redisdelay.operations.sample import (
    MESSAGES_PER_READ,
    REACH,
    nodes_of,
    within_reach,
)
from tests.failed import keep_failed
from tests.finished import OF_MESSAGES
from tests.operations.kit import GARBAGE, in_each_state, send
from tests.operations.memory.kit import NEARLY, bodies, by_task, of_state, text
from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer

#: Task -> characters of its argument, and how many there are: many small ones, and few that are large.
KINDS = {"small": (200, 9000), "medium": (1500, 2000), "large": (40_000, 250)}


def fill(site: Site, app: Celery, state: str) -> dict[str, int]:
    """Put messages of all KINDS into a state, mixed. Returns how many bytes each task takes."""
    keys = site.keys("celery")
    each = [
        (task, message)
        for task, (length, count) in KINDS.items()
        for message in bodies(site, app, task, length)
        for _ in range(count // 5)
    ]
    random.shuffle(each)
    with site.redis.pipeline(transaction=False) as pipe:
        for number, (task, message) in enumerate(each):
            for key in ("", f"only {task}:"):
                if state == "ready":
                    pipe.lpush(f"{key}{keys.ready}", message)
                else:
                    pipe.hset(f"{key}{keys.messages}", f"{number:036}", b"0:" + message)
                    pipe.zadd(f"{key}{keys.schedule}", {f"{number:036}": 9e12 + number})
            if number % 1000 == 0:
                pipe.execute()
        pipe.execute()
    found = {}
    for task in KINDS:
        alone = [f"only {task}:{key}" for key in (keys.ready, keys.messages, keys.schedule)]
        found[task] = sum(site.redis.memory_usage(key, samples=0) or 0 for key in alone)
        site.redis.delete(*alone)
    return found


@pytest.mark.many_messages
@pytest.mark.parametrize("state", ["ready", "scheduled"])
class TestManyMessages:
    def test_small_ones_and_few_large_ones(
        self, site: Site, app: Celery, messages: Messages, state: str
    ) -> None:
        expected = fill(site, app, state)
        found = messages.memory()
        tasks = by_task(found)
        for task, size in expected.items():
            assert size > 0.1 * sum(expected.values()), "it is one of those that must be right"
            assert tasks[task].bytes == pytest.approx(size, rel=NEARLY)
            assert tasks[task].messages == pytest.approx(KINDS[task][1], rel=2 * NEARLY)
            assert tasks[task].state == state
            assert tasks[task].largest > KINDS[task][0]
        assert of_state(found, state) == pytest.approx(sum(expected.values()), rel=NEARLY)

    def test_what_is_read_is_bounded(self, site: Site, app: Celery, messages: Messages, state: str) -> None:
        fill(site, app, state)
        before = site.redis.config_get("slowlog-*")
        site.redis.config_set("slowlog-log-slower-than", 0)
        site.redis.config_set("slowlog-max-len", 10_000)
        try:
            site.redis.slowlog_reset()
            messages.memory()
            log = [entry["command"].split() for entry in site.redis.slowlog_get(10_000)]
        finally:
            for name, value in before.items():
                site.redis.config_set(name, value)
        reads = [words for words in log if words[0] in (b"LRANGE", b"HRANDFIELD", b"HSCAN")]
        # Large ones are rare, so it looks again.
        assert len(reads) <= 4 * MESSAGES / MESSAGES_PER_READ + 2
        assert all(
            int(words[3]) - int(words[2]) < MESSAGES_PER_READ for words in reads if words[0] == b"LRANGE"
        )
        assert all(-int(words[2]) <= MESSAGES_PER_READ for words in reads if words[0] == b"HRANDFIELD")
        assert len(log) < len(reads) + 200


def test_large_ones_that_were_not_read_are_not_said_to_be_others(
    site: Site, app: Celery, messages: Messages
) -> None:
    [small, *_] = bodies(site, app, "small", 100)
    site.redis.lpush("celery", *[small] * 20_000)
    [large, *_] = bodies(site, app, "large", 2_000_000)
    site.redis.lpush("celery", *[small] * 20_000)
    for _ in range(40):
        site.redis.linsert("celery", "BEFORE", small, large)
    expected = site.redis.memory_usage("celery", samples=0)
    found = messages.memory()
    assert found.bytes == pytest.approx(expected, rel=0.01)
    of_small = sum(each.bytes for each in found.tasks if each.task == "small")
    assert of_small < 2 * 40_000 * len(small)


def test_each_state(site: Site, app: Celery, messages: Messages) -> None:
    in_each_state(site, app)
    found = messages.memory()
    assert {each.state: each.messages for each in found.states if each.state != NOTES} == dict.fromkeys(
        OF_MESSAGES, 1
    )
    assert {(each.state, each.task, each.messages, each.seen) for each in found.tasks} == {
        (state, "shop.close", 1, 1) for state in OF_MESSAGES
    }
    assert all(each.largest_id == each.state for each in found.tasks)
    assert all(each.bytes > each.largest // 2 > 200 for each in found.tasks)
    assert of_state(found, NOTES) > 0


def test_failed_ones_with_long_tracebacks_and_short_ones(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a")
    message = site.redis.rpop("celery")
    tracebacks = {"long": text(8000), "short": "", "middling": text(1000)}
    for task, traceback in tracebacks.items():
        for number in range(700):
            for queue in ("celery", f"only-{task}"):
                payload = message.replace(b"shop.close", task.encode())
                keep_failed(messages.store, queue, f"{task}{number}", payload, task, traceback=traceback)
    found = messages.memory("celery")
    expected = {task: of_state(messages.memory(f"only-{task}"), "failed") for task in tracebacks}
    assert of_state(found, "failed") == pytest.approx(sum(expected.values()), rel=0.01)
    tasks = by_task(found)
    assert tasks["long"].is_about
    for task, size in expected.items():
        assert tasks[task].bytes == pytest.approx(size, rel=NEARLY), task


def test_a_failed_one_that_was_kept_without_its_message(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "large", kwargs={"text": "x" * 1_500_000})
    keep_failed(messages.store, "celery", "large", site.redis.rpop("celery"), traceback=text(4000))
    [task] = messages.memory().tasks
    assert (task.task, task.state, task.largest_id) == ("shop.close", "failed", "large")
    assert task.largest > 4000
    assert task.bytes_with_zlib == task.bytes


def test_lines_about_finished_tasks_are_no_notes(site: Site, messages: Messages) -> None:
    site.redis.lpush(messages.store.keys("celery").finished, *["x" * 100] * 1000)
    found = messages.memory("celery")
    assert of_state(found, "finished") > 100_000
    assert of_state(found, "notes") < 1000
    assert any(each.startswith("The lines about finished tasks: ") for each in remarks(found))


def test_the_largest_message_is_named(site: Site, app: Celery, messages: Messages) -> None:
    app.send_task("small", task_id="one")
    assert not any("largest message" in each for each in remarks(messages.memory()))
    app.send_task("large", [text(150_000)], task_id="two\n")
    said = next(each for each in remarks(messages.memory()) if "largest message" in each)
    assert "id 'two\\n', 1" in said
    assert said.endswith("ready in 'celery'.")


def test_what_is_no_task(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a")
    message = site.redis.lindex("celery", 0).replace(b'"task": "shop.close", ', b"")
    site.redis.delete("celery")
    site.redis.lpush("celery", message, GARBAGE, b"{}", b"[" * 100_000)
    found = messages.memory()
    assert {each.kind: (each.task, each.messages) for each in found.tasks} == {
        "no task": (None, 1),
        "not a message": (None, 3),
    }


def test_nothing(site: Site, messages: Messages) -> None:
    found = messages.memory()
    assert (found.states, found.tasks, found.bytes) == ([], [], 0)


def test_one_queue(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a", queue="one")
    send(app, "b", queue="two")
    site.redis.set("something", "else")
    found = messages.memory("one")
    assert {each.queue for each in found.tasks} == {each.queue for each in found.states} == {"one"}
    assert found.others == []
    assert "other queues, the rest of the database, and when it is full" in found.not_looked_at
    assert {each.queue for each in messages.memory(["one", "two"]).tasks} == {"one", "two"}


def test_small_states_are_not_read(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.memory.MOST_STATES", 1)
    monkeypatch.setattr("kombu_redisdelay.operations.memory.MESSAGES", 5)
    [message, *_] = bodies(site, app, "large", 50_000)
    send(app, "a", queue="small")
    site.redis.lpush("celery", *[message] * 10)
    found = messages.memory()
    assert {(each.queue, each.kind) for each in found.tasks} == {("celery", "task"), ("small", "unseen")}
    assert "the messages of 1 small state of queues: 1 in all" in found.not_looked_at


def test_a_fair_queue(site: Site, app: Celery, messages: Messages) -> None:
    with Queues(app) as queues:
        queues.make_fair("celery")
    channel = site.channel()
    for number in range(30):
        send(app, f"{number}", headers={"x-key": f"tenant {number % 3}"})
    # Who looks for more has all sorted by key.
    assert channel.basic_get("celery") is not None
    [ready] = [each for each in messages.memory().tasks if each.state == "ready"]
    assert (ready.task, ready.messages, ready.seen) == ("shop.close", 29, 29)
    assert ready.bytes > 29 * ready.largest * 0.9


def test_the_greatest_keys_of_a_fair_queue_have_the_smallest_messages(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for which in ("GREATEST_KEYS", "OTHER_KEYS"):
        monkeypatch.setattr(f"kombu_redisdelay.operations.queue_bytes.{which}", 20)
    [tiny, *_], [large, *_] = bodies(site, app, "tiny", 10), bodies(site, app, "large", 20_000)
    keys = site.keys("celery")
    site.redis.hset(keys.limits, "fair", "on")
    for number in range(20):
        site.redis.lpush(keys.key_list(0, f"great-{number}"), *[tiny] * 10)
        site.redis.zadd(keys.turns(0), {f"great-{number}": number})
    for number in range(200):
        site.redis.lpush(keys.key_list(0, f"small-{number}"), *[large] * 3)
        site.redis.zadd(keys.turns(0), {f"small-{number}": number})
    site.redis.hset(keys.fair, "n:0", "800")
    expected = 600 * len(large)
    found = messages.memory()
    tasks = by_task(found)
    assert tasks["large"].bytes == pytest.approx(expected, rel=NEARLY)
    assert tasks["tiny"].bytes < expected / 20
    assert (tasks["tiny"].messages, tasks["large"].messages) == (200, 600)
    assert of_state(found, "ready") == pytest.approx(sum(each.bytes for each in found.tasks), rel=0.01)


def test_partitions(server: RedisServer) -> None:
    options = {"partitions": {"celery": 3}}
    app = Celery("api", broker=server.url(), set_as_current=False)
    app.conf.broker_transport_options = options
    send(app, *map(str, range(30)))
    with Messages(app) as messages:
        [task] = messages.memory().tasks
        assert (task.queue, task.messages) == ("celery", 30)
        [partition] = messages.memory("celery#1").tasks
        assert partition.queue == "celery#1"
        assert 0 < partition.messages < 30
    app.close()


def test_what_has_expired(site: Site, app: Celery, messages: Messages) -> None:
    late = datetime.now(timezone.utc) - timedelta(hours=1)
    send(app, "a", "b", "c", expires=late)
    send(app, "d", "other", task="other")
    found = messages.memory()
    tasks = by_task(found)
    assert (tasks["shop.close"].expired, tasks["other"].expired) == (1.0, 0.0)
    [state] = [each for each in found.states if each.state == "ready"]
    assert state.expired == pytest.approx(0.6)


class TestZlib:
    def size(self, site: Site, app: Celery, messages: Messages, argument: Any, **options: Any) -> TaskMemory:
        site.redis.flushdb()
        for _ in range(20):
            app.send_task("t", [argument], **options)
        [task] = messages.memory("celery").tasks
        assert task.bytes_with_zlib is not None
        return task

    @pytest.mark.parametrize(
        "argument", [["order 12, paid"] * 200, ["order 12, paid"] * 20_000, "x" * 50_000, "a"]
    )
    def test_it_is_as_it_would_be(self, site: Site, app: Celery, messages: Messages, argument: Any) -> None:
        told = self.size(site, app, messages, argument).bytes_with_zlib
        would = self.size(site, app, messages, argument, compression="zlib").bytes
        assert told == pytest.approx(would, rel=0.2)

    def test_what_is_compressed_stays(self, site: Site, app: Celery, messages: Messages) -> None:
        task = self.size(site, app, messages, ["order"] * 1000, compression="zlib")
        assert task.bytes_with_zlib == task.bytes

    def test_a_body_that_says_that_it_is_in_base64(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        message = site.redis.rpop("celery")
        start = message.index(b'"body": "')
        site.redis.lpush("celery", message[: start + 9] + b"\\ud800" + message[start + 9 :])
        [task] = messages.memory().tasks
        assert task.bytes_with_zlib == task.bytes


def test_numbers_are_exact_if_all_can_be_read(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    [large, *_], [small, *_] = bodies(site, app, "large", 50_000), bodies(site, app, "small", 10)
    [rare, *_] = bodies(site, app, "rare", 10)
    send(app, "a", queue="other")
    site.redis.lpush("celery", *[large] * 20)
    site.redis.lpush("other", *[small] * 150, rare, rare, *[small] * 150)
    tasks = by_task(messages.memory())
    assert {task: each.messages for task, each in tasks.items()} == {
        **{"large": 20, "small": 300, "rare": 2, "shop.close": 1}
    }
    assert not any(each.is_about for each in tasks.values())
    assert number_of_messages(tasks["small"]) == "300"
    monkeypatch.setattr("kombu_redisdelay.operations.memory.MESSAGES", 100)
    small_ones = by_task(messages.memory())["small"]
    assert small_ones.is_about
    assert number_of_messages(small_ones).startswith("about ")


@pytest.mark.parametrize("state", ["ready", "unacked"])
def test_what_is_at_the_end_counts(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """All messages may be read, and not all bytes."""
    monkeypatch.setattr("kombu_redisdelay.operations.memory.BYTES", 2_000_000)
    keys = site.keys("celery")
    some = {task: bodies(site, app, task, 20_000)[0] for task in ("first", "last")}
    for task, message in some.items():
        if state == "ready":
            site.redis.rpush(keys.ready, *[message] * 200)
        else:
            site.redis.zadd(keys.consumers, {task: 9e12})
            site.redis.hset(
                keys.unacked(task), mapping={f"{task}{each}": b"0:" + message for each in range(200)}
            )
    found = messages.memory()
    tasks = by_task(found)
    assert tasks["first"].is_about
    for task in some:
        assert tasks[task].bytes == pytest.approx(found.bytes / 2, rel=2 * NEARLY)


def test_few_huge_ones_do_not_disturb_the_others(site: Site, app: Celery, messages: Messages) -> None:
    """A little more than are read at first, and all can be read."""
    [small, *_], [huge, *_] = bodies(site, app, "small", 100), bodies(site, app, "huge", 1_000_000)
    site.redis.rpush("celery", *[small] * 1000, huge, huge, huge, *[small] * 1000)
    tasks = by_task(messages.memory())
    assert tasks["small"].messages == 2000
    assert tasks["huge"].messages == 3
    assert tasks["small"].bytes == pytest.approx(2000 * len(small), rel=NEARLY)
    assert tasks["huge"].bytes == pytest.approx(3 * len(huge), rel=NEARLY)
    assert tasks["small"].bytes_with_zlib is not None


def test_arguments_are_not_told(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a", kwargs={"password": "secret"})
    assert "secret" not in repr(messages.memory())


class TestReach:
    """Nothing is read far from both ends of a long list: Redis would walk over it for too long."""

    def test_of_a_short_list_all_is_within_reach(self) -> None:
        assert [within_reach(index, 1000, 1000) for index in range(1000)] == list(range(1000))

    def test_of_a_long_list_the_middle_is_not(self) -> None:
        length, mean = 10_000_000, 2000
        reach = REACH * NODE_BYTES / mean
        found = [within_reach(index, length, mean) for index in range(0, length, 997)]
        assert all(index <= reach or index >= length - reach - 1 for index in found)
        assert sum(index < length / 2 for index in found) == pytest.approx(len(found) / 2, rel=0.1)
        assert nodes_of(length, mean) > 2 * REACH


def test_it_is_said_that_the_middle_was_not_read(
    site: Site, app: Celery, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sample", "memory"):
        monkeypatch.setattr(f"kombu_redisdelay.operations.{module}.REACH", 10)
    [message, *_] = bodies(site, app, "small", 1000)
    site.redis.lpush("celery", *[message] * 3000)
    found = messages.memory()
    assert "the middle of the long list of ready messages of celery" in found.not_looked_at
    assert by_task(found)["small"].bytes == pytest.approx(found.bytes, rel=0.01)
