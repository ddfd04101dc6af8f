"""``python -m tools.benchmarks``: what is said before anything is measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tools.benchmarks.peers import REDIS_PLUS
from tools.benchmarks.workloads import WORKLOADS


def run(*words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    program = f"""
import runpy, sys
for name in {without.split()!r}:
    sys.modules[name] = None
sys.argv[1:] = {words!r}
runpy.run_module("tools.benchmarks", run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["psutil", "rich"])
def test_without_a_package_it_says_what_to_install(module: str) -> None:
    done = run("--help", without=module)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"benchmarks: {module} is not installed. "
        "Say `tox -e bench`, or pip install -e '.[celery]' --group bench\n"
    )


def test_without_another_transport_it_says_how_to_get_it() -> None:
    missing = replace(REDIS_PLUS, imports="is_not_there").missing()
    assert missing == "not installed (pip install celery-redis-plus, on Python 3.13 or newer)"


class TestWithAllPackages:
    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        for module in ("matplotlib", "rich"):
            pytest.importorskip(module, reason="the group `bench` is not installed")

    @pytest.mark.parametrize(
        "words", [("consume", "queues"), pytest.param(("fleet",), marks=pytest.mark.thorough)]
    )
    def test_what_is_too_long_for_quick_is_refused_by_name(self, words: tuple[str, ...]) -> None:
        done = run("--quick", "--only", *words)
        assert done.returncode == 2
        assert (
            f"too long for --quick: {'fleet-idle, fleet-lost' if 'fleet' in words else 'queues'}. "
            in done.stderr
        )
        assert "--rounds 1" in done.stderr

    def test_the_help_tells_what_quick_leaves_out(self) -> None:
        lines = run("--help").stdout.splitlines()
        for workload in WORKLOADS.values():
            mark = " " if workload.quick_sizes is None else "*"
            assert any(line.startswith(f"{mark} {workload.name} ") for line in lines)
