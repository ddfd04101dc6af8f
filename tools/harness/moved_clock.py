"""A Redis server whose clock can be moved while it runs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

_SOURCE = Path(__file__).with_suffix(".c")


def compiler() -> str | None:
    """The C compiler; ``None`` if there is none, or if the dynamic linker does not load what it makes."""
    return shutil.which("cc") if sys.platform == "linux" else None


class MovedClockServer(RedisServer):
    """A server with a clock of its own, which agrees with the machine's clock at first."""

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
        """The time by the server's clock, in ms since the epoch."""
        with self.client() as client:
            seconds, microseconds = client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def jump(self, seconds: int) -> None:
        """Move the clock by *seconds*, in addition to earlier jumps."""
        expected = self.now_ms() + seconds * 1000
        with (self.directory / "offset").open("r+b") as file:
            [offset] = struct.unpack("q", file.read())
            file.seek(0)
            file.write(struct.pack("q", offset + seconds))
        wait_until(lambda: abs(self.now_ms() - expected) < 60_000, 20, "the clock has not moved")
