"""The Django shop, with a real web server, a real worker and a real database."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from tests.examples.site import EXAMPLES, Program, environment
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer, free_port

SHOP = EXAMPLES / "django_shop"


class Receipts(BaseHTTPRequestHandler):
    """The service for receipts. It notes what it is asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Not on standard error."""


@pytest.fixture
def variables(server: RedisServer, tmp_path: Path) -> dict[str, str]:
    found = environment(
        SHOP,
        BROKER_URL=server.url(),
        DJANGO_SETTINGS_MODULE="shop.settings",
        SHOP_DATABASE=str(tmp_path / "shop.sqlite3"),
        SHOP_TIME_TO_PAY="3",
        SHOP_RECEIPTS_URL=f"http://{HOST}:{free_port()}/",
    )
    _manage(found, "migrate", "-v", "0")
    return found


def test_an_order_that_is_not_paid_in_time_is_closed(server: RedisServer, variables: dict[str, str]) -> None:
    worker = CeleryWorker("shop", pool="solo", env=variables, cwd=SHOP)
    web = Program("django", "runserver", "--noreload", "PORT", directory=SHOP, environment=variables)
    with worker, web, Messages(server.url()) as delayed:
        paid, unpaid = (web.post("/orders")["number"] for _ in range(2))
        assert delayed.get(f"close-order-{unpaid}") is not None
        assert web.post(f"/orders/{paid}/payment") == {"is_paid": True}
        assert delayed.get(f"close-order-{paid}") is None
        assert web.get(f"/orders/{unpaid}") == {"is_paid": False, "is_closed": False}
        # As if its task had been taken just before it was cancelled.
        with Celery(broker=server.url(), set_as_current=False) as producer:
            producer.send_task("orders.tasks.close_order", [paid])
        wait_until(lambda: web.get(f"/orders/{unpaid}")["is_closed"], 20, "that the order is closed")
        assert web.get(f"/orders/{paid}") == {"is_paid": True, "is_closed": False}
        assert web.post(f"/orders/{unpaid}/payment") == {"is_paid": False}
        assert delayed.count(Selection(state="scheduled")) == 0


def test_receipts_that_failed_are_requeued(server: RedisServer, variables: dict[str, str]) -> None:
    worker = CeleryWorker("shop", pool="solo", env=variables, cwd=SHOP)
    web = Program("django", "runserver", "--noreload", "PORT", directory=SHOP, environment=variables)
    failed = Selection(state="failed", error="URLError")
    with worker, web, Messages(server.url()) as delayed:
        for _ in range(2):
            web.post(f"/orders/{web.post('/orders')['number']}/payment")
        wait_until(lambda: delayed.count(failed) == 2, 30, "that both receipts have failed")
        [kind] = delayed.failures()
        assert (kind.count, kind.task, kind.error) == (2, "orders.tasks.send_receipt", "URLError")
        receipts = ThreadingHTTPServer(
            (HOST, int(variables["SHOP_RECEIPTS_URL"].rstrip("/").rpartition(":")[2])), Receipts
        )
        Thread(target=receipts.serve_forever, daemon=True).start()
        try:
            done = delayed.requeue(failed, rate="10/s")
            assert (done.count, done.stopped) == (2, "")
            wait_until(lambda: sorted(Receipts.asked) == ["/?order=1", "/?order=2"], 30, "the receipts")
        finally:
            receipts.shutdown()
            receipts.server_close()
        assert delayed.count(failed) == 0


def test_its_tests(server: RedisServer, variables: dict[str, str]) -> None:
    _manage(variables, "test")
    with Messages(server.url()) as delayed:
        assert delayed.count(Selection(state="scheduled")) == 0


@pytest.mark.thorough
def test_its_migrations_are_complete(variables: dict[str, str]) -> None:
    _manage(variables, "makemigrations", "--check", "--dry-run")


@pytest.mark.thorough
def test_django_has_no_complaint(variables: dict[str, str]) -> None:
    _manage(variables, "check", "--fail-level", "WARNING")


def _manage(variables: dict[str, str], *words: str) -> None:
    command = [sys.executable, "manage.py", *words]
    done = subprocess.run(command, cwd=SHOP, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
