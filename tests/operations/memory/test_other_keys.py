"""What the rest of the database takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
from celery import Celery
from celery.app.task import Context
from kombu import pools

from kombu_redisdelay import Messages, OtherKeys, ServerFill
from kombu_redisdelay.operations.memory_report import MemoryUse, key_in_words, remarks
from kombu_redisdelay.operations.other_keys import OTHERS, REPLIES, RESULTS, STOCK
from tests.operations.kit import send
from tests.operations.memory.kit import NEARLY
from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer

#: Keys of which SCAN tells some.
MANY = 3000


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    """A server for these tests alone. SCAN takes its COUNT for a hint: after other tests, Valkey 9.1 has told
    all of 3,000 keys at once, also after it was emptied."""
    with RedisServer() as server:
        yield server


def add_keys(site: Site, values: Mapping[str, str]) -> None:
    with site.redis.pipeline(transaction=False) as pipeline:
        for key, value in values.items():
            pipeline.set(key, value)
        pipeline.execute()


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


def test_only_estimates_are_about(site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    site.redis.mset({f"celery-task-meta-{number}": "x" * 5000 for number in range(300)})
    site.redis.sadd("_kombu.binding.a", "b")
    site.redis.hset("of another program", mapping={f"{number}": "x" * 100 for number in range(1000)})

    def said() -> list[str]:
        told = [each for each in remarks(messages.memory()) if each.startswith(("Beside", "The largest of"))]
        return [
            re.sub(r" [\d.]+ [KMi]*B", " <bytes>", re.sub(", [^,]* of what Redis uses", "", each))
            for each in told
        ]

    assert sorted(said()) == [
        "Beside the queues: bindings of exchanges, <bytes> in 1 key.",
        "Beside the queues: other keys, about <bytes> in 1 key.",
        "Beside the queues: results of tasks, <bytes> in 300 keys.",
        "The largest of them: 'of another program', a hash, about <bytes>.",
    ]
    add_keys(site, {f"celery-task-meta-{number}": "x" * 5000 for number in range(300, MANY)})
    monkeypatch.setattr("kombu_redisdelay.operations.other_keys.KEYS_LOOKED_AT", 10)
    [of_results] = [each for each in said() if "results" in each]
    assert re.fullmatch(r"Beside .*: results of tasks, about <bytes> in about [\d,]+ keys\.", of_results)


def test_another_database_is_named(server: RedisServer, site: Site, messages: Messages) -> None:
    with server.client(db=3) as client:
        client.set("a", "b")
        assert any("db3" in what for what in messages.memory().not_looked_at)
        client.flushdb()


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
    assert re.match(r"'\\x1b\[2Jtext\\n', a string, \d\d KiB", key_in_words(text))
    assert "it may be a queue of redis://" in key_in_words(stock)


def test_results_that_nobody_has_fetched_are_named(site: Site) -> None:
    app = Celery("rpc", broker=site.url, backend="rpc://", set_as_current=False)
    pools.reset()
    request = Context(reply_to=app.thread_oid, correlation_id="id")
    app.backend.store_result("id", "x" * 20_000, "SUCCESS", request=request)
    # Celery does not name them so.
    site.redis.lpush("answers", site.redis.lindex(app.thread_oid, 0))
    with Messages(app) as messages:
        [others] = [each for each in messages.memory().others if each.what == OTHERS]
    said = {each.name: key_in_words(each).partition("; ")[2] for each in others.largest}
    assert said[app.thread_oid] == "results of rpc:// that nobody has fetched"
    assert "may be a queue" in said["answers"]
    app.close()


def test_a_large_key_does_not_stand_for_others(
    site: Site, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kombu_redisdelay.operations.other_keys.KEYS_LOOKED_AT", 10)
    add_keys(site, {f"of another program {number}": "x" for number in range(MANY)})
    cursor, seen = site.redis.scan(0, count=10)
    assert cursor
    site.redis.set(seen[0], "x" * 100_000)
    [others] = messages.memory().others
    assert others.largest[0].name == seen[0].decode()
    # Ten stand for 3,000.
    assert 100_000 < others.bytes < 1_000_000
