"""What a run was made with, and on what."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kombu_redisdelay
from tools.benchmarks.run import Servers

_PACKAGES = ("kombu", "celery", "redis", "amqp", "celery-redis-plus")


def describe(servers: Servers) -> dict[str, str]:
    """Date, machine, versions, and the command that repeats the run."""
    described = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "tools.benchmarks", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} x {_cpu()}, {platform.system()} {platform.release()}",
        "kombu-redisdelay": _revision(Path(kombu_redisdelay.__file__).parent),
        "Python": platform.python_version(),
        "server": str(servers.redis.binary),
    }
    if not isinstance(servers.rabbitmq, str):
        described["RabbitMQ server"] = servers.rabbitmq.version() or "does not answer"
    for package in _PACKAGES:
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            continue
    return described


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _revision(directory: Path) -> str:
    """Version, and the commit where it comes from a git checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=directory, capture_output=True, text=True
        )
    except FileNotFoundError:
        return kombu_redisdelay.__version__
    commit = done.stdout.strip()
    return f"{kombu_redisdelay.__version__}, {commit}" if commit else kombu_redisdelay.__version__
