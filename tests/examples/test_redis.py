"""The Redis of the examples: it becomes full before the kernel kills it, and is ready when it says so."""

from __future__ import annotations

import os
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.examples.site import EXAMPLES

# Not installed where types are checked.
yaml: Any = import_module("yaml")

COMPOSE = yaml.safe_load((EXAMPLES / "compose/compose.yaml").read_text())["services"]["redis"]
[KUBERNETES] = [
    container
    for resource in yaml.safe_load_all((EXAMPLES / "kubernetes/redis.yaml").read_text())
    if resource["kind"] == "StatefulSet"
    for container in resource["spec"]["template"]["spec"]["containers"]
]

#: The command of the server, its memory limit, and what asks whether it is ready.
DEPLOYED = [
    pytest.param(
        shlex.split(COMPOSE["command"]),
        COMPOSE["mem_limit"],
        ["sh", "-c", COMPOSE["healthcheck"]["test"]],
        id="compose",
    ),
    pytest.param(
        KUBERNETES["command"],
        KUBERNETES["resources"]["limits"]["memory"],
        KUBERNETES["readinessProbe"]["exec"]["command"],
        id="kubernetes",
    ),
]

each = pytest.mark.parametrize(("command", "limit", "probe"), DEPLOYED)

_UNITS = {"mb": 2**20, "g": 2**30, "Mi": 2**20, "Gi": 2**30}


def _bytes(text: str) -> int:
    unit = text.lstrip("0123456789")
    return int(text.removesuffix(unit)) * _UNITS[unit]


@each
def test_it_has_room_for_the_rewrite(command: list[str], limit: str, probe: list[str]) -> None:
    settings = dict(zip(command[1::2], command[2::2], strict=True))
    assert settings["--maxmemory-policy"] == "noeviction"
    assert 0 < 2 * _bytes(settings["--maxmemory"]) <= _bytes(limit)


@each
@pytest.mark.parametrize(
    ("reply", "is_ready"),
    [
        ("PONG", True),
        ("LOADING Valkey is loading the dataset in memory", False),
        ("NOAUTH Authentication required.", False),
    ],
)
def test_it_is_ready_when_it_says_so(
    command: list[str], limit: str, probe: list[str], reply: str, is_ready: bool, tmp_path: Path
) -> None:
    """`valkey-cli` ends with 0 whatever the reply is, if there is one."""
    client = tmp_path / "valkey-cli"
    client.write_text(f"#!/bin/sh\necho {shlex.quote(reply)}\n")
    client.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(probe, env={**os.environ, "PATH": path}, check=False)
    assert (ended.returncode == 0) is is_ready
