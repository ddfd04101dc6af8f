"""`celery delayed doctor`: what the server itself counts of what it refuses, and what it says before it
refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import AuthenticationError, NoPermissionError

from kombu_redisdelay.operations.doctor import refusals
from kombu_redisdelay.operations.doctor.server import _saving
from tests.cli.site import Site, run_delayed
from tests.permissions import allow, documented_rules
from tools.harness import trouble
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly=True, args=("--maxmemory", "256mb")) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        client.acl_log_reset()


@pytest.fixture
def writes_again(server: RedisServer) -> Iterator[None]:
    """Somebody writes ten times a second, whatever the server says."""
    stop = Event()

    def write() -> None:
        with server.client() as client:
            while not stop.wait(0.1):
                with suppress(redis.RedisError):
                    client.set("theirs", "x")

    thread = Thread(target=write)
    thread.start()
    yield
    stop.set()
    thread.join(30)


def test_a_server_that_has_refused_nothing_is_asked_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "sleep", lambda seconds: pytest.fail("nothing is counted"))
    assert not {"refusals", "ACL LOG", "saving"} & {row["check"] for row in site.rows("doctor")}


def test_what_is_refused_now(site: Site, server: RedisServer, writes_again: None) -> None:
    with trouble.misconf(server):
        rows = site.rows("doctor", status=1)
    found = {row["check"]: row["found"] for row in rows}
    assert found["saving"] == (
        "the last snapshot failed, and Redis writes nothing until it succeeds (MISCONF)"
    )
    assert re.fullmatch(r"misconf, \d+ times in the last 1\.1 s", found["refusals"])
    # The doctor has tried what it would be allowed to write: that says nothing of others.
    assert found["permissions"] == "all commands, keys and channels are allowed"


def test_what_was_refused_before(site: Site, server: RedisServer) -> None:
    with trouble.misconf(server), server.client() as client, pytest.raises(redis.ResponseError):
        client.set("theirs", "x")
    assert site.findings("ok")["refusals"] == "none now; since the counters began: misconf"


def test_clients_that_found_no_place(site: Site, server: RedisServer) -> None:
    with trouble.too_many_clients(server), pytest.raises(redis.ConnectionError):
        trouble.asking(server).ping()
    wait_until(lambda: site.redis.info("stats")["rejected_connections"] > 0, 30, "that it is counted")
    assert site.findings("ok")["refusals"] == "none now; since the counters began: maxclients"


def test_who_was_refused_what_of_late(site: Site, server: RedisServer) -> None:
    allow(server, *(rule for rule in documented_rules("celery") if rule != "+evalsha"))
    with redis.Redis(HOST, server.port, username="shop", password="secret") as client:
        for _ in range(3):
            with pytest.raises(NoPermissionError):
                client.evalsha("0" * 40, 0)
        # These are for others, or one does without them.
        for harmless in (("CLIENT", "LIST"), ("EXISTS", "redisdelay:{theirs}:schedule"), ("FLUSHALL",)):
            with pytest.raises(NoPermissionError):
                client.execute_command(*harmless)
    with (
        redis.Redis(HOST, server.port, username="shop", password="wrong") as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.ping()
    said = site.findings("warning")["ACL LOG"]
    assert said.startswith("refused in the last minute: ")
    assert "shop: evalsha (command), 3 times" in said
    assert re.search(r"shop: login, \d+ time", said)
    assert said.count("shop: ") == 2
    # What a doctor asks for, and is refused, is not among it the next time.
    app = Celery("shop", broker=server.url().replace("://", "://shop:secret@"), set_as_current=False)
    assert "commands refused: EVALSHA" in run_delayed(app, "doctor").output
    assert set(re.findall(r"shop: [^,]+", site.findings("warning")["ACL LOG"])) == {
        "shop: evalsha (command)",
        "shop: login",
    }


def test_a_user_that_may_not_ask_is_told_the_rest(site: Site, server: RedisServer) -> None:
    site.send()
    app = Celery("shop", broker=allow(server, *documented_rules("celery")), set_as_current=False)
    result = run_delayed(app, "doctor")
    assert "ACL LOG" not in result.output
    assert "could not be checked" not in result.output
    assert "ok      permissions: all commands, keys and channels are allowed" in result.output


@pytest.mark.parametrize(
    ("brought", "check", "said"),
    [
        (trouble.too_few_replicas, "replicas", "0 replicas follow, and the server writes nothing with less"),
        (trouble.read_only, "role", "a replica, which is read-only"),
    ],
    ids=["noreplicas", "readonly"],
)
def test_all_is_checked_though_nothing_can_be_written(
    site: Site, server: RedisServer, brought: trouble.Trouble, check: str, said: str
) -> None:
    site.send(countdown=60)
    with brought(server):
        found = {row["check"]: row["found"] for row in site.rows("doctor", status=1)}
    assert found[check].startswith(said)
    assert found["permissions"] == "all commands, keys and channels are allowed"
    assert found["queue celery"] == "1 message scheduled, and no worker"


class _Settings:
    """What a server says of its settings."""

    def __init__(self, **settings: str) -> None:
        self._settings = settings

    def setting(self, name: str) -> str | None:
        return self._settings.get(name.replace("-", "_"))


_STOPS = "Redis writes nothing until it succeeds (MISCONF)"


@pytest.mark.parametrize(
    ("info", "settings", "expected"),
    [
        ({"rdb_last_bgsave_status": "ok"}, {}, []),
        ({"rdb_last_bgsave_status": "err"}, {}, [("wrong", f"the last snapshot failed, and {_STOPS}")]),
        (
            {"rdb_last_bgsave_status": "err"},
            {"save": ""},
            [("warning", "the last snapshot failed; Redis still writes")],
        ),
        (
            {"rdb_last_bgsave_status": "err"},
            {"save": "60 1", "stop_writes_on_bgsave_error": "no"},
            [("warning", "the last snapshot failed; Redis still writes")],
        ),
        (
            {"aof_enabled": 1, "aof_last_write_status": "err"},
            {},
            [("wrong", f"writing the append-only file fails, and {_STOPS}")],
        ),
        (
            {"aof_enabled": 1, "aof_last_bgrewrite_status": "err"},
            {},
            [("warning", "the last rewrite of the append-only file failed: it grows")],
        ),
        ({"aof_enabled": 0, "aof_last_write_status": "err"}, {}, []),
    ],
)
def test_what_fails_to_save(
    info: Mapping[str, Any], settings: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    found = _saving(info, _Settings(**settings))  # type: ignore[arg-type]
    assert [(each.level.value, each.found) for each in found] == expected
