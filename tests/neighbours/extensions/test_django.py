"""django-celery-beat has its schedule in the database, and django-celery-results the results."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from tests.docs.page import DOCS, blocks
from tests.neighbours.extensions.shop import Shop, printed
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

#: Of the page about Django.
PARTS = {"shop/celery.py", "shop/__init__.py"}


@pytest.fixture
def project(server: RedisServer, shop: Shop) -> Shop:
    """The files of the page in a new project. ``startproject`` must not find any."""
    of_the_page = {name: (shop.folder / "shop" / name).read_text() for name in ("tasks.py", "schedule.py")}
    settings = (shop.folder / "shop" / "settings.py").read_text()
    for file in (shop.folder / "shop").iterdir():
        file.unlink()
    (shop.folder / "shop").rmdir()
    shop.run(sys.executable, "-m", "django", "startproject", "shop", ".")
    with (shop.folder / "shop" / "settings.py").open("a") as end:
        end.write(settings)
    # The first of each name counts: there is another one with tenants.
    for block in reversed(list(blocks(DOCS / "frameworks.rst"))):
        if block.caption in PARTS:
            (shop.folder / block.caption).write_text(block.text)
    for name, text in of_the_page.items():
        (shop.folder / "shop" / name).write_text(text)
    manage(shop, "migrate", "-v", "0")
    return shop


def manage(shop: Shop, *words: str) -> str:
    return shop.run(sys.executable, "manage.py", *words)


def query(shop: Shop, text: str) -> list[Any]:
    with closing(sqlite3.connect(shop.folder / "db.sqlite3", timeout=10)) as database:
        return database.execute(text).fetchall()


def test_each_kind_of_schedule(project: Shop) -> None:
    worker = project.worker("shop", pool="prefork")
    manage(project, "shell", "-v", "0", "-c", "import shop.schedule")
    beat = project.beat("shop")
    kinds = {
        "each second",
        "each second, if there is a worker",
        "one second after the start",
        "each minute",
        "in five seconds",
    }

    def reminded() -> Counter[str]:
        return Counter(line.removeprefix("reminded ") for line in printed(worker, "reminded .*"))

    # The minute may have just begun.
    wait_until(lambda: set(reminded()) == kinds, 90, "each kind")
    assert reminded()["each second"] >= 3
    # Beat switches it off when it would be due again.
    pending = "SELECT name FROM django_celery_beat_periodictask WHERE one_off AND enabled AND interval_id"
    wait_until(lambda: query(project, pending) == [], 20, "that beat has done with it")
    assert [reminded()[name] for name in ("one second after the start", "in five seconds")] == [1, 1]
    # Not stopped: its handler of SIGTERM writes to SQLite, which may be locked by what it has interrupted.
    beat.kill()
    results = "SELECT result FROM django_celery_results_taskresult WHERE status = 'SUCCESS'"
    wait_until(lambda: len(query(project, results)) == sum(reminded().values()), 20, "all results")


def test_what_expired_while_no_worker_was_there_does_not_run(project: Shop) -> None:
    publish = "from shop.tasks import remind; [remind.apply_async([n], expires=0.1) for n in range(3)]"
    manage(project, "shell", "-v", "0", "-c", publish)
    manage(project, "shell", "-v", "0", "-c", "from shop.tasks import remind; remind.apply_async(['later'])")
    worker = project.worker("shop")
    wait_until(lambda: printed(worker, "reminded .*"), 20, "the one that did not expire")
    assert printed(worker, "reminded .*") == ["reminded later"]
    states = "SELECT status, count(*) FROM django_celery_results_taskresult GROUP BY status"
    wait_until(lambda: dict(query(project, states)) == {"REVOKED": 3, "SUCCESS": 1}, 20, "the states")
