"""Servers with the configuration of the pages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from kombu_redisdelay import Messages
from tests.docs.page import DOCS, Block, blocks
from tests.permissions import documented_rules
from tools.harness.process import wait_until
from tools.harness.redis_server import HOST, free_port
from tools.harness.server_binary import servers
from tools.harness.tls import new_tls, server_with_tls


def _file(page: str, caption: str) -> str:
    [found] = [block for block in blocks(DOCS / f"{page}.rst") if block.caption == caption]
    return found.text + "\n"


def _recommended() -> list[Block]:
    pages = [DOCS / "reliability.rst", DOCS / "sentinel.rst", DOCS / "deploy.rst"]
    found = [block for page in pages for block in blocks(page) if block.text.startswith("appendonly yes")]
    assert len(found) == 3
    return found


@contextmanager
def _running(binary: str, directory: Path, configuration: str, *options: str) -> Iterator[None]:
    (directory / "server.conf").write_text(configuration)
    command = [binary, "server.conf", "--bind", HOST, *options]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(10)


def _answers(**options: Any) -> bool:
    try:
        with redis.Redis(host=HOST, **options) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("block", _recommended(), ids=str)
def test_a_server_takes_the_settings(block: Block, tmp_path: Path) -> None:
    port = free_port()
    # In a file, a comment has a line of its own.
    settings = "\n".join(line.partition("#")[0] for line in block.text.split("\n")) + "\n"
    with _running(servers()[0].path, tmp_path, settings, "--port", str(port)):
        wait_until(lambda: _answers(port=port), 30, "an answer")
        with redis.Redis(host=HOST, port=port, decode_responses=True) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_tls_and_a_user(tmp_path: Path) -> None:
    with ExitStack() as stack:
        try:
            binary, tls = server_with_tls(), stack.enter_context(new_tls())
        except LookupError as error:
            pytest.skip(str(error))
        users = tmp_path / "users.acl"
        users.write_text(f"user default off\nuser shop {' '.join(documented_rules('celery'))}\n")
        files = {
            "users.acl": users,
            "server.pem": tls.certificate,
            "server.key": tls.key,
            "ca.pem": tls.certificate,
        }
        settings = _file("deploy", "tls.conf")
        for name, path in files.items():
            settings = settings.replace(f"/etc/redis/{name}", str(path))
        port = free_port()
        stack.enter_context(_running(binary.path, tmp_path, settings, "--tls-port", str(port)))
        options: dict[str, Any] = {"ssl": True, **tls.client_options}
        wait_until(
            lambda: _answers(port=port, username="shop", password="secret", **options), 10, "an answer"
        )
        app = Celery("shop", broker=f"redisdelays://shop:secret@{HOST}:{port}/0", set_as_current=False)
        app.conf.broker_use_ssl = tls.client_options
        with Messages(app) as delayed:
            app.send_task("shop.remind", countdown=60, task_id="one")
            assert delayed.cancel(ids=["one"]).count == 1
        app.close()
