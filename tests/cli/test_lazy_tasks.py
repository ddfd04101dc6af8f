"""Commands that ask for the tasks of an app whose modules only a worker imports: ``autodiscover_tasks()``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_redisdelay.operations import limits
from tests.cli.site import QUEUE, Site
from tests.cli.test_adopt import take
from tools.harness.redis_server import RedisServer

#: What the modules of the tests refer to.
APPS: list[Any] = []

MODULE = "orders_of_a_test.tasks"


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    return good_server


@pytest.fixture
def discover(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that gives the app a module of tasks with this text."""

    def write(text: str) -> None:
        package = tmp_path / MODULE.partition(".")[0]
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "tasks.py").write_text(f"from {__name__} import APPS, work\napp = APPS[-1]\n{text}\n")
        monkeypatch.syspath_prepend(tmp_path)
        APPS.append(site.app)
        site.app.autodiscover_tasks([package.name])

    yield write
    APPS.clear()
    for name in [name for name in sys.modules if MODULE.startswith(name)]:
        del sys.modules[name]


def work() -> None:
    """What the tasks do."""


def test_late_acks_of_a_task_that_is_discovered(site: Site, discover: Callable[[str], None]) -> None:
    discover("print('orders')\napp.task(name='orders.row', acks_late=True)(work)")
    site.app.conf.task_routes = {"orders.row": "rows"}
    site.app.task(name="early")(work)
    limits.limit(site.store, "rows", concurrency=1)
    assert "queue rows" not in site.findings("warning")
    assert "acked" not in site.run("limit", "-Q", "rows", "--concurrency", "2").stderr
    # Of the task itself.
    assert "acked" in site.run("limit", "-Q", QUEUE, "--concurrency", "2").stderr


def test_the_queue_of_a_task_that_says_it_itself(site: Site, discover: Callable[[str], None]) -> None:
    discover("app.task(name='orders.row', queue='rows', acks_late=True)(work)")
    site.app.task(name="early", queue="other")(work)
    limits.limit(site.store, "rows", concurrency=1)
    limits.limit(site.store, "other", concurrency=1)
    site.send(queue="rows")
    found = site.findings("warning")
    assert "acked" not in found["queue rows"]
    assert found["queue other"].endswith("these tasks are acked before they run: early")
    [advice] = [row["advice"] for row in site.rows("doctor") if row["check"] == "queue rows"]
    assert "misspelt" not in advice


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "import no_such_module_of_a_test",
            "ModuleNotFoundError: No module named 'no_such_module_of_a_test'",
        ),
        ("raise SystemExit('no\\nsettings')", "SystemExit: no settings"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    site: Site, discover: Callable[[str], None], text: str, why: str
) -> None:
    discover(text)
    site.app.task(name="early")(work)
    limits.limit(site.store, QUEUE, concurrency=1)
    said = f"module '{MODULE}' cannot be imported: {why}"
    for _ in range(2):
        assert site.findings("warning") == {"tasks": said}
    limited = site.run("limit", "-Q", QUEUE, "--concurrency", "2")
    assert limited.stderr == f"Whether tasks are acked before they run is not known: {said}.\n"
    assert limited.exit_code == 0


def test_a_module_that_is_not_there_is_named(site: Site) -> None:
    site.app.conf.imports = ["no_such_module_of_a_test"]
    assert "module 'no_such_module_of_a_test' cannot be imported" in site.findings("warning")["tasks"]


def test_a_fanout_that_is_discovered_is_not_adopted(site: Site, discover: Callable[[str], None]) -> None:
    APPS.append(site.app)
    site.app.conf.task_queues = []
    discover(
        "from kombu.common import Broadcast\n"
        "app.conf.task_queues = [Broadcast('news')]\n"
        "app.amqp.queues.add(app.conf.task_queues[0])"
    )
    site.redis.sadd("_kombu.binding.news", f"{QUEUE}\x06\x16\x06\x16bcast.1")
    take(site, "copy", exchange="news")
    result = site.run("adopt", "--yes")
    assert (result.exit_code, site.redis.hlen("unacked"), site.redis.llen("bcast.1")) == (1, 1, 0)
    assert "exchange 'news' is a fanout" in result.stderr


def test_an_exchange_that_may_be_a_fanout_is_not_adopted(site: Site, discover: Callable[[str], None]) -> None:
    discover("import no_such_module_of_a_test")
    site.redis.sadd("_kombu.binding.news", f"{QUEUE}\x06\x16\x06\x16bcast.1")
    site.redis.sadd(f"_kombu.binding.{QUEUE}", f"{QUEUE}\x06\x16\x06\x16{QUEUE}")
    take(site, "copy", exchange="news")
    take(site, "known", exchange=QUEUE)
    take(site, "unnamed")
    result = site.run("adopt", "--yes")
    assert result.stdout.startswith("Adopted 2 messages: ")
    assert f"exchange 'news' may be a fanout: module '{MODULE}' cannot be imported" in result.stderr
    assert site.redis.hkeys("unacked") == ["copy"]


@pytest.mark.parametrize(
    "words", [["list"], ["stats"], ["keys", "-Q", QUEUE], ["limit", "-Q", QUEUE, "--rate", "1"]]
)
def test_others_import_nothing(site: Site, discover: Callable[[str], None], words: list[str]) -> None:
    discover("")
    site.run(*words)
    assert MODULE not in sys.modules
