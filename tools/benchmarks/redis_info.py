"""What a Redis server says of its own work."""

from __future__ import annotations

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


def script_us(redis: Redis) -> int:
    """Microseconds that scripts have run for, since the statistics began."""
    stats = redis.info("commandstats")
    return sum(stats[key]["usec"] for name in _SCRIPTS if (key := f"cmdstat_{name}") in stats)
