"""Which ports the servers of a process may have."""

from __future__ import annotations

from itertools import islice

import pytest

from tools.harness.ports import own

PORTS = range(100, 130)


def ports_of(worker: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    return list(islice(own(PORTS), len(PORTS) // 4))


def test_processes_of_a_run_share_none(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [ports_of(f"gw{number}", monkeypatch) for number in range(4)]
    assert len({port for ports in each for port in ports}) == 28
    assert set(each[0]) < set(PORTS)


def test_none_comes_again_before_all_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    ports = own(PORTS)
    first = list(islice(ports, len(PORTS)))
    assert sorted(first) == list(PORTS)
    assert list(islice(ports, len(PORTS))) == first
