"""The broker URL is all that a user writes."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from tests.end_to_end.installation import Installation
from tools.harness.celery_worker import CeleryWorker
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, RedisServer

PUBLISH = """
import sys
from celery import Celery

Celery(broker=sys.argv[1]).send_task("work", ["from afar"])
assert "kombu_redisdelay.transport.transports" in sys.modules
"""


def test_the_url_is_known_to_an_interpreter_that_imports_only_celery(
    site: Installation, server: RedisServer, tmp_path: Path
) -> None:
    # Elsewhere, so that only what is installed can be found.
    subprocess.run([sys.executable, "-c", PUBLISH, server.url()], check=True, timeout=30, cwd=tmp_path)
    assert site.ready() == 1
    site.worker()
    site.wait_ended(["from afar"])


def test_a_unix_socket(site: Installation, server: RedisServer) -> None:
    url = f"redisdelay+socket://{server.socket}"
    app = site.producer()
    app.conf.broker_url = url
    app.send_task("work", ["later"], countdown=1)
    app.send_task("work", ["now"])
    site.worker(url=url)
    site.wait_ended(["now", "later"])
    assert site.ledger.early() == []


def test_a_worker_that_uses_it_for_redis_urls(site: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a producer that does not: as it is while a fleet is deployed."""
    monkeypatch.setenv("KOMBU_REDISDELAY", "redis")
    worker = site.worker(scheme="redis", pool="prefork", preloaded=False)
    producer = site.producer("redis")
    producer.send_task("work", ["later"], countdown=3)
    wait_until(lambda: site.scheduled() == 1, 30, "schedule the countdown")
    producer.send_task("work", ["now"])
    site.wait_ended(["now", "later"])
    assert site.ledger.early() == []
    assert worker.log().count("Brokers with a redis:// URL use kombu-redisdelay") == 1


class RefusedWorker(CeleryWorker):
    """A worker that cannot log in."""

    def is_ready(self) -> bool:
        return "Cannot connect" in self.log()


def test_a_wrong_password_is_told_to_nobody(tmp_path: Path) -> None:
    wrong = "Wr0ng p/ss"
    with (
        RedisServer(requirepass="right") as server,
        Installation(server, tmp_path) as site,
    ):
        producer = site.producer()
        producer.send_task("work", ["with the right one"])
        url = f"redisdelay://:{quote(wrong, safe='')}@{HOST}:{server.port}/0"
        # kombu would try for 6 s.
        producer = site.producer(broker_transport_options={"max_retries": 1})
        producer.conf.broker_url = url

        with pytest.raises(OperationalError) as raised:
            producer.send_task("work", ["with a wrong one"], retry=False)
        refused = site.worker(url=url, kind=RefusedWorker, expected="Cannot connect")

        told = "".join(traceback.format_exception(raised.value)) + refused.log()
        assert "invalid username-password pair" in told
        assert wrong not in told
        assert quote(wrong, safe="") not in told
        assert site.ready() == 1
        right = site.worker()
        site.wait_ended(["with the right one"])
        assert ":right@" not in right.log()


@pytest.mark.parametrize("settings", [{}, {"broker_use_ssl": True}], ids=["scheme", "setting"])
def test_a_server_without_tls_is_told_so(
    server: RedisServer, tmp_path: Path, settings: dict[str, Any]
) -> None:
    settings["broker_transport_options"] = {"max_retries": 1, "socket_connect_timeout": 0.3}
    url = server.url("redisdelay" if "broker_use_ssl" in settings else "redisdelays")
    with Installation(server, tmp_path, **settings) as site:
        producer = site.producer()
        producer.conf.broker_url = url
        with pytest.raises(OperationalError, match="looks like a server without TLS"):
            producer.send_task("work", ["to nobody"], retry=False)
        refused = site.worker(url=url, kind=RefusedWorker, expected="Cannot connect")
        assert "looks like a server without TLS" in refused.log()
        assert site.ready() == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("visibility_timeout", "x"),
        ("visibility_timeout", 0),
        ("visibility_timeout", -1),
        ("visibility_timeout", float("nan")),
        ("visibility_timeout", True),
        ("visibility_timeout", None),
        ("delivery_limit", 0),
        ("delivery_limit", 1.5),
        ("delivery_limit", False),
        ("max_batch", True),
        ("max_batch", 0),
        ("max_batch", "64"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_on_connecting(
    server: RedisServer, option: str, value: Any
) -> None:
    options = {option: value}
    with (
        Connection(server.url(), transport_options=options) as connection,
        pytest.raises(ValueError, match=f"{option}.*{re.escape(repr(value))}"),
    ):
        connection.default_channel  # noqa: B018


def test_a_worker_tells_of_a_misspelt_option_once(site: Installation) -> None:
    worker = site.worker(
        pool="prefork", concurrency=2, settings={"broker_transport_options": {"visibility_timout": 30}}
    )
    site.producer().send_task("work", ["done"])
    site.wait_ended(["done"])
    assert worker.log().count("'visibility_timout' is unknown") == 1
    assert "Did you mean 'visibility_timeout'?" in worker.log()
