"""What a user of the broker must be allowed: the page says it, and the doctor finds out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue
from kombu.transport import redis as kombu_redis
from redis import Redis
from redis.exceptions import NoPermissionError

import kombu_redisdelay
from kombu_redisdelay.broker.server.scripts import Script
from kombu_redisdelay.cli.broker import queue_names
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor.finding import Finding, Level
from kombu_redisdelay.operations.doctor.names import names_of
from kombu_redisdelay.operations.doctor.permissions import _written, check_permissions, uses
from kombu_redisdelay.operations.exporter import QueueCollector
from tests.cli.site import Site
from tests.permissions import allow, documented_rules, refused
from tests.web.states import LONG, PAGES, messages_in_each_state
from tests.web.viewer import Viewer
from tools.harness.redis_server import RedisServer

#: The queue of the app.
QUEUE = "orders"

#: Allowed, and looked at in another way, or only needed for what one can do without.
_ASKED_OTHERWISE = {"+multi", "+exec", "+info"}


def _access(server: RedisServer, *rules: str, **settings: Any) -> Access:
    app = Celery("shop", broker=allow(server, *rules), set_as_current=False)
    app.conf.update({"task_default_queue": QUEUE, **settings})
    return Access(app)


def _permissions(access: Access, *selected: str) -> list[Finding]:
    return list(check_permissions(access.store, names_of(access, selected), ()))


def _refusals(access: Access, *selected: str) -> tuple[str, str]:
    """What is found, and what is advised."""
    found = _permissions(access, *selected)
    assert {finding.level for finding in found} == {Level.WRONG}
    return "; ".join(each.found for each in found), " ".join(each.advice for each in found)


@pytest.fixture
def access(server: RedisServer) -> Iterator[Access]:
    """As exactly the user that is documented."""
    with _access(server, *documented_rules(QUEUE)) as access:
        yield access


def test_the_page_allows_what_is_used_and_nothing_else(access: Access) -> None:
    wanted = list(uses(access.store, names_of(access, ())))
    commands = {
        "|".join(map(str, use.command[: 1 + (use.command[0] in ("SCRIPT", "MEMORY"))])) for use in wanted
    }
    documented = documented_rules(QUEUE)
    assert documented[:4] == ["reset", "resetchannels", "on", ">secret"]
    assert set(documented[4:]) == {
        *(use.rule for use in wanted if use.rule),
        *(f"+{command.lower()}" for command in commands),
        *_ASKED_OTHERWISE,
    }


def test_results_are_not_allowed(server: RedisServer) -> None:
    url = allow(server, *documented_rules("celery"))
    with Redis.from_url(url.replace("redisdelay://", "redis://")) as client, server.client() as all_may:
        for key in ("celery-task-meta-1", "celeryev.x-other", "celery2"):
            all_may.set(key, "x")
        with pytest.raises(NoPermissionError):
            client.lpop("celery-task-meta-1")
        with pytest.raises(NoPermissionError):
            client.lpush("celery2", "x")


def test_the_exporter_needs_no_more(server: RedisServer, site: Site) -> None:
    site.send(countdown=60)
    site.add_consumer("worker", 60_000, holds=2)
    site.bury("{}", "because")
    # Its keys are looked at.
    site.text("fair", "-Q", "celery")
    site.text("pause", "-Q", "celery", "--key", "tenant-13")
    rules = documented_rules("celery", user="exporter")
    app = Celery("shop", broker=allow(server, *rules), set_as_current=False)
    with Access(app) as access:
        [up, messages, *_] = QueueCollector(access.store, lambda: queue_names(access, ())).collect()
    assert up.samples[0].value == 1
    assert {sample.value for sample in messages.samples} == {0, 1, 2}
    assert set(refused(server)) <= {"command info in toplevel"}
    # Nor can it do more.
    writes = ("set", "del", "lpush", "lpop", "hset", "zadd", "zrem", "publish", "flushall", "config")
    assert not {f"+{command}" for command in writes} & set(rules)


def test_a_page_that_only_shows_needs_no_more(server: RedisServer, site: Site) -> None:
    messages_in_each_state(site)
    rules = documented_rules("celery", LONG, user="viewer")
    app = Celery("shop", broker=allow(server, *rules), set_as_current=False)
    viewer = Viewer(app, read_only=True)
    for path in PAGES:
        page = viewer.open(path)
        assert page.status in (200, 400, 404)
        assert "refused" not in page.text
    viewer.close()


def test_a_rule_with_bytes_is_written_as_one_enters_it(server: RedisServer) -> None:
    rules = [rule for rule in documented_rules(QUEUE) if "\x06" not in rule]
    with _access(server, *rules) as access:
        _, advice = _refusals(access)
        assert advice == rf'ACL SETUSER <user> "~{QUEUE}\x06\x16*"'


def test_the_documented_user_is_allowed_everything(access: Access, server: RedisServer) -> None:
    assert [finding.level for finding in _permissions(access)] == [Level.OK]
    assert refused(server) == []


def test_with_a_global_keyprefix(server: RedisServer) -> None:
    options = {"global_keyprefix": "shop:"}
    rules = documented_rules(QUEUE, prefix="shop:")
    with _access(server, *rules, broker_transport_options=options) as access:
        assert [finding.level for finding in _permissions(access)] == [Level.OK]
    assert refused(server) == []


def test_any_of_many_queues(server: RedisServer) -> None:
    names = [f"queue-{number}" for number in range(150)]
    with server.client() as client, Access(server.url()) as everything:
        before = client.info("stats")["total_net_input_bytes"]
        assert [finding.level for finding in _permissions(everything, *names)] == [Level.OK]
        # Who may use any queue is not asked for each: that would be 5 MB.
        assert client.info("stats")["total_net_input_bytes"] - before < 200_000
    with _access(server, *documented_rules(*names[1:])) as access:
        found, advice = _refusals(access, *names)
        assert "redisdelay:{queue-0}:schedule" in found
        assert "queue-1}" not in found
        assert "~redisdelay:{queue-0}:*" in advice


@pytest.mark.parametrize("health_check_interval", [25, 1e-9])
def test_nothing_is_touched(server: RedisServer, site: Site, health_check_interval: float) -> None:
    """Not even where redis-py checks its connection after each command, and makes a new one."""
    site.send(queue=QUEUE)
    site.send(queue=QUEUE, countdown=60)
    listener = site.redis.pubsub()
    listener.psubscribe("*")
    before = {key: site.redis.dump(key) for key in site.redis.scan_iter()}
    options = {"health_check_interval": health_check_interval}
    with _access(server, *documented_rules(QUEUE), broker_transport_options=options) as access:
        assert [finding.level for finding in _permissions(access)] == [Level.OK]
    site.redis.publish("the end", "")
    heard = iter(lambda: listener.get_message(timeout=10), None)
    assert next(message["channel"] for message in heard if message["type"] == "pmessage") == "the end"
    assert {key: site.redis.dump(key) for key in site.redis.scan_iter()} == before
    listener.close()


#: Without PING there is no connection.
_MISSING = [rule for rule in documented_rules(QUEUE)[4:] if rule not in ("+ping", "+info")]


@pytest.mark.parametrize("missing", _MISSING)
def test_every_rule_that_is_missing_is_found(access: Access, server: RedisServer, missing: str) -> None:
    allow(server, *(rule for rule in documented_rules(QUEUE) if rule != missing))
    found, advice = _refusals(access)
    assert _written(missing) in advice.rstrip(".").replace(". ", " ").split()
    if missing.startswith("+"):
        assert found.partition(";")[0] == f"commands refused: {missing[1:].upper()}"


def test_of_who_may_do_nothing_all_that_is_needed_is_said(access: Access, server: RedisServer) -> None:
    """Nothing can be looked at without MULTI."""
    allow(server, *documented_rules(QUEUE), "-@all", "resetkeys", "resetchannels")
    found, advice = _refusals(access)
    assert found == "commands refused: EXEC, MULTI; without MULTI, doctor cannot look at the others"
    needed = {_written(rule) for rule in documented_rules(QUEUE)[4:]} - {"+info"}
    said, _, rules = advice.partition(" <user> ")
    assert (said, set(rules.split())) == ("All that is needed: ACL SETUSER", needed)


def test_another_type_of_access_to_a_key_is_found(access: Access, server: RedisServer) -> None:
    """Redis 7 and Valkey may allow to read only."""
    with server.client() as client:
        if int(client.info("server")["redis_version"].split(".")[0]) < 7:
            pytest.skip("Redis 6.2 has no such rules")
    rules = documented_rules(QUEUE)
    rules[rules.index(f"~{QUEUE}")] = f"%R~{QUEUE}"
    allow(server, *rules)
    found, advice = _refusals(access)
    assert found.startswith(f"keys refused: {QUEUE}")
    assert f"~{QUEUE}" in advice.rstrip(".").split()


def test_what_the_app_declares_is_looked_at(server: RedisServer) -> None:
    queues = [
        Queue("a", Exchange("topics", type="topic"), routing_key="x.#"),
        Broadcast("news"),
        Queue("b", Exchange("b"), routing_key="b"),
    ]
    with _access(server, *documented_rules("a"), task_queues=queues, task_default_queue="a") as access:
        found, advice = _refusals(access)
        assert "b, b\x06\x163" in found
        assert "channels refused: /0.news/a" in found
        for rule in ("~b", r'"~b\x06\x16*"', "~redisdelay:{b}:*", "~bcast.*", "&/0.news/a"):
            assert rule in advice.rstrip(".").replace(". ", " ").split()
        allow(server, *documented_rules("a", "b", "bcast.*"), "&/0.news/a")
        assert [finding.level for finding in _permissions(access)] == [Level.OK]
        # Asked for one queue, others do not matter.
        allow(server, *documented_rules("b"))
        assert [finding.level for finding in _permissions(access, "b")] == [Level.OK]


def test_without_remote_control_its_channel_does_not_matter(server: RedisServer) -> None:
    rules = [rule for rule in documented_rules(QUEUE) if "pidbox" not in rule]
    with _access(server, *rules, worker_enable_remote_control=False) as access:
        assert [finding.level for finding in _permissions(access)] == [Level.OK]


def test_many_queues(access: Access, server: RedisServer) -> None:
    """More than are asked for in one transaction."""
    allow(server, *documented_rules(QUEUE, "q*"))
    assert [finding.level for finding in _permissions(access, *(f"q{n}" for n in range(200)))] == [Level.OK]


def test_the_doctor_goes_on_where_it_may_not_look(server: RedisServer, site: Site) -> None:
    """At a queue of somebody else, and at what stock workers leave."""
    site.store.remember("of-others")
    url = allow(server, *documented_rules(QUEUE))
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.task_default_queue = QUEUE
    result = site.run("doctor", app=app)
    assert result.exit_code == 0, result.output
    assert "warning queue of-others: this user may not look at it" in result.stdout
    assert "ok      redis:// leftovers: not looked for: this user may not read 'unacked'" in result.stdout
    assert "ok      queues: 1 in order" in result.stdout


def test_the_doctor_goes_on_without_the_clock(server: RedisServer, site: Site) -> None:
    url = allow(server, *(rule for rule in documented_rules() if rule != "+time"))
    result = site.run("doctor", app=Celery("shop", broker=url, set_as_current=False))
    assert result.exit_code == 1
    assert "wrong   permissions: commands refused: TIME" in result.stdout
    assert "wrong   server: could not be checked: " in result.stdout


def test_every_command_that_we_use_is_looked_at(access: Access) -> None:
    """Those in the scripts, and those that are sent directly. And no other, but for kombu's."""
    lua = files("kombu_redisdelay") / "lua"
    texts = [
        Script(file.name.removesuffix(".lua")).text for file in lua.iterdir() if file.name.endswith(".lua")
    ]
    package = Path(kombu_redisdelay.__file__).parent
    # Where a tuple begins with a word in capitals, it is a command; not so in what is printed.
    sources = {*package.rglob("*.py")} - {
        *(package / "cli").rglob("*.py"),
        *(package / "operations" / "doctor").rglob("*.py"),
        # It has the codes of errors.
        package / "refusals.py",
    }
    ours = {name for text in texts for name in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", text)}
    ours |= {name for text in texts for name in re.findall(r"'([LR]PUSH|[LR]POP)'", text)}
    ours |= {name for source in sources for name in re.findall(r"\(\s*\"([A-Z]{3,})\",", source.read_text())}
    # Looked at where they are used: tests/sentinel/test_doctor.py, tests/operations/test_cluster.py.
    ours -= {"WAIT", "ASKING"}
    # For `adopt` alone, which says so if one is missing: tests/cli/test_adopt.py.
    ours -= {"CLIENT"}
    looked_at = {str(use.command[0]) for use in uses(access.store, names_of(access, ()))}
    assert len(ours) > 25
    assert ours <= looked_at
    kombus = Path(kombu_redis.__file__).read_text()
    for command in looked_at - ours:
        assert (
            re.search(rf"\.{command.lower()}\(|['\"]{command}['\"]", kombus) or command in _SENT_BY_REDIS_PY
        )


#: PING checks that a connection is alive, the others run kombu's scripts.
_SENT_BY_REDIS_PY = {"PING", "EVAL", "EVALSHA", "SCRIPT"}


def test_commands_pass_over_queues_of_others(server: RedisServer, site: Site) -> None:
    """In a database that several applications share."""
    ours = site.send(countdown=3600, queue=QUEUE)
    site.app.send_task("theirs", countdown=3600, queue="of-others")
    url = allow(server, *documented_rules(QUEUE))
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.task_default_queue = QUEUE
    for words in (
        *(["stats"], ["list"], ["list", "--state", "dead"], ["timeline"]),
        *(["show", ours], ["cancel", ours]),
    ):
        result = site.run(*words, app=app)
        assert result.exit_code == 0, result.output
        assert "of-others" not in result.output
