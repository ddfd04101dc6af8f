"""How full a server is, and of what: whose limit comes first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_redisdelay.operations import server_memory as module
from kombu_redisdelay.operations.doctor.finding import Level
from kombu_redisdelay.operations.doctor.server import _memory
from kombu_redisdelay.operations.server_memory import (
    CONTAINER,
    MACHINE,
    MAXMEMORY,
    UNKNOWN,
    memory_in,
    memory_limit,
)
from tools.harness.redis_server import RedisServer

MIB = 2**20
#: What a Redis says that has been running for 100 s, on a machine with 1 GiB.
INFO: dict[str, Any] = {
    "process_id": 7,
    "executable": "/usr/local/bin/valkey-server",
    "uptime_in_seconds": 100,
    "used_memory": 10 * MIB,
    "used_memory_rss": 12 * MIB,
    "mem_not_counted_for_evict": MIB,
    "maxmemory": 0,
    "total_system_memory": 1024 * MIB,
}


@pytest.fixture(scope="module")
def info() -> Iterator[dict[str, Any]]:
    with RedisServer() as server, server.client() as client:
        yield dict(client.info())


def tree(
    root: Path,
    groups: str,
    limits: dict[str, str] | None = None,
    *,
    name: str = "valkey-server",
    age: float = 100,
) -> Path:
    """The files of Linux about process 7.

    Arguments:
        limits: path of a control group -> its limit in version 2.
    """
    ticks = round((1000 - age) * os.sysconf("SC_CLK_TCK"))
    fields = " ".join(["S", *["0"] * 18, str(ticks), "0"])
    files = {"proc/uptime": "1000.00 1.00", "proc/7/stat": f"7 ({name}) {fields}", "proc/7/cgroup": groups}
    for group, limit in (limits or {}).items():
        files[f"sys/fs/cgroup/{group}/memory.max"] = limit
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return root


def limit(root: Path) -> int | None:
    return memory_limit(7, "valkey-server", 100, root)


class TestLimitOfAProcess:
    def test_of_its_container(self, tmp_path: Path) -> None:
        assert limit(tree(tmp_path, "0::/pod/redis", {"pod/redis": str(512 * MIB)})) == 512 * MIB

    def test_the_least_of_those_around_it(self, tmp_path: Path) -> None:
        limits = {"pod/redis": "max", "pod": str(256 * MIB), "": str(512 * MIB)}
        assert limit(tree(tmp_path, "0::/pod/redis", limits)) == 256 * MIB

    def test_from_within_a_container(self, tmp_path: Path) -> None:
        assert limit(tree(tmp_path, "0::/", {"": str(512 * MIB)})) == 512 * MIB

    def test_of_version_1(self, tmp_path: Path) -> None:
        """Whose container sees its own group only, under another path."""
        tree(tmp_path, "5:cpu:/docker/1\n4:memory:/docker/1\n0::/")
        group = tmp_path / "sys/fs/cgroup/memory"
        group.mkdir(parents=True)
        (group / "memory.limit_in_bytes").write_text(f"{512 * MIB}\n")
        assert limit(tmp_path) == 512 * MIB
        (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
        assert limit(tmp_path) is None

    @pytest.mark.parametrize("other", [{"name": "python"}, {"age": 90}], ids=str)
    def test_not_of_another_process_with_its_number(self, tmp_path: Path, other: dict[str, Any]) -> None:
        """The server runs on another machine, or in another container."""
        assert limit(tree(tmp_path, "0::/", {"": str(512 * MIB)}, **other)) is None

    def test_nothing_is_known_elsewhere(self, tmp_path: Path) -> None:
        assert limit(tmp_path) is None
        assert limit(tree(tmp_path, "0::/", {"": "max"})) is None

    def test_the_real_process_is_found(self, info: dict[str, Any], tmp_path: Path) -> None:
        """Its group may have no limit here: so it gets one."""
        pid = info["process_id"]
        executable = Path(info["executable"]).name
        tree(tmp_path, "", {"": str(512 * MIB)})
        (tmp_path / "sys/fs/cgroup/memory").mkdir()
        (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text(str(512 * MIB))
        (tmp_path / f"proc/{pid}").mkdir()
        for name in ("uptime", f"{pid}/stat", f"{pid}/cgroup"):
            (tmp_path / "proc" / name).write_text((Path("/proc") / name).read_text())
        assert memory_limit(pid, executable, info["uptime_in_seconds"], tmp_path) == 512 * MIB
        assert memory_limit(pid, executable, info["uptime_in_seconds"] + 60, tmp_path) is None


@pytest.mark.parametrize(
    ("said", "container", "expected", "level"),
    [
        ({}, None, (10, 1024, MACHINE), Level.OK),
        ({"total_system_memory": 11 * MIB}, None, (10, 11, MACHINE), Level.WARNING),
        ({"process_id": 1}, None, (10, 0, UNKNOWN), Level.WARNING),
        ({}, 512, (12, 512, CONTAINER), Level.WARNING),
        ({"process_id": 1, "maxmemory": 512 * MIB}, None, (9, 512, MAXMEMORY), Level.OK),
        ({"maxmemory": 512 * MIB}, 1024, (9, 512, MAXMEMORY), Level.OK),
        ({"maxmemory": 900 * MIB}, 1024, (9, 900, MAXMEMORY), Level.WARNING),
        ({"maxmemory": 10 * MIB}, 1024, (9, 10, MAXMEMORY), Level.WARNING),
        ({"maxmemory": 8 * MIB}, 1024, (9, 8, MAXMEMORY), Level.WRONG),
    ],
)
def test_whose_limit_counts(
    said: dict[str, Any],
    container: int | None,
    expected: tuple[int, int, str],
    level: Level,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "memory_limit", lambda *process: container and container * MIB)
    memory = memory_in({**INFO, **said})
    assert (memory.used // MIB, memory.limit // MIB, memory.of_what) == expected
    finding = _memory(memory)
    assert finding.level is level
    assert expected[2] in finding.found
    assert bool(finding.advice) == (level is not Level.OK)
