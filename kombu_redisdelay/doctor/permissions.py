"""Whether the user of the broker URL may do what the transport does (ACL)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from uuid import uuid4

from redis.exceptions import NoPermissionError

from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.doctor.finding import Finding, ok, wrong
from kombu_redisdelay.keys import known_queues

_SCRIPT = "return 1"
_SHA = sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()

#: Name of a queue that is there for the length of the check only.
_QUEUE = f"doctor-{uuid4().hex}"


def probes(store: Store, fanout_prefix: str) -> Mapping[str, tuple[str | int | float, ...]]:
    """Every command that the transport uses, with arguments with which it is allowed and leaves nothing
    behind once the last ones have run.

    They are tried, because asking (``ACL DRYRUN``) is for administrators, and for Redis 7.
    """
    keys = store.keys(_QUEUE)
    a_hash, a_list, a_zset = keys.messages, keys.ready, keys.schedule
    return {
        "PING": (),
        "TIME": (),
        "TYPE": (a_list,),
        "EVAL": (_SCRIPT, 0),
        "EVALSHA": (_SHA, 0),
        "SCRIPT LOAD": (_SCRIPT,),
        "PUBLISH": (f"{fanout_prefix}{_QUEUE}", ""),
        "SADD": (known_queues(store.prefix), _QUEUE),
        "SREM": (known_queues(store.prefix), _QUEUE),
        "SMEMBERS": (known_queues(store.prefix),),
        "SISMEMBER": (known_queues(store.prefix), _QUEUE),
        "SCARD": (known_queues(store.prefix),),
        "EXISTS": (a_list,),
        "LPUSH": (a_list, "1", "2", "3", "4"),
        "RPUSH": (a_list, "5"),
        "LLEN": (a_list,),
        "LRANGE": (a_list, 0, 0),
        "LINDEX": (a_list, 0),
        "LREM": (a_list, 1, "4"),
        "LTRIM": (a_list, 0, -1),
        "LPOP": (a_list,),
        "RPOP": (a_list,),
        "HSET": (a_hash, "field", "1"),
        "HSETNX": (a_hash, "field", "1"),
        "HGET": (a_hash, "field"),
        "HMGET": (a_hash, "field"),
        "HKEYS": (a_hash,),
        "HLEN": (a_hash,),
        "HEXISTS": (a_hash, "field"),
        "HSTRLEN": (a_hash, "field"),
        "HSCAN": (a_hash, 0),
        "HDEL": (a_hash, "field"),
        "ZADD": (a_zset, 1, "member"),
        "ZSCORE": (a_zset, "member"),
        "ZCARD": (a_zset,),
        "ZCOUNT": (a_zset, 0, 1),
        "ZRANGE": (a_zset, 0, 0),
        "ZRANGEBYSCORE": (a_zset, 0, 1),
        "ZRANGEBYLEX": (a_zset, "-", "+"),
        "ZRANDMEMBER": (a_zset,),
        "ZREM": (a_zset, "member"),
        # On a server that is out of memory the zset is empty. Before 7.0, Redis takes 0.001 for 0: for ever.
        "BZPOPMIN": (a_zset, 0.01),
        "PEXPIRE": (a_list, 60_000),
        "PTTL": (a_list,),
        "DEL": (a_list,),
        "UNLINK": (a_list, a_hash, a_zset),
    }


def check_permissions(store: Store, queues: Sequence[str], fanout_prefix: str) -> Iterator[Finding]:
    refused = _refused_commands(store, fanout_prefix)
    if refused:
        names = " ".join(f"+{name.lower()}" for name in refused)
        yield wrong(
            "permissions",
            f"commands refused: {', '.join(refused)}",
            f"ACL SETUSER <user> {names}. Scripts need every command that they call.",
        )
    keys = _refused_keys(store, queues)
    if keys:
        yield wrong(
            "permissions",
            f"keys refused: {', '.join(keys)}",
            f"ACL SETUSER <user> ~{store.prefix}redisdelay:* ~{store.prefix}_kombu.*, for each queue ~ and "
            "its name, with * behind it for its priorities.",
        )
    if not refused and not keys:
        yield ok("permissions", "all commands, scripts and keys are allowed")


def _refused_commands(store: Store, fanout_prefix: str) -> list[str]:
    commands = probes(store, fanout_prefix)
    with store.client.pipeline(transaction=False) as pipe:
        for name, arguments in commands.items():
            pipe.execute_command(name, *arguments)
        replies = pipe.execute(raise_on_error=False)
    return [name for name, reply in zip(commands, replies, strict=True) if _is_refused(reply)]


def _refused_keys(store: Store, queues: Sequence[str]) -> list[str]:
    """Those keys that may not be written to, which is tried by removing what is not there."""
    commands: dict[str, tuple[str | int, ...]] = {}
    nothing = f"doctor-{uuid4().hex}"
    for queue in queues:
        keys = store.keys(queue)
        commands[keys.schedule] = ("ZREM", keys.schedule, nothing)
        commands |= {ready: ("LTRIM", ready, 0, -1) for ready in store.ready_keys(queue)}
    with store.client.pipeline(transaction=False) as pipe:
        for command in commands.values():
            pipe.execute_command(*command)
        replies = pipe.execute(raise_on_error=False)
    return [key for key, reply in zip(commands, replies, strict=True) if _is_refused(reply)]


def _is_refused(reply: object) -> bool:
    return isinstance(reply, NoPermissionError)
