"""What fills Redis: bytes by queue, state and task, the rest of the database, and when it is full."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import pools

from kombu_redisdelay import Messages, OtherKeys, Queues, ServerFill, TaskMemory
from kombu_redisdelay.operations.forecast import Growth, growth, server_fills
from kombu_redisdelay.operations.history import Counts, Period, QueueHistory
from kombu_redisdelay.operations.memory import MESSAGES, MemoryUse
from kombu_redisdelay.operations.memory_words import fill_of, key_in_words, number_of_messages, remarks
from kombu_redisdelay.operations.other_keys import OTHERS, REPLIES, RESULTS, STOCK
from kombu_redisdelay.operations.queue_bytes import NOTES
from kombu_redisdelay.operations.sample import (
    MESSAGES_PER_READ,
    NODE_BYTES,
    REACH,
    nodes_of,
    within_reach,
)
from tests.finished import OF_MESSAGES
from tests.operations.kit import GARBAGE, in_each_state, send
from tests.permissions import allow, documented_rules
from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    """As a user that may look at all keys."""
    pools.reset()
    app = Celery("api", broker=server.url(), backend=server.url("redis"), set_as_current=False)
    yield app
    app.close()


#: How far an estimate may be off.
NEARLY = 0.25

#: Task -> characters of its argument, and how many there are: many small ones, and few that are large.
KINDS = {"small": (200, 9000), "medium": (1500, 2000), "large": (40_000, 250)}


def text(length: int) -> str:
    """Something that cannot be compressed much."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=length))


def bodies(site: Site, app: Celery, task: str, length: int) -> list[bytes]:
    """Some messages of a task."""
    for _ in range(5):
        app.send_task(task, [text(length)])
    found: list[bytes] = site.redis.lrange("celery", 0, -1)
    site.redis.delete("celery")
    return found


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


def by_task(found: MemoryUse) -> dict[str | None, TaskMemory]:
    tasks = {each.task: each for each in found.tasks}
    assert len(tasks) == len(found.tasks)
    return tasks


def of_state(found: MemoryUse, state: str) -> int:
    return sum(each.bytes for each in found.states if each.state == state)


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
    assert "the messages of 1 small states of queues: 1 in all" in found.not_looked_at


def test_a_fair_queue(site: Site, app: Celery, messages: Messages) -> None:
    with Queues(app) as queues:
        queues.make_fair("celery")
    channel = site.channel()
    for number in range(30):
        send(app, f"{number}", headers={"x-key": f"tenant {number % 3}"})
    # Who looks for more has all sorted in.
    assert channel.basic_get("celery") is not None
    [ready] = [each for each in messages.memory().tasks if each.state == "ready"]
    assert (ready.task, ready.messages, ready.seen) == ("shop.close", 29, 29)
    assert ready.bytes > 29 * ready.largest * 0.9


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


class TestForbidden:
    @pytest.fixture
    def limited(self, server: RedisServer) -> Iterator[Messages]:
        rules = [rule for rule in documented_rules("celery") if rule not in ("+memory|usage", "+hrandfield")]
        app = Celery("limited", broker=allow(server, *rules), set_as_current=False)
        with Messages(app) as messages:
            yield messages
        app.close()

    def test_it_is_about_the_number_times_the_mean(
        self, app: Celery, limited: Messages, messages: Messages
    ) -> None:
        send(app, *map(str, range(100)))
        exact, found = messages.memory("celery"), limited.memory("celery")
        [state] = [each for each in found.states if each.state == "ready"]
        assert state.is_about
        assert state.bytes == pytest.approx(of_state(exact, "ready"), rel=NEARLY)
        assert not any(each.is_about for each in exact.states)

    def test_many_scheduled_ones_cannot_be_read(
        self, app: Celery, limited: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kombu_redisdelay.operations.memory.MESSAGES", 10)
        monkeypatch.setattr("kombu_redisdelay.operations.memory.LEAST_MESSAGES", 10)
        send(app, *map(str, range(50)), countdown=60)
        found = limited.memory()
        assert any("hrandfield" in what.lower() for what in found.not_looked_at)
        assert any("rest of the database" in what for what in found.not_looked_at)
        assert [each.kind for each in found.tasks] == ["unseen"]


def test_the_rest_of_the_database(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a")
    client = site.redis
    for number in range(10):
        client.set(f"celery-task-meta-{number}", "x" * 1000)
    client.rpush("0af1.reply.celery.pidbox", "x" * 500)
    client.hset("unacked", "tag", "x" * 20_000)
    client.zadd("unacked_index", {"tag": 1})
    client.lpush("of another program", "x" * 5000)
    others = {each.what: each for each in messages.memory().others}
    assert (others[RESULTS].keys, others[REPLIES].keys, others[STOCK].keys, others[OTHERS].keys) == (
        *(10, 1, 2, 1),
    )
    assert others[RESULTS].bytes == sum(client.memory_usage(f"celery-task-meta-{n}") for n in range(10))
    assert others[STOCK].bytes == pytest.approx(20_000, rel=NEARLY)
    assert list(others) == [each.what for each in sorted(others.values(), key=lambda each: -each.bytes)]


def test_another_database_is_named(server: RedisServer, site: Site, messages: Messages) -> None:
    with server.client(db=3) as client:
        client.set("a", "b")
        assert any("db3" in what for what in messages.memory().not_looked_at)
        client.flushdb()


#: Bytes that a server has left.
ROOM = 10_000_000


class TestForecast:
    NOW_S = 1_800_000_000.0

    def history(self, queue: str, now_s: float, seconds: float, **counts: int) -> QueueHistory:
        start = datetime.fromtimestamp(now_s - seconds, timezone.utc)
        periods = [Period(start, round(seconds), Counts(**counts))]
        return QueueHistory(queue, Counts(), 0, periods, periods)

    @pytest.mark.parametrize(
        ("counts", "more"),
        [
            ({"published": 3600}, 3600),
            ({"published": 3600, "delivered": 1800}, 1800),
            ({"published": 100, "delivered": 200, "failures": 100}, 0),
            ({"published": 100, "delivered": 100, "failed": 20}, 20),
            ({"delivered": 100}, -100),
        ],
    )
    def test_by_how_much_it_grows(self, counts: Mapping[str, int], more: int) -> None:
        found = growth(self.history("celery", self.NOW_S, 1800, **counts), self.NOW_S)
        assert found is not None
        assert found.rate == pytest.approx(more / 1800)
        assert found.seconds == 1800

    def test_a_short_history_says_nothing(self) -> None:
        assert growth(self.history("celery", self.NOW_S, 800, published=100), self.NOW_S) is None
        assert growth(QueueHistory("celery", Counts(), 0, [], []), self.NOW_S) is None

    def test_a_queue_that_was_idle_in_the_last_hour_does_not_grow(self) -> None:
        old, new = (self.history("celery", self.NOW_S, seconds) for seconds in (7200, 20))
        history = QueueHistory("celery", Counts(), 0, new.minutes, [*old.hours, *new.hours])
        assert growth(history, self.NOW_S) == Growth(0.0, 3600)

    def fill(
        self,
        site: Site,
        messages: Messages,
        monkeypatch: pytest.MonkeyPatch,
        more: Mapping[str, int],
        room: int,
    ) -> ServerFill:
        """How full the server is.

        Arguments:
            more: queue -> by how many messages of 1,000 bytes it has grown in half an hour; 0: nobody knows.
            room: bytes up to maxmemory; 0: it is not set.
        """
        now_s = messages.store.now_ms() / 1000
        monkeypatch.setattr(
            "kombu_redisdelay.operations.forecast.queue_history",
            lambda store, queues: [
                self.history(queue, now_s, 1800 if more[queue] else 60, published=more[queue])
                for queue in queues
            ],
        )
        used = int(site.redis.info("memory")["used_memory"])
        site.redis.config_set("maxmemory", used + room if room else 0)
        try:
            [server] = server_fills(messages.store, dict.fromkeys(more, (1_000_000, 1000)))
        finally:
            site.redis.config_set("maxmemory", 0)
        return server

    def test_when_it_is_full(self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800}, ROOM)
        assert (server.is_limited, server.unknown) == (True, [])
        assert server.bytes_per_hour == pytest.approx(3_600_000, rel=0.01)
        assert server.measured == pytest.approx(1800, rel=0.1)
        assert server.full_in == pytest.approx(10_000, rel=0.3)
        assert re.search(
            r"at this rate, 3.4 MiB an hour, measured over 30m\w*, it is full in 2h", fill_of(server)
        )

    def test_without_maxmemory_the_limit_of_the_machine_counts(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800}, room=0)
        assert not server.is_limited
        assert server.bytes_per_hour == pytest.approx(3_600_000, rel=0.01)
        assert (server.full_in is None) == (server.limit == 0)
        assert "maxmemory" in fill_of(server)

    def test_a_large_queue_without_a_history(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = self.fill(site, messages, monkeypatch, {"celery": 1800, "imports": 0}, ROOM)
        assert server.unknown == ["imports"]
        assert "at least 3.4 MiB an hour" in fill_of(server)
        assert "at the latest: not counted are imports, which has no history of 15 minutes" in fill_of(server)
        server = self.fill(site, messages, monkeypatch, {"celery": -1800, "imports": 0}, ROOM)
        assert (server.bytes_per_hour, server.full_in) == (None, None)
        assert "nobody knows when it is full, because of imports" in fill_of(server)

    def test_a_small_queue_without_a_history_does_not_matter(
        self, site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queues = {f"q{number}": 100 for number in range(10)}
        server = self.fill(site, messages, monkeypatch, {**queues, "small": 0}, ROOM)
        assert server.unknown == []
        assert server.bytes_per_hour == pytest.approx(2_000_000, rel=0.1)

    def test_some_queues_foretell_nothing(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        [server] = messages.memory().servers
        assert server.unknown == ["celery"]
        [server] = messages.memory("celery").servers
        assert (server.unknown, server.bytes_per_hour) == ((), None)
        assert "history" not in fill_of(server)

    def test_a_full_server(self) -> None:
        full = ServerFill("a:1", 2**20, 2**20, True, "maxmemory", "allkeys-lru", 5.0, 3600.0, 0.0)
        assert fill_of(full) == (
            "1.0 MiB used of 1.0 MiB; it is full now; maxmemory-policy allkeys-lru: when it is full, queues, "
            "with their messages, may be thrown away"
        )


def test_what_nobody_knows_is_said() -> None:
    server = ServerFill("a:1", 10 * 2**20, 0, False, "unknown", "noeviction")
    found = MemoryUse([], [], [OtherKeys(OTHERS, 1, 2 * 2**20)], [server])
    assert "What else Redis uses, 8.0 MiB, 80 %, is its own, and keys" in "\n".join(remarks(found))
    little = MemoryUse([], [], [OtherKeys(OTHERS, 1, round(9.5 * 2**20))], [server])
    assert "What else" not in "\n".join(remarks(little))


def test_large_keys_of_others_are_named(site: Site, app: Celery, messages: Messages) -> None:
    send(app, "a", queue="stock")
    message = site.redis.rpop("stock")
    site.redis.srem("redisdelay:queues", "stock")
    site.redis.lpush("stock of redis://", *[message] * 20)
    site.redis.set("\x1b[2Jtext\n", "x" * 50_000)
    site.redis.set("small", "x")
    [others] = [each for each in messages.memory().others if each.what == OTHERS]
    text, stock = others.largest
    assert (text.name, text.type, text.may_be_queue) == ("\x1b[2Jtext\n", "string", False)
    assert (stock.name, stock.type, stock.may_be_queue) == ("stock of redis://", "list", True)
    assert text.bytes > 50_000
    assert key_in_words(text).startswith("'\\x1b[2Jtext\\n', a string, 49 KiB")
    assert "it may be a queue of redis://" in key_in_words(stock)


def test_a_large_key_does_not_stand_for_others(
    site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.other_keys.KEYS_LOOKED_AT", 100)
    site.redis.mset({f"of another program {number}": "x" for number in range(300)})
    cursor, seen = site.redis.scan(0, count=100)
    assert cursor
    site.redis.set(seen[0], "x" * 100_000)
    [others] = messages.memory().others
    assert others.largest[0].name == seen[0].decode()
    assert 100_000 < others.bytes < 160_000


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
