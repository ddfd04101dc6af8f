"""What a Redis server says of its own work."""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis

#: The commands that run scripts.
_SCRIPTS = ("eval", "evalsha", "fcall")


def cpu_seconds(redis: Redis) -> float:
    """CPU time that the server has used so far."""
    info = redis.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def used_memory(redis: Redis) -> int:
    """Bytes that the server has allocated."""
    return int(redis.info("memory")["used_memory"])


@dataclass(frozen=True)
class ScriptTime:
    """The scripts that ran: how often, and how long together."""

    calls: int
    microseconds: int

    def __sub__(self, earlier: ScriptTime) -> ScriptTime:
        return ScriptTime(self.calls - earlier.calls, self.microseconds - earlier.microseconds)


def script_time(redis: Redis) -> ScriptTime:
    """All scripts since the statistics began."""
    stats = redis.info("commandstats")
    rows = [stats[key] for name in _SCRIPTS if (key := f"cmdstat_{name}") in stats]
    return ScriptTime(sum(row["calls"] for row in rows), sum(row["usec"] for row in rows))
