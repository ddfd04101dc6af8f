"""A Redis server whose clock can be moved while it runs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.process import wait_until
from harness.redis_server import RedisServer

_SOURCE = Path(__file__).with_suffix(".c")


def compiler() -> str | None:
    """The C compiler, where the dynamic linker takes what it makes; else ``None``."""
    return shutil.which("cc") if sys.platform == "linux" else None


class MovedClockServer(RedisServer):
    """A server with a clock of its own, which agrees with that of the machine at first."""

    def start(self) -> None:
        library, offset = self.directory / "moved_clock.so", self.directory / "offset"
        offset.write_bytes(struct.pack("q", 0))
        subprocess.run([compiler() or "cc", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
        super().start()

    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "LD_PRELOAD": str(self.directory / "moved_clock.so"),
            "MOVED_CLOCK_OFFSET": str(self.directory / "offset"),
        }

    def now_ms(self) -> int:
        """What the server takes for the time, ms since the epoch."""
        with self.client() as client:
            seconds, microseconds = client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def jump(self, seconds: int) -> None:
        """Move the clock, by so much more than before."""
        expected = self.now_ms() + seconds * 1000
        with (self.directory / "offset").open("r+b") as file:
            [offset] = struct.unpack("q", file.read())
            file.seek(0)
            file.write(struct.pack("q", offset + seconds))
        wait_until(lambda: abs(self.now_ms() - expected) < 60_000, 5, "the clock has not moved")
