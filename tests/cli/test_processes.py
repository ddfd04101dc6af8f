"""Real `celery -A project delayed ...` processes, and workers beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kombu_redisdelay.cli.forward import UNHEALTHY_AFTER
from tests.cli.site import QUEUE, Site
from tools.harness.celery_command import ROOT, run_celery
from tools.harness.celery_worker import CeleryWorker
from tools.harness.forked_process import ForkedProcess
from tools.harness.process import ChildProcess, Started, wait_until
from tools.harness.redis_server import RedisServer, free_port

PROJECT = "tests.cli.project"


def _environment(server: RedisServer, **others: str) -> dict[str, str]:
    return {**os.environ, "PROJECT_BROKER": server.url(), "PYTHONPATH": str(ROOT), **others}


def _command(*words: str) -> list[str]:
    return ["-A", PROJECT, "delayed", *words]


def _run(server: RedisServer, *words: str) -> subprocess.CompletedProcess[str]:
    return run_celery(_command(*words), _environment(server))


class Daemon(ChildProcess):
    """A command that runs until it is told to stop."""

    def __init__(self, server: RedisServer, *words: str, ready: str = "") -> None:
        super().__init__()
        self._words = words
        self._server = server
        self._ready = ready

    def command(self) -> Sequence[str]:
        return _command(*self._words)

    def launch(self, log: IO[bytes], environment: Mapping[str, str]) -> Started:
        return ForkedProcess(self.command(), log, environment, ROOT)

    def environment(self) -> Mapping[str, str]:
        return _environment(self._server)

    def is_ready(self) -> bool:
        if self._ready:
            return self._ready in self.log()
        with self._server.client() as client:
            return bool(client.info("clients")["blocked_clients"])


def test_the_apps_configuration_is_used(server: RedisServer, site: Site) -> None:
    task_id = site.send(countdown=3600)
    result = _run(server, "stats", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["scheduled"] == 1
    assert _run(server, "cancel", task_id).stdout == f"{task_id} cancelled\n"
    assert _run(server, "cancel", task_id).returncode == 1
    assert _run(server, "cancel").returncode == 2


def test_a_hint_has_what_the_command_was_given(server: RedisServer, site: Site) -> None:
    site.bury("{}", "because")
    assert f"See `celery -A {PROJECT} delayed list --state dead`" in _run(server, "doctor").stdout
    url = server.url().replace("://", "://:s3cret@", 1)
    words = ["-A", PROJECT, "-b", url, "delayed", "doctor", "--json"]
    masked = url.replace("s3cret", "**")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", ">s3cret")
        try:
            told = run_celery(words, _environment(server, PROJECT_BROKER=url))
        finally:
            client.execute_command("ACL", "SETUSER", "default", "nopass")
    assert "s3cret" not in told.stdout
    assert f"See `celery -A {PROJECT} -b '{masked}' delayed list --state dead`" in told.stdout


def test_a_broker_that_cannot_be_reached_is_one_line() -> None:
    environment = {**os.environ, "PROJECT_BROKER": "redisdelay://127.0.0.1:1/0", "PYTHONPATH": str(ROOT)}
    result = run_celery(_command("stats"), environment)
    assert result.returncode == 1
    assert re.fullmatch(r"Error: Redis: .*Connection refused\.\n", result.stderr)


@pytest.mark.parametrize(
    "words", [("doctor",), pytest.param(("stats", "--json"), marks=pytest.mark.thorough), ("list",)]
)
def test_nobody_reads_the_output(server: RedisServer, site: Site, words: Sequence[str]) -> None:
    """As with ``| head``: quiet, and the status that a shell shows for other tools."""
    site.send(countdown=3600)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as output, TemporaryFile() as errors:
        process = ForkedProcess(_command(*words), output, _environment(server), ROOT, errors=errors)
        assert process.wait(30) == 141
        errors.seek(0)
        assert errors.read() == b""


def test_a_queue_is_forwarded_while_no_worker_is_there(server: RedisServer, site: Site) -> None:
    with Daemon(server, "forward", "--json") as forward:

        def told() -> list[str]:
            # Before them, it says on standard error what it does.
            return forward.log().splitlines()[1:]

        for count in (1, 2):
            # Longer than a busy machine takes to publish: what is due by then is not forwarded.
            site.send(countdown=2)
            wait_until(lambda: site.redis.llen(QUEUE) == count, 30, "that the queue has grown")  # noqa: B023
            wait_until(lambda: len(told()) == count, 30, "that it is told")  # noqa: B023
        moved = [json.loads(line) for line in told()]
        assert [(row["queue"], row["messages"]) for row in moved] == [(QUEUE, 1), (QUEUE, 1)]
        os.kill(forward.pid, signal.SIGTERM)
        wait_until(lambda: not forward.running, 30, "that it stops")


def test_forwarders_beside_a_worker_lose_and_repeat_nothing(server: RedisServer, site: Site) -> None:
    worker = CeleryWorker(PROJECT, pool="solo", env=_environment(server), cwd=ROOT, preloaded=True)
    with Daemon(server, "forward"), Daemon(server, "forward"), worker:
        ids = [site.send(countdown=0.1 + 0.01 * number) for number in range(200)]

        def succeeded() -> list[str]:
            return re.findall(r"Task shop\.close_order\[(\S+)\] succeeded", worker.log())

        wait_until(lambda: len(succeeded()) >= len(ids), 30, "that all have run")
        assert sorted(succeeded()) == sorted(ids)
    assert site.redis.llen(QUEUE) == 0
    assert site.redis.zcard(site.store.keys(QUEUE).schedule) == 0


@pytest.mark.parametrize(
    ("words", "which"),
    [((), "all queues"), (("-Q", "emails", "-Q", "letters"), "queue emails, letters")],
    ids=["all", "some"],
)
def test_a_forwarder_says_what_it_does(
    server: RedisServer, site: Site, words: Sequence[str], which: str
) -> None:
    site.send(queue="emails", countdown=3600)
    site.send(queue="letters", countdown=3600)
    with Daemon(server, "forward", *words, ready="Forwarding") as forward:
        assert forward.log() == f"Forwarding what is due in {which} of {server.url()}\n"


def test_the_health_of_a_forwarder_is_that_of_its_rounds() -> None:
    with RedisServer() as server:
        words = ("forward", "--health-port", "0")
        with Daemon(server, *words, ready="health check") as forward:
            [url] = re.findall(r"http://\S+", forward.log())
            assert url.startswith("http://127.0.0.1:")
            assert _get(url) == (200, "ok\n")
            assert _get(url.replace("/healthz", "/"))[0] == 404
            server.stop()
            # As long as it may be only for a moment.
            assert _get(url)[0] == 200
            wait_until(lambda: _get(url)[0] == 503, UNHEALTHY_AFTER + 10, "that it is not well")
            _, text = _get(url)
            assert re.fullmatch(r"No round has succeeded for \d+s\. The log says why\.\n", text)
            server.restart()
            wait_until(lambda: _get(url) == (200, "ok\n"), 30, "that it is well again")
            os.kill(forward.pid, signal.SIGTERM)
            wait_until(lambda: not forward.running, 30, "that it stops")
            assert "Traceback" not in forward.log()


def test_a_forwarder_whose_port_is_taken_says_so(server: RedisServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = _run(server, "forward", "--health-port", port)
    assert result.returncode == 1
    assert result.stderr == f"Error: Cannot listen on 127.0.0.1:{port}: Address already in use.\n"


def test_the_exporter_serves(server: RedisServer, site: Site) -> None:
    site.send(countdown=3600)
    with Daemon(server, "exporter", "--port", "0", ready="Serving metrics") as exporter:
        [url] = re.findall(r"http://\S+", exporter.log())
        text = urlopen(url, timeout=10).read().decode()
        assert f'redisdelay_queue_messages{{queue="{QUEUE}",state="scheduled"}} 1.0\n' in text
        os.kill(exporter.pid, signal.SIGTERM)
        wait_until(lambda: not exporter.running, 30, "that it stops")


@pytest.mark.parametrize(("options", "open_to_others"), [((), False), (("--address", "0.0.0.0"), True)])
def test_the_exporter_is_open_to_others_if_told_so(
    server: RedisServer, options: Sequence[str], open_to_others: bool
) -> None:
    with Daemon(server, "exporter", "--port", "0", *options, ready="Serving metrics") as exporter:
        [port] = re.findall(r"http://.*:(\d+)/", exporter.log())
        assert _listens("127.0.0.1", port)
        # Another address of this machine.
        assert _listens("127.0.0.2", port) is open_to_others


def test_an_exporter_whose_port_is_taken_says_so(server: RedisServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = _run(server, "exporter", "--port", port)
    assert (result.returncode, result.stderr) == (
        1,
        f"Error: Cannot listen on 127.0.0.1:{port}: Address already in use.\n",
    )


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_serves_what_it_measures(server: RedisServer, site: Site, pool: str) -> None:
    port = str(free_port())
    environment = _environment(server, PROJECT_METRICS_PORT=port)
    with CeleryWorker(PROJECT, pool=pool, env=environment, cwd=ROOT, preloaded=True) as worker:
        site.send()
        site.send(countdown=0.2)
        wait_until(lambda: worker.log().count(" succeeded in ") == 2, 20, "that both have run")
        wait_until(lambda: _listens("127.0.0.1", port), 30, "that it serves")
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert f'redisdelay_messages_delivered_total{{queue="{QUEUE}"}} 2.0\n' in text
    assert f'redisdelay_lateness_seconds_count{{queue="{QUEUE}"}} 1.0\n' in text


def test_the_counters_of_a_worker_begin_at_0(server: RedisServer, site: Site) -> None:
    """Prometheus would not see that the first dead letter is one more."""
    port = str(free_port())
    environment = _environment(server, PROJECT_METRICS_PORT=port)
    with CeleryWorker(PROJECT, env=environment, cwd=ROOT, preloaded=True):
        wait_until(lambda: _listens("127.0.0.1", port), 30, "that it serves")
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    counted = re.findall(r"^(redisdelay_messages_\w+_total)\{queue=\"(.*)\"\} (.*)$", text, re.MULTILINE)
    assert sorted(counted) == [
        (f"redisdelay_messages_{what}_total", QUEUE, "0.0")
        for what in ("dead_lettered", "delivered", "lease_lost", "recovered")
    ]


def test_the_counters_of_the_exporter_begin_at_0(server: RedisServer, site: Site) -> None:
    """As those of a worker do: for every queue that it shows, from the first scrape on."""
    site.send(countdown=3600, queue="other")
    with Daemon(server, "exporter", "--port", "0", ready="Serving metrics") as exporter:
        [url] = re.findall(r"http://\S+", exporter.log())
        text = urlopen(url, timeout=10).read().decode()
    for queue in (QUEUE, "other"):
        assert f'redisdelay_queue_messages{{queue="{queue}",state="scheduled"}}' in text
        for what in ("published", "delivered", "failures", "dead_lettered", "throttled"):
            assert f'redisdelay_queue_{what}_total{{queue="{queue}"}} 0.0\n' in text


def _get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _listens(host: str, port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
