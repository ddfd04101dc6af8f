"""Who is certainly gone, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from socket import gethostname

import pytest

from kombu_redisdelay.broker.processes import has_ended, host_and_pid, new_consumer, process_of
from tools.harness.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the proof is Linux's /proc")

CHILD = "from kombu_redisdelay.broker.processes import new_consumer as n; print(n(), flush=True); input()"


@pytest.fixture
def child() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and the name of a consumer in it."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def is_gone(consumer: str) -> bool:
    return has_ended(process_of(consumer))


def fields(consumer: str) -> list[str]:
    boot_id, namespace, pid, start_time, random = consumer.split(":")
    return [boot_id, namespace, pid, start_time, random]


def test_names_are_unique_and_say_who() -> None:
    first, second = new_consumer(), new_consumer()
    assert first != second
    assert fields(first)[:4] == fields(second)[:4]
    assert fields(first)[2] == str(os.getpid())


def test_where_it_is() -> None:
    mine = new_consumer()
    assert host_and_pid(mine) == (gethostname(), os.getpid())
    boot_id, namespace, *rest = mine.split(":")
    assert host_and_pid(":".join(("other", namespace, *rest))) == ("other", os.getpid())
    assert host_and_pid(":".join((boot_id, "other", *rest))) == (boot_id, os.getpid())


@pytest.mark.parametrize("name", ["", "a", "a:b", "-:17:-:x", "::::", "b:n:x:-:y"])
def test_where_one_is_that_does_not_tell(name: str) -> None:
    assert host_and_pid(name) == (None, 17 if "17" in name else None)


def test_own_consumer_is_not_gone() -> None:
    assert not is_gone(new_consumer())


def test_a_living_process_is_not_gone(child: tuple[subprocess.Popen[str], str]) -> None:
    assert not is_gone(child[1])


def test_a_stopped_process_is_not_gone(child: tuple[subprocess.Popen[str], str]) -> None:
    process, consumer = child
    process.send_signal(signal.SIGSTOP)
    assert os.waitpid(process.pid, os.WUNTRACED)[0] == process.pid
    assert not is_gone(consumer)


def test_a_killed_process_is_gone(child: tuple[subprocess.Popen[str], str]) -> None:
    process, consumer = child
    process.kill()
    process.wait()
    assert is_gone(consumer)


def test_a_killed_process_is_gone_before_its_parent_notices(
    child: tuple[subprocess.Popen[str], str],
) -> None:
    process, consumer = child
    process.kill()
    wait_until(lambda: is_gone(consumer), 20, "the zombie is known to be gone")
    os.kill(process.pid, 0)  # raises if it is no zombie any more


def test_another_process_with_the_same_pid_is_no_proof_of_life(
    child: tuple[subprocess.Popen[str], str],
) -> None:
    boot_id, namespace, pid, start_time, random = fields(child[1])
    assert is_gone(":".join((boot_id, namespace, pid, str(int(start_time) - 1), random)))


class TestAnythingLessThanCertain:
    """Names of a process that is dead, but for one detail."""

    @pytest.fixture
    def dead(self, child: tuple[subprocess.Popen[str], str]) -> list[str]:
        process, consumer = child
        process.kill()
        process.wait()
        assert is_gone(consumer)
        return fields(consumer)

    @pytest.mark.parametrize("field", [0, 1])
    @pytest.mark.parametrize("value", ["another", "-", ""])
    def test_another_machine_or_container(self, dead: list[str], field: int, value: str) -> None:
        dead[field] = value
        assert not is_gone(":".join(dead))

    def test_start_time_that_was_not_known(self, dead: list[str]) -> None:
        dead[3] = "-"
        assert not is_gone(":".join(dead))

    def test_host_that_was_not_known(self, dead: list[str]) -> None:
        assert not is_gone(":".join(["-", *dead[2:]]))

    @pytest.mark.parametrize("value", ["", "x", "1.5"])
    def test_pid_that_is_none(self, dead: list[str], value: str) -> None:
        dead[2] = value
        assert not is_gone(":".join(dead))

    @pytest.mark.parametrize("name", ["", "-", ":::", "::::", "gone", "a:b:c:d:e", "-:-:1:2:3"])
    def test_a_name_that_is_not_ours(self, name: str) -> None:
        assert not is_gone(name)

    @pytest.mark.parametrize("pid", [0, -1, 10**30])
    def test_a_pid_that_no_process_has(self, dead: list[str], pid: int) -> None:
        dead[2] = str(pid)
        assert not is_gone(":".join(dead))
