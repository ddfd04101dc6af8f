"""The commands on a real terminal, and without what makes it colourful."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kombu_redisdelay import __version__
from kombu_redisdelay.cli import delayed
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.site import QUEUE, Site
from tools.harness.celery_command import CELERY, ROOT, run_celery
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: Runs `celery` where these packages are not installed.
_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from celery.__main__ import main
sys.argv[0] = "celery"
main()
"""
OPTIONAL = ("rich", "prometheus_client", "starlette", "uvicorn", "jinja2")

#: What a terminal understands as a style.
_STYLE = re.compile(r"\x1b\[[0-9;]*m")

_LONG_QUEUE = "orders.of.customers.in.countries.with.long.names"
_LONG_TASK = "shop.tasks.of.many.modules.with.long.names.close_order"
_NOT_A_MESSAGE = "not a message: Expecting value: line 1 column 1 (char 0)"


def _environment(server: RedisServer) -> dict[str, str]:
    return {**os.environ, "PROJECT_BROKER": server.url(), "PYTHONPATH": str(ROOT)}


def _celery(*words: str, without: tuple[str, ...] = ()) -> list[str]:
    start = (sys.executable, "-c", _WITHOUT.format(packages=without)) if without else CELERY
    return [*start, *words]


def _delayed(*words: str, without: tuple[str, ...] = ()) -> list[str]:
    return _celery("-A", "tests.cli.project", "delayed", *words, without=without)


def _run(
    command: list[str], environment: Mapping[str, str], cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    if tuple(command[:3]) == CELERY:
        return run_celery(command[3:], environment, cwd)
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


def _payload(id: str, task: str) -> str:
    headers = {"id": id, "task": task, "argsrepr": "(4711,)", "kwargsrepr": "{}"}
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": id}})


@pytest.fixture
def full(site: Site) -> Site:
    """Messages with long names in every state."""
    for id in ("a" * 36, "b" * 40, "c" * 100):
        for queue, task in ((QUEUE, "shop.close_order"), (_LONG_QUEUE, _LONG_TASK)):
            site.send(task, queue=queue, task_id=f"s{id[1:]}", countdown=3600)
            site.send(task, queue=queue, task_id=f"r{id[1:]}")
            site.bury(_payload(f"d{id[1:]}", task), "delivery limit of 9 reached", queue=queue)
            consumer = "3f2a1c58-5a0c-4c2e-9d1b-6f0e8a7b1c2d:4026531836:4321:99:consumer"
            site.add_consumer(consumer, 60_000, queue=queue)
            key = site.store.keys(queue).unacked(consumer)
            site.redis.hset(key, f"tag of {id}", f"0:{_payload(f'h{id[1:]}', task)}")
    site.bury("garbage", _NOT_A_MESSAGE)
    return site


@pytest.mark.parametrize(
    "words",
    [
        "list",
        "list --state unacked",
        *(
            pytest.param(f"list --state {state}", marks=pytest.mark.thorough)
            for state in ("scheduled", "ready")
        ),
    ],
)
def test_80_columns_have_room_for_what_matters(full: Site, server: RedisServer, words: str) -> None:
    with PseudoTerminal(_delayed(*words.split()), _environment(server)) as terminal:
        assert terminal.end() == 0
    text = "\n".join(terminal.lines)
    assert max(map(len, terminal.lines)) <= 80
    for tail in ("a" * 35, "b" * 39, "c" * 40):
        assert re.search(rf"\b[srhd]{tail}\b|\b[srhd]{tail}c*…", text), tail
    assert len(re.findall(r" celery +.*shop\.close_(?:order\(4711\)|ord…|order…|order\()", text)) >= 3, text
    assert len(re.findall(r" orders\.o\S*… .*shop\.tasks\S*…", text)) >= 3, text


def test_80_columns_have_room_for_why_a_message_died(full: Site, server: RedisServer) -> None:
    words = ("list", "--state", "dead")
    with PseudoTerminal(_delayed(*words), _environment(server)) as terminal:
        assert terminal.end() == 0
    text = "\n".join(terminal.lines)
    assert max(map(len, terminal.lines)) <= 80
    [sha1] = re.findall(r"\b[0-9a-f]{40}\b", text.replace("d" + "b" * 39, ""))
    after = terminal.lines[next(n for n, line in enumerate(terminal.lines) if sha1 in line) + 1]
    assert re.match(r" +not a message: Expecting v", after)
    assert len(re.findall(r" delivery limit of 9 reached +shop.close_order\(4711\)", text)) == 3
    assert len(re.findall(r" delivery limit of 9 reached +shop.tasks.of.many", text)) == 3
    assert text.count(" celery ") + text.count(" celery\n") == 4


def test_a_narrow_terminal_has_room_for_all_stats(site: Site, server: RedisServer) -> None:
    site.send(countdown=3600)
    with PseudoTerminal(_delayed("stats"), _environment(server), columns=50) as terminal:
        assert terminal.end() == 0
    assert max(map(len, terminal.lines)) <= 50
    text = "\n".join(terminal.lines)
    assert "…" not in text
    for header in ("QUEUE", "OVERDUE", "DEAD", "CONSUMERS", "NEXT DUE"):
        assert header in text


def test_colours(site: Site, server: RedisServer) -> None:
    site.send()
    environment = _environment(server)
    with PseudoTerminal(_delayed("stats"), environment) as terminal:
        assert terminal.end() == 0
    assert "\x1b[33m" in terminal.written
    no_color = _celery("--no-color", "-A", "tests.cli.project", "delayed", "stats")
    for command, more in ((no_color, {}), (_delayed("stats"), {"NO_COLOR": "1"})):
        with PseudoTerminal(command, environment | more) as terminal:
            assert terminal.end() == 0
        assert set(_STYLE.findall(terminal.written)) <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}
        assert "READY" in terminal.written


class TestWithoutRich:
    def test_the_help_describes_every_command(self, server: RedisServer) -> None:
        environment = _environment(server)
        with_all = _run(_delayed("--help"), environment).stdout.partition("Commands:")[2]
        without = _run(_delayed("--help", without=OPTIONAL), environment).stdout.partition("Commands:")[2]
        assert without == with_all
        assert "Serve what `stats` shows" in without
        assert "Needs" not in without

    @pytest.mark.parametrize(("name", "missing", "extra"), [
        ("top", "rich", "cli"), ("exporter", "prometheus_client", "metrics"), ("web", "uvicorn", "web"),
    ])  # fmt: skip
    def test_what_a_command_needs_is_said_when_it_is_called(
        self, server: RedisServer, name: str, missing: str, extra: str
    ) -> None:
        environment = _environment(server)
        result = _run(_delayed(name, without=OPTIONAL), environment)
        assert (result.returncode, result.stdout, result.stderr) == (
            1,
            "",
            f"Error: Needs {missing}: pip install 'kombu-redisdelay[{extra}]'\n",
        )
        assert _run(_delayed(name, "--help", without=OPTIONAL), environment).returncode == 0

    @pytest.mark.parametrize(
        "words",
        [
            *("stats", "list --state dead", "timeline --by task"),
            *(
                pytest.param(words, marks=pytest.mark.thorough)
                for words in ("list", "list --state unacked", "timeline", f"show s{'a' * 35}")
            ),
        ],
    )
    def test_a_terminal_shows_what_a_pipe_gets(self, full: Site, server: RedisServer, words: str) -> None:
        environment = _environment(server)
        with PseudoTerminal(_delayed(*words.split(), without=OPTIONAL), environment) as terminal:
            assert terminal.end() == 0
        piped = _run(_delayed(*words.split()), environment)
        assert piped.stderr == ""
        # The time goes on between both.
        time = re.compile(r"\d+(?:\.\d)?(?:ms|[dhms])(?:\d+[hms])?|\s+")
        assert time.sub(" ", "\n".join(terminal.lines)) == time.sub(" ", piped.stdout.rstrip("\n"))
        assert "\x1b" not in terminal.written

    def test_what_takes_long_shows_nothing_meanwhile(self, full: Site, server: RedisServer) -> None:
        command = _delayed("requeue", "--all", "--yes", "--state", "dead", without=OPTIONAL)
        with PseudoTerminal(command, _environment(server)) as terminal:
            assert terminal.end() == 0
        assert terminal.lines == ["Requeued 7 dead letters."]


class TestTop:
    @pytest.fixture
    def top(self, server: RedisServer) -> Iterator[PseudoTerminal]:
        with PseudoTerminal(_delayed("top", "--interval", "60"), _environment(server)) as terminal:
            wait_until(lambda: terminal.shows("Press q to end."), 20, "that it shows something")
            yield terminal

    def test_a_key_ends_it(self, top: PseudoTerminal) -> None:
        assert top.shows("Press q to end.")
        assert not top.is_as_before
        top.press("x")
        top.press("q")
        assert top.end() == 0
        self._assert_restored(top)

    def test_ctrl_c_ends_it(self, top: PseudoTerminal) -> None:
        top.press("\x03")
        assert top.end() == 0
        self._assert_restored(top)

    def test_it_can_be_told_to_stop(self, top: PseudoTerminal) -> None:
        top.send_signal(signal.SIGTERM)
        assert top.end() == 128 + signal.SIGTERM
        self._assert_restored(top)

    def test_it_stays_while_redis_does_not_answer(self, site: Site, server: RedisServer) -> None:
        with PseudoTerminal(_delayed("top", "--interval", "0.1"), _environment(server)) as terminal:
            wait_until(lambda: terminal.shows("Press q to end."), 20, "that it shows something")
            os.kill(server.pid, signal.SIGSTOP)
            try:
                wait_until(lambda: terminal.shows("Redis does not answer"), 30, "that it says so")
            finally:
                os.kill(server.pid, signal.SIGCONT)
            site.send(queue="afterwards", countdown=3600)
            wait_until(lambda: terminal.shows("afterwards"), 20, "that it goes on")
            terminal.press("q")
            assert terminal.end() == 0
            self._assert_restored(terminal)

    def test_a_queue_that_cannot_be_read_is_named_beside_the_others(
        self, site: Site, server: RedisServer
    ) -> None:
        site.send(queue="broken", countdown=3600)
        site.send(queue="whole", countdown=3600)
        site.redis.delete(site.store.keys("broken").schedule)
        site.redis.set(site.store.keys("broken").schedule, "")
        with PseudoTerminal(_delayed("top", "--interval", "60"), _environment(server)) as terminal:
            wait_until(lambda: terminal.shows("Cannot read queue 'broken': "), 20, "that it says so")
            assert terminal.shows("whole")
            terminal.press("q")
            assert terminal.end() == 0
            self._assert_restored(terminal)

    def test_an_error_ends_it(self, site: Site, server: RedisServer) -> None:
        with PseudoTerminal(_delayed("top", "--interval", "0.1"), _environment(server)) as terminal:
            wait_until(lambda: terminal.shows("Press q to end."), 20, "that it shows something")
            site.redis.set(site.store.keys(QUEUE).schedule, "")
            assert terminal.end() == 1
            self._assert_restored(terminal)
        assert "holds a string" in terminal.written.partition("\x1b[?1049l")[2]

    def _assert_restored(self, terminal: PseudoTerminal) -> None:
        assert terminal.is_as_before
        assert terminal.written.count("\x1b[?1049h") == terminal.written.count("\x1b[?1049l") == 1
        assert terminal.written.rindex("\x1b[?25h") > terminal.written.rindex("\x1b[?25l")


def test_the_version(server: RedisServer) -> None:
    result = _run(_delayed("--version"), _environment(server))
    assert (result.returncode, result.stdout) == (0, f"kombu-redisdelay {__version__}\n")


def test_without_an_app_that_is_what_is_missing(server: RedisServer, tmp_path: Path) -> None:
    environment = _environment(server)
    result = _run(_celery("delayed", "stats"), environment, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "Error: No app was given. Use `celery -A proj delayed ...`, or -b with a URL.\n"
    assert _run(_celery("delayed", "stats", "--help"), environment, cwd=tmp_path).returncode == 0
    given = _run(_celery("-b", server.url(), "delayed", "stats"), environment, cwd=tmp_path)
    assert (given.returncode, given.stderr) == (0, "")
    other = _run(_celery("-b", "redis://localhost", "delayed", "stats"), environment, cwd=tmp_path)
    assert other.stderr == (
        "Error: Not a redisdelay:// broker: redis://. "
        "Have the app's broker_url begin with redisdelay://, give such a URL with -b (celery -A proj -b URL "
        "delayed ...), or set KOMBU_REDISDELAY=redis where this runs: see 'Broker URLs' in the "
        "documentation.\n"
    )


@pytest.mark.parametrize("name", delayed.list_commands(delayed.make_context("delayed", ["stats"])))
def test_the_help_consists_of_sentences(site: Site, name: str) -> None:
    """Of the command, and of each option."""
    command = delayed.get_command(delayed.make_context("delayed", ["stats"]), name)
    assert command is not None
    assert re.match(r"[A-Z]", command.help or "")
    assert (command.help or "").rstrip().endswith(".")
    for option in command.params:
        said = getattr(option, "help", None)
        if said is not None:
            assert re.fullmatch(r"(?s)(?:[A-Z]|--|`).*\.", said), said
