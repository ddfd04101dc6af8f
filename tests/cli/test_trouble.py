"""What the commands do with a server that refuses: they read what they can, and say in one line what is wrong
and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Thread
from typing import Any

import click
import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from kombu_redisdelay.broker import waits
from kombu_redisdelay.broker.server.wire import FULL
from kombu_redisdelay.cli import delayed
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.forwarder import LONGEST_WAIT, Forwarded, Forwarder
from kombu_redisdelay.operations.viewers import may_pass, why
from kombu_redisdelay.refusals import REFUSALS
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.site import QUEUE, Site
from tests.cli.test_exporter import exported
from tests.cli.test_processes import Daemon
from tests.cli.test_web import WebPage, get
from tests.undeclared import refuse_undeclared_keys
from tools.harness import trouble
from tools.harness.celery_command import CELERY, ROOT
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: Each command that reads, with the arguments that it needs. Those that run until they are stopped have tests
#: of their own.
READS = {
    "stats": (),
    "list": (),
    "show": ("ID",),
    "count": ("--by", "task"),
    "timeline": (),
    "history": (),
    "keys": ("-Q", QUEUE),
    "memory": (),
    "doctor": (),
    # Nothing was lost.
    "mend": (),
}
#: Each that changes something.
CHANGES = {
    "cancel": ("--all", "--yes"),
    "requeue": ("--state", "dead", "--all", "--yes"),
    "remove": ("--state", "dead", "--all", "--yes"),
    "revoke": ("--all", "--yes"),
    "reschedule": ("--all", "--countdown", "60", "--yes"),
    "deliver-now": ("--all", "--yes"),
    "pause": ("-Q", QUEUE),
    "resume": ("-Q", "paused"),
    "limit": ("-Q", QUEUE, "--concurrency", "3"),
    "fair": ("-Q", QUEUE),
    "adopt": (),
}
ENDLESS = {"top", "exporter", "forward", "web"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(args=trouble.SLOW_TO_LOAD) as server:
        yield server


@pytest.fixture(autouse=True)
def empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
        client.config_resetstat()


def everything(site: Site) -> dict[str, Any]:
    """But for the leases, which a consumer of the test renews."""
    keys = set(site.redis.scan_iter()) - {site.store.keys(QUEUE).consumers}
    return {key: site.redis.dump(key) for key in keys}


def test_these_are_all_commands(site: Site) -> None:
    with click.Context(delayed) as context:
        assert {*READS, *CHANGES, *ENDLESS} == set(delayed.list_commands(context))


def test_what_reads_works_while_nothing_can_be_written(
    site: Site, server: RedisServer, in_each_state: dict[str, str]
) -> None:
    site.text("fair", "-Q", "fair", "--force")
    site.send(queue="fair", headers={"x-key": "a"})
    with trouble.misconf(server):
        for name, words in READS.items():
            given = [in_each_state["scheduled"] if word == "ID" else word for word in words]
            result = site.run(name, *given)
            assert result.exit_code == (name == "doctor"), (name, result.output)
            assert not re.search("Error|Cannot|could not be", result.output), (name, result.output)
        for state, id in in_each_state.items():
            assert [row["id"] for row in site.rows("list", "--state", state, "-Q", QUEUE)] == [id]
            assert site.rows("show", id)[0]["state"] == state


def test_what_changes_is_refused_in_a_line_and_changes_nothing(
    site: Site, server: RedisServer, in_each_state: dict[str, str]
) -> None:
    site.text("pause", "-Q", "paused", "--force")
    before = everything(site)
    with trouble.misconf(server):
        # What is revoked is told through PUB/SUB: nothing is written.
        for name, words in CHANGES.items() - {("revoke", CHANGES["revoke"])}:
            result = site.run(name, *words)
            said = result.stderr.splitlines()
            assert result.exit_code == 1, (name, result.output)
            assert said[-1].startswith("Error: Redis could not save its data to the disk, and writes"), name
            # `adopt` names the broker.
            [*more] = (line for line in said[:-1] if not line.startswith("The broker is "))
            assert set(more) <= {"Stopped: 0 are done, or a few more. Run it again for the rest."}
    assert everything(site) == before


def test_of_one_message_it_is_known_that_nothing_was_done(
    site: Site, server: RedisServer, in_each_state: dict[str, str]
) -> None:
    with trouble.misconf(server):
        for words in (
            ("cancel", in_each_state["scheduled"]),
            ("cancel", in_each_state["ready"]),
            ("reschedule", in_each_state["scheduled"], "--countdown", "60"),
            ("requeue", in_each_state["dead"]),
            ("remove", in_each_state["failed"]),
        ):
            result = site.run(*words)
            assert (result.exit_code, result.stdout) == (1, "")
            assert result.stderr.startswith("Nothing was done.\nError: Redis could not save"), words


def test_while_a_script_keeps_the_server_busy_each_command_says_how_to_end_it(
    site: Site, server: RedisServer, in_each_state: dict[str, str]
) -> None:
    before = everything(site)
    with trouble.busy(server):
        for name, words in {**READS, **CHANGES}.items():
            result = site.run(name, *words)
            assert (result.exit_code, result.stdout) == (1, ""), name
            [said] = result.stderr.splitlines()
            assert re.match(r"Error: .*a script keeps Redis busy.*SCRIPT KILL.*BUSY", said), said
    assert everything(site) == before


@pytest.mark.parametrize(
    ("reason", "brought"),
    [
        ("loading", trouble.loading),
        ("maxclients", trouble.too_many_clients),
        ("noperm", trouble.no_permission),
        ("readonly", trouble.without_primary),
    ],
    ids=["loading", "maxclients", "noperm", "readonly"],
)
def test_what_else_refuses_is_said_in_a_line(
    site: Site, server: RedisServer, reason: str, brought: trouble.Trouble
) -> None:
    [hint] = (each.hint for each in REFUSALS if each.reason == reason)
    with brought(server):
        result = site.run("stats")
    assert (result.exit_code, result.stdout) == (1, "")
    [said] = result.stderr.splitlines()
    assert hint.lower() in said.lower()


@pytest.mark.once
def test_a_server_that_refuses_undeclared_keys(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send()
    refuse_undeclared_keys(monkeypatch.setattr)
    refused = [row for row in site.rows("doctor", status=1) if "undeclared key" in row["found"]]
    assert refused
    setting = "--default_lua_flags=allow-undeclared-keys"
    for row in refused:
        assert row["level"] == "wrong"
        assert row["advice"].startswith("The server must let scripts use keys that they do not declare")
        assert setting in row["advice"]
    result = site.run("stats")
    assert (result.exit_code, result.stdout) == (1, "")
    [said] = result.stderr.splitlines()
    assert setting in said


@pytest.mark.once
def test_what_is_done_in_part_is_said(site: Site, server: RedisServer) -> None:
    site.send(queue="ours")
    site.send(queue="theirs")
    site.text("pause", "-Q", "ours", "-Q", "theirs")
    site.text("resume", "-Q", "ours", "-Q", "theirs")
    rule = ("resetkeys", "%R~*", "~redisdelay:{ours}:*", "~redisdelay:known-queues")
    with trouble.no_permission(server, "default", *rule):
        result = site.run("pause", "-Q", "ours", "-Q", "theirs")
        alone = site.run("pause", "-Q", "theirs")
    assert [row["queue"] for row in site.rows("stats") if row["limits"]["paused_since"]] == ["ours"]
    said, why = result.stderr.splitlines()
    assert said == "Some of it may be done. Run it again for the rest."
    assert why.startswith("Error: This user may not do that")
    assert [line.partition(" ")[0] for line in alone.stderr.splitlines()] == ["Error:"]


def test_why() -> None:
    for refusal in REFUSALS:
        error = ResponseError("what the server says.")
        error.refusal = refusal  # type: ignore[attr-defined]
        said = why(error)
        expected = f"{refusal.hint} (what the server says)" if refusal.hint else "what the server says."
        assert said == expected
        assert may_pass(error) == refusal.is_for_a_while
    assert why(OutOfMemoryError(FULL)) == FULL
    assert why(ConnectionError("a\x1b[1m\nb")) == "a\\x1b[1m b"
    assert why(TimeoutError()) == "TimeoutError"
    assert may_pass(ConnectionError())
    assert not may_pass(ResponseError("ERR of another kind"))


@pytest.mark.parametrize(
    ("reason", "brought"),
    [("misconf", trouble.misconf), ("busy", trouble.busy), ("noperm", trouble.no_permission)],
    ids=["misconf", "busy", "noperm"],
)
def test_a_forwarder_waits_and_goes_on(
    site: Site,
    server: RedisServer,
    reason: str,
    brought: trouble.Trouble,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site.make_due(site.send(countdown=3600), -10)
    forwarded: list[Forwarded] = []
    with Access(site.app) as access:
        forwarder = Forwarder(access.store, lambda: [QUEUE, "other"], forwarded.append)
        thread = Thread(target=forwarder.run)
        try:
            with brought(server):
                thread.start()
                wait_until(lambda: list(waits.current()) == [reason], 30, "that it waits")
                wait_until(lambda: forwarder.failing_for > LONGEST_WAIT, 30, "that no round succeeds")
                assert thread.is_alive()
            wait_until(lambda: site.redis.llen(QUEUE) == 1, 30, "that it is forwarded")
            wait_until(lambda: not waits.current(), 30, "that nothing waits")
        finally:
            forwarder.stop()
            thread.join(10)
    said = [record.getMessage() for record in caplog.records if record.name == waits.__name__]
    assert said[0].startswith("Redis refuses to forward what is due: ")
    assert re.fullmatch(rf"Redis serves this process again, after [\d.]+ s \({reason}\)\.", said[-1])
    assert len(said) == 2


def test_an_exporter_says_why_it_tells_nothing(
    site: Site, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    site.send()
    with trouble.misconf(server):
        assert exported(site)["redisdelay_up", ""] == 1
        assert exported(site)['redisdelay_queue_messages{state="ready"}', QUEUE] == 1
    with trouble.busy(server):
        assert exported(site) == {("redisdelay_up", ""): 0}
    [said] = (record.getMessage() for record in caplog.records if record.name.endswith(".exporter"))
    assert re.match("Cannot read the queues: a script keeps Redis busy.*SCRIPT KILL.*BUSY", said)


def test_a_page_and_the_health_of_a_forwarder_while_a_script_keeps_the_server_busy(
    server: RedisServer,
) -> None:
    with Daemon(server, "forward", "--health-port", "0", ready="health check") as forward:
        [health] = re.findall(r"http://\S+", forward.log())
        with trouble.busy(server), WebPage(server) as page:
            # It may begin meanwhile.
            assert "Redis does not serve the page yet, as it says until then: " in page.log()
            assert get(page.url)[0] == 503
            wait_until(lambda: get(health)[0] == 503, 30, "that it is not well")
            told = get(health)[1]
            assert re.fullmatch(
                r"For \S+, Redis has refused to forward what is due: .*SCRIPT KILL.*BUSY.*\n", told
            )
        wait_until(lambda: get(health) == (200, "ok\n"), 30, "that it is well again")
        assert "Traceback" not in forward.log()


def test_what_runs_on_begins_when_the_server_serves_it(server: RedisServer) -> None:
    refused = "Redis refuses to be connected to: a script keeps Redis busy"

    def contains(daemon: Daemon, text: str) -> bool:
        return text in daemon.log()

    with ExitStack() as stack:
        with trouble.busy(server):
            forward, exporter = (
                stack.enter_context(Daemon(server, *words, ready=refused))
                for words in (("forward",), ("exporter", "--port", "0"))
            )
            told_to_end = stack.enter_context(Daemon(server, "exporter", "--port", "0", ready=refused))
            told_to_end.stop()
            assert "Traceback" not in told_to_end.log()
        for daemon, begins in ((forward, "Forwarding what is due"), (exporter, "Serving metrics")):
            wait_until(partial(contains, daemon, begins), 30, "that it begins")
            assert "Redis serves this process again" in daemon.log()
            daemon.stop()


def test_top_shows_why_there_are_no_new_numbers(site: Site, server: RedisServer) -> None:
    site.send()
    environment = {**os.environ, "PROJECT_BROKER": server.url(), "PYTHONPATH": str(ROOT)}
    command = [*CELERY, "-A", "tests.cli.project", "delayed", "top", "--interval", "0.1"]
    with PseudoTerminal(command, environment, columns=250) as terminal:
        wait_until(lambda: terminal.shows("CONSUMERS"), 30, "that it shows the queues")
        with trouble.busy(server):
            wait_until(lambda: terminal.shows("SCRIPT KILL"), 30, "that it says what is wrong")
            assert terminal.shows("Redis does not answer, these numbers are ")
        terminal.press("q")
        assert terminal.end() == 0
