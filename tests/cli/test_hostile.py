"""Text from Redis that would steer a terminal, or deceive its reader, is shown as what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import Result
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from kombu_redisdelay import cli
from kombu_redisdelay.cli.top import View
from kombu_redisdelay.operations.exporter import QueueCollector
from kombu_redisdelay.operations.history import queue_history
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.timeline import timeline
from kombu_redisdelay.words import printable
from tests.cli.site import Site
from tests.cli.test_processes import Daemon
from tests.cli.test_top import SIZE, lines
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: A title for the terminal, a screen that is cleared, an OSC and a CSI of C1, a line and a page that end,
#: letters that go from right to left, a character that is not seen, one of private use, a byte order mark,
#: a tag, a character that Unicode has not assigned, and other ends of lines.
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x9d0;owned\x9c\x9b2J\r\n\x0c\x08\x00\x7f\x1e\x85"
    "\u202egnp.exe\u202c\u2066\u2069\u200b\ue000\ufeff\U000e0041\u0378\u2028\u2029"
)

#: In JSON only: UTF-8 cannot say it, so a key cannot.
SURROGATE = "\ud800"

#: What rich writes to a terminal: styles, and for a progress bar where the cursor is.
_BY_RICH = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)|\r(?=\x1b\[)")

QUEUE = f"queue{HOSTILE}"
ID = f"id{HOSTILE}"
TASK = f"task{HOSTILE}{SURROGATE}"
READY_ID = f"ready{HOSTILE}"
HELD_ID = f"unacked{HOSTILE}"
DEAD_ID = f"dead{HOSTILE}"
HOST = f"host{HOSTILE}"
CONSUMER = f"{HOST}:4026531836:4321:99:consumer{HOSTILE}"
REASON = f"reason{HOSTILE}".replace("\n", " ")

#: Commands that show what is in Redis, with what each must have shown of it.
SHOWING: dict[tuple[str, ...], tuple[str, ...]] = {
    ("stats",): (QUEUE,),
    ("stats", "-Q", QUEUE): (QUEUE,),
    ("list",): (ID, READY_ID, HELD_ID, DEAD_ID, QUEUE, TASK, f"args{HOSTILE}", f"kwargs{HOSTILE}"),
    ("show", ID): (ID, QUEUE, TASK, f"args{HOSTILE}", f"header name{HOSTILE}", f"value{HOSTILE}"),
    ("list", "--state", "ready"): (READY_ID, QUEUE, TASK, f"args{HOSTILE}"),
    ("list", "--state", "unacked"): (HELD_ID, HOST, QUEUE, TASK, f"args{HOSTILE}"),
    ("list", "--state", "dead"): (DEAD_ID, REASON, QUEUE, TASK, f"args{HOSTILE}"),
    ("list", "--state", "scheduled"): (ID, QUEUE, TASK, f"args{HOSTILE}", f"kwargs{HOSTILE}"),
    ("show", READY_ID): (READY_ID, QUEUE, TASK, f"header name{HOSTILE}", f"value{HOSTILE}"),
    ("show", HELD_ID): (HELD_ID, HOST, QUEUE, TASK),
    ("show", DEAD_ID): (DEAD_ID, REASON, QUEUE, TASK),
    ("timeline", "--by", "task"): (TASK,),
    ("history",): (QUEUE,),
    ("doctor",): (QUEUE,),
}

#: A command that shows what is in Redis, and ends with status 1 because of it.
ADOPTING = (("adopt", "--yes"), ("adopt", "--dry-run"), ("adopt", "--yes", "--json"))

#: Commands that speak of what they are given, which was copied from somewhere.
STEERING: tuple[tuple[str, ...], ...] = (
    ("show", f"no{HOSTILE}"),
    ("stats", "-Q", f"no{HOSTILE}"),
    ("mend",),
    ("pause", "-Q", QUEUE),
    ("limit", "-Q", QUEUE, "--rate", "1/s"),
    ("limit", "-Q", QUEUE, "--rate", f"no{HOSTILE}"),
    ("stats", "-Q", QUEUE),
    ("resume", "-Q", QUEUE),
    ("keys", "-Q", QUEUE),
    ("fair", "-Q", QUEUE),
    ("pause", "-Q", QUEUE, "--key", f"no{HOSTILE}"),
    ("list", "--before", f"no{HOSTILE}"),
    ("count", "--by", "task", "--by", "reason"),
    ("count", "--by", f"no{HOSTILE}"),
    ("revoke", HELD_ID, f"no{HOSTILE}"),
    ("list", "--related", f"no{HOSTILE}"),
    ("list", "--state", f"no{HOSTILE}"),
    ("list", "--task", f"no{HOSTILE}"),
    ("timeline", "--by", f"no{HOSTILE}"),
    ("memory",),
    ("memory", "-Q", f"no{HOSTILE}"),
    ("reschedule", ID, "--eta", f"no{HOSTILE}"),
    ("reschedule", ID, "--countdown", "3600"),
    ("remove", "-Q", QUEUE, "--state", "dead", "--task", TASK.replace(SURROGATE, "")),
    ("cancel", "-Q", QUEUE, "--task", TASK.replace(SURROGATE, "")),
    ("cancel", ID, READY_ID, HELD_ID, f"no{HOSTILE}"),
    ("deliver-now", f"no{HOSTILE}"),
    ("requeue", DEAD_ID, f"no{HOSTILE}"),
)


def _message(id: str) -> str:
    headers = {
        "id": id,
        "task": TASK,
        "argsrepr": f"(args{HOSTILE}{SURROGATE})",
        "kwargsrepr": f"{{kwargs{HOSTILE}{SURROGATE}}}",
        f"name{HOSTILE}{SURROGATE}": f"value{HOSTILE}{SURROGATE}",
    }
    return json.dumps({"body": "", "headers": headers, "properties": {"delivery_tag": id}})


@pytest.fixture
def hostile(site: Site) -> Site:
    """A hostile text in whatever a publisher, or who else may write to Redis, can choose."""
    keys = site.store.keys(QUEUE)
    site.store.remember(QUEUE)
    site.redis.hset(keys.history, "minutes", f"{site.now_ms() // 1000 - 60} 60 1 1 0 0 0 0 0 0\n")
    site.redis.lpush(QUEUE, _message(READY_ID))
    site.redis.zadd(keys.schedule, {ID: site.now_ms() + 3_600_000})
    site.redis.hset(keys.messages, ID, f"0:{_message(ID)}")
    site.bury(_message(DEAD_ID), REASON, queue=QUEUE)
    site.add_consumer(CONSUMER, -1000, queue=QUEUE)
    site.redis.hset(keys.unacked(CONSUMER), "0", f"0:{_message(HELD_ID)}")
    return site


def _assert_printable(text: str) -> None:
    raw = {character for character in text.replace("\n", "") if not character.isprintable()}
    assert not raw, (raw, text)


def _assert_ran(result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception


def _id(words: tuple[str, ...]) -> str:
    return " ".join(word.partition("\x1b")[0] for word in words)


@pytest.mark.parametrize("words", SHOWING, ids=_id)
def test_as_text(hostile: Site, words: tuple[str, ...]) -> None:
    result = hostile.run(*words)
    _assert_ran(result)
    _assert_printable(result.output)
    for text in SHOWING[words]:
        assert printable(text) in result.stdout


@pytest.mark.parametrize("words", SHOWING, ids=_id)
def test_on_a_terminal(hostile: Site, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "5000")
    result = hostile.run(*words)
    _assert_ran(result)
    assert _BY_RICH.search(result.stdout)
    _assert_printable(_BY_RICH.sub("", result.output))
    for text in SHOWING[words]:
        assert printable(text) in _BY_RICH.sub("", result.stdout)


@pytest.mark.parametrize("words", SHOWING, ids=_id)
def test_as_json(hostile: Site, words: tuple[str, ...]) -> None:
    result = hostile.run(*words, "--json")
    _assert_ran(result)
    _assert_printable(result.output)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    values = " ".join(_strings(rows))
    for text in SHOWING[words]:
        assert text.removeprefix("header ") in values


def _strings(value: Any) -> Iterator[str]:
    """All texts in what was read from JSON, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from (name, *_strings(member))
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("words", STEERING, ids=_id)
def test_what_commands_are_given(
    hostile: Site, words: tuple[str, ...], force: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if force:
        monkeypatch.setenv("FORCE_COLOR", "1")
    result = hostile.run(*words, input="y\n")
    _assert_ran(result)
    assert result.output
    _assert_printable(_BY_RICH.sub("", result.output))


@pytest.mark.parametrize("words", ADOPTING, ids=_id)
def test_what_stock_workers_have_left(hostile: Site, words: tuple[str, ...]) -> None:
    hostile.redis.hset("unacked", f"no message{HOSTILE}", f"[{HOSTILE}")
    hostile.redis.hset("unacked", "not bound", json.dumps([json.loads(_message(ID)), HOSTILE, SURROGATE]))
    result = hostile.run(*words)
    _assert_ran(result)
    assert result.exit_code == 1
    assert "no message\\x1b" in result.output or "no message\\u001b" in result.output
    _assert_printable(result.output)


def test_top(hostile: Site) -> None:
    view = View(f"redisdelay://{HOSTILE}")
    [stats], [history] = queue_stats(hostile.store, [QUEUE]), queue_history(hostile.store, [QUEUE])
    shown = lines(view.render([(stats, history)], timeline(hostile.store, [QUEUE]), 0.0, *SIZE))
    assert any(line.startswith("queue\\x1b") for line in shown)
    _assert_printable("\n".join(shown))


def test_an_error_of_redis(hostile: Site) -> None:
    hostile.redis.set(hostile.store.keys(f"other{HOSTILE}").schedule, "")
    result = hostile.run("stats", "-Q", f"other{HOSTILE}")
    assert result.exit_code == 1
    assert "holds a string" in result.stderr
    _assert_printable(result.output)


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_what_a_forwarder_says(hostile: Site, server: RedisServer, options: tuple[str, ...]) -> None:
    broken = f"broken{HOSTILE}"
    hostile.store.remember(broken)
    hostile.redis.set(hostile.store.keys(broken).schedule, "")
    hostile.make_due(ID, -1000, queue=QUEUE)
    with Daemon(server, "forward", *options) as forward:
        wait_until(lambda: "Cannot forward" in forward.log(), 20, "that it tells of the error")
        wait_until(lambda: hostile.redis.llen(QUEUE) == 2, 20, "that it forwards")
        wait_until(lambda: "moved 1" in forward.log() or "lateness" in forward.log(), 20, "that it says so")
        assert "queue\\x1b" in forward.log() or "queue\\u001b" in forward.log()
        _assert_printable(forward.log())


def test_metrics(hostile: Site) -> None:
    registry = CollectorRegistry()
    registry.register(QueueCollector(hostile.store, lambda: [QUEUE]))
    text = generate_latest(registry).decode()
    assert "queue\\\\x1b" in text
    _assert_printable(text)


def test_every_command_was_called() -> None:
    """But for those that are called in tests of their own."""
    called = {words[0] for words in (*SHOWING, *STEERING, *ADOPTING)} | {"top", "forward", "exporter", "web"}
    assert called == set(cli.delayed.list_commands(Context(cli.delayed)))


@pytest.mark.parametrize("source", sorted(Path(cli.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_nothing_is_printed_in_another_way(source: Path) -> None:
    used = set(
        re.findall(r"\bclick\.(?:echo|secho|style|confirm|prompt)\(|\bprint\(|\bText[(.]", source.read_text())
    )
    allowed = {
        "echo.py": {"click.echo(", "click.confirm("},
        "output.py": {"print("},
        "terminal.py": {"Text."},
    }
    assert used <= allowed.get(source.name, set())
