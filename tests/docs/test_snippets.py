"""The pieces of Python on the pages that are no files: each runs, beside an app that has what it names."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state, group
from kombu.connection import Connection

from kombu_redisdelay import Unique, batch
from tests.docs.page import PAGES, Block, blocks
from tools.harness.redis_server import HOST, RedisServer

# Not installed where types are checked.
fastapi: Any = import_module("fastapi")
flask: Any = import_module("flask")

SNIPPETS = [
    block for page in PAGES for block in blocks(page) if block.language == "python" and not block.caption
]


class Bar:
    """As that of tqdm."""

    def __init__(self, total: int) -> None:
        self.n, self.total = 0, total

    def update(self, by: int) -> None:
        self.n += by


@pytest.fixture
def application(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    # What a snippet decorates is a task of every later app of this process otherwise.
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    url = server.url()
    monkeypatch.setenv("REDIS_URL", url)
    app = Celery("shop", broker=url, set_as_current=False)

    @app.task(name="shop.remind")
    def remind(*args: object) -> None:
        pass

    @app.task(name="shop.sync", base=Unique, unique="account:{account}")
    def sync(account: int) -> None:
        pass

    def on_commit(what: Callable[[], None]) -> None:
        what()

    for queue in ("celery", "emails"):
        app.send_task("shop.close_order", [42], queue=queue, task_id="close-order-42")
        app.send_task("shop.close_order", [42], queue=queue, task_id="close-order-42", countdown=60)
    shop = ModuleType("shop")
    shop.remind = remind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", shop)
    with Connection(url) as connection, connection.SimpleQueue("held") as queue:
        queue.put("one")
        yield {
            "Celery": Celery,
            "Unique": Unique,
            "app": app,
            "batch": batch,
            "group": group,
            "ids": [1, 2, 3],
            "log": logging.getLogger(__name__),
            "message": queue.get(timeout=10),
            "orders": [SimpleNamespace(id=1), SimpleNamespace(id=2)],
            "payment_exists": lambda order: True,
            "remind": remind,
            "sync": sync,
            "thumbnail": remind,
            "tqdm": Bar,
            "transaction": SimpleNamespace(on_commit=on_commit),
            # Of the page on the web.
            "fastapi_app": fastapi.FastAPI(),
            "flask_app": flask.Flask("shop"),
            "get_asgi_application": fastapi.FastAPI,
            "page": fastapi.FastAPI(),
        }
    app.close()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=str)
def test_it_runs(snippet: Block, application: dict[str, Any], server: RedisServer) -> None:
    exec(snippet.text.replace("localhost:6379", f"{HOST}:{server.port}"), application)
