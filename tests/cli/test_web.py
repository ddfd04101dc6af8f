"""`celery delayed web`, as a process."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from kombu_redisdelay.cli import web
from kombu_redisdelay.cli.web import _listen
from tests.cli.site import Site
from tests.cli.test_processes import Daemon, _listens
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer


class WebPage(Daemon):
    """The command, with more in its environment."""

    def __init__(self, server: RedisServer, *words: str, **environment: str) -> None:
        super().__init__(server, "web", "--port", "0", *words, ready="The queues are on")
        self._more = environment

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **self._more}

    @property
    def url(self) -> str:
        [url] = re.findall(r"http://\S+", self.log())
        return str(url)


def get(url: str, user: str = "", **headers: str) -> tuple[int, str]:
    """The status and the text of a page."""
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    try:
        with urlopen(Request(url, headers=headers), timeout=10) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_it_serves_until_it_is_told_to_stop(server: RedisServer, site: Site) -> None:
    site.send(countdown=3600)
    with WebPage(server) as page:
        status, text = get(page.url)
        assert (status, "<h1>Queues</h1>" in text) == (200, True)
        assert not _listens("127.0.0.2", page.url.rpartition(":")[2].rstrip("/"))
        os.kill(page.pid, signal.SIGTERM)
        wait_until(lambda: not page.running, 30, "that it stops")
        assert "Traceback" not in page.log()


def test_it_may_start_before_redis() -> None:
    with RedisServer() as server:
        server.stop()
        with WebPage(server) as page:
            assert "Redis does not serve the page yet" in page.log()
            assert get(page.url)[0] == 503
            server.start()
            server.wait_ready()
            wait_until(lambda: get(page.url)[0] == 200, 30, "that it finds Redis")


def test_without_a_password_only_by_names_of_this_machine(server: RedisServer) -> None:
    with WebPage(server) as page:
        assert get(page.url)[0] == 200
        assert get(page.url, Host="localhost")[0] == 200
        assert get(page.url, Host="evil.example")[0] == 400


def test_the_password_of_the_environment(server: RedisServer) -> None:
    with WebPage(server, "--address", "0.0.0.0", REDISDELAY_WEB_PASSWORD="se:cret") as page:
        url = page.url.replace("0.0.0.0", "127.0.0.1")
        assert [get(url, user)[0] for user in ("", "admin:wrong", "other:se:cret")] == [401, 401, 401]
        assert get(url, "admin:se:cret", Host="queues.example")[0] == 200


def test_passwords_of_a_file(server: RedisServer, tmp_path: Path) -> None:
    users = tmp_path / "users"
    # As Notepad may write it.
    users.write_text("ann:first\n\nbob:päss:word\n", "utf-8-sig")
    with WebPage(server, "--users-file", str(users)) as page:
        tried = ("ann:first", "bob:päss:word", "ann:päss:word", "ann:", "")
        assert [get(page.url, user)[0] for user in tried] == [200, 200, 401, 401, 401]


def test_a_file_that_others_may_read_is_said(server: RedisServer, tmp_path: Path) -> None:
    users, viewers = tmp_path / "users", tmp_path / "viewers"
    users.write_text("ann:first\n")
    viewers.write_text("bob:second\n")
    users.chmod(0o640)
    viewers.chmod(0o644)
    with WebPage(server, "--users-file", str(users), "--viewers-file", str(viewers)) as page:
        assert [get(page.url, user)[0] for user in ("ann:first", "bob:second", "bob:first")] == [
            200,
            200,
            401,
        ]
        assert f"Others on this machine may read or change {viewers}" in page.log()
        assert str(users) not in page.log()


def test_without_a_password_by_names_that_are_given(server: RedisServer) -> None:
    """A page on another site may have a name of its own lead here."""
    words = ("--address", "0.0.0.0", "--insecure", "--host", "queues.example", "--host", "*.shop.example")
    with WebPage(server, *words) as page:
        url = page.url.replace("0.0.0.0", "127.0.0.1")
        assert get(url)[0] == 200
        assert [get(url, Host=name)[0] for name in ("queues.example", "a.shop.example")] == [200, 200]
        assert get(url, Host="evil.example")[0] == 400
        assert get(f"{url}healthz", Host="10.0.0.7") == (200, "ok\n")


def test_who_looks_and_acts_at_once(tmp_path: Path, site: Site) -> None:
    users = tmp_path / "users"
    users.write_text("ann:first\n")
    result = site.run("web", "--users-file", str(users), "--viewers-file", str(users))
    assert result.exit_code == 2
    assert "a user who may act may also look." in result.stderr


def test_an_answer_does_not_wait_for_more_to_send() -> None:
    async def is_sent_at_once(listener: socket.socket) -> bool:
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            its = writer.get_extra_info("socket")
            accepted.set_result(bool(its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        async with await asyncio.start_server(accept, sock=listener):
            with socket.create_connection(listener.getsockname()):
                return await accepted

    # As uvicorn is given it.
    assert asyncio.run(is_sent_at_once(_listen("127.0.0.1", 0)))


def test_below_a_prefix(server: RedisServer) -> None:
    with WebPage(server, "--prefix", "/queues") as page:
        # The proxy has taken the prefix away.
        assert 'href="/queues/messages"' in get(page.url)[1]


@pytest.mark.parametrize(
    ("words", "password", "message"),
    [
        (("--address", "0.0.0.0"), None, "Others can reach 0.0.0.0."),
        (("--address", "::"), None, "Others can reach ::."),
        (("--address", ""), None, "Others can reach"),
        (("--insecure",), "secret", "--insecure asks for no password."),
        (("--prefix", "queues"), None, "The prefix must begin with a slash"),
        (("--address", "no.such.host.invalid"), None, "Cannot listen on no.such.host.invalid"),
        ((), "", "REDISDELAY_WEB_PASSWORD is empty."),
    ],
)
def test_what_it_refuses(
    site: Site, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], password: str | None, message: str
) -> None:
    if password is not None:
        monkeypatch.setenv("REDISDELAY_WEB_PASSWORD", password)
    result = site.run("web", "--port", "0", *words)
    assert result.exit_code in (1, 2)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "There is no user in"),
        ("\n\n", "There is no user in"),
        ("ann:a\nbob\n", "is not of the form name:password"),
        ("ann:\n", "Line 1 of"),
    ],
)
def test_a_file_that_would_let_in_anybody(site: Site, tmp_path: Path, text: str, message: str) -> None:
    users = tmp_path / "users"
    users.write_text(text)
    result = site.run("web", "--port", "0", "--users-file", str(users))
    assert (result.exit_code, message in result.stderr) == (1, True)


@pytest.mark.parametrize(("system", "said"), [("posix", "chmod o-rw"), ("nt", "")])
def test_others_may_read_a_file_of_passwords(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    system: str,
    said: str,
) -> None:
    users = tmp_path / "users"
    users.write_text("ann:a\n")
    users.chmod(0o644)
    # Windows has other permissions, and always shows these.
    monkeypatch.setattr(web, "os", SimpleNamespace(name=system))
    assert web._read(users) == {"ann": "a"}
    assert (said in capsys.readouterr().err) if said else not capsys.readouterr().err


def test_a_port_that_is_taken(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = site.run("web", "--port", port)
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: Cannot listen on 127.0.0.1:{port}: Address already in use.\n",
    )
