"""Checks the Lua scripts with luacheck: each file by itself, and each script with what it includes, where all
names must be known. Prints a line if luacheck is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from kombu_redisdelay.broker.server.scripts import composed

LUA = Path(__file__).parents[1] / "kombu_redisdelay" / "lua"

#: For scripts that are put together: names that nothing has defined, and no more.
UNDEFINED = [
    "--no-config",
    "--std",
    "lua51",
    "--only",
    "11.",
    "--read-globals",
    "redis",
    "cjson",
    "KEYS",
    "ARGV",
]


def main() -> int:
    if which("luacheck") is None:
        print("luacheck is missing (CONTRIBUTING.md): the Lua scripts were not checked")
        return 0
    with TemporaryDirectory() as folder:
        for path in LUA.glob("*.lua"):
            (Path(folder) / path.name).write_text(composed(path.read_text("utf-8"), set()))
        return max(
            subprocess.run(["luacheck", "-q", *arguments], check=False).returncode
            for arguments in ([str(LUA)], [folder, *UNDEFINED])
        )


if __name__ == "__main__":
    sys.exit(main())
