"""The user of docs/permissions.rst."""

from __future__ import annotations

import re
from pathlib import Path

from tools.harness.redis_server import HOST, RedisServer

_PAGE = Path(__file__).parents[1] / "docs" / "permissions.rst"
_RULE = re.compile(r"^   ACL SETUSER (\w+) (.*?)\n\n", re.MULTILINE | re.DOTALL)
_OF_QUEUE = ("~{queue}", "~{queue}\x06\x16*", "~redisdelay:{{{queue}}}:*")


def documented_rules(*queues: str, prefix: str = "", user: str = "shop") -> list[str]:
    """The rules on that page, with what it says of *queues* and of a ``global_keyprefix``."""
    rules = [_entered(rule) for rule in dict(_RULE.findall(_PAGE.read_text()))[user].split()]
    for rule in _OF_QUEUE:
        rules.remove(rule.format(queue="celery"))
    # Behind those that make the user.
    rules[4:4] = [rule.format(queue=queue) for queue in queues or ("celery",) for rule in _OF_QUEUE]
    # Redis takes no pattern behind `~*`.
    rules = ["~**" if rule == "~*" else rule for rule in rules]
    return [f"{rule[0]}{prefix}{rule[1:]}" if rule[0] in "~&" else rule for rule in rules]


def _entered(rule: str) -> str:
    """What redis-cli makes of a rule."""
    return rule[1:-1].encode().decode("unicode_escape") if rule.startswith('"') else rule


def allow(server: RedisServer, *rules: str) -> str:
    """Have a user with these rules only. Returns the broker URL."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", *rules)
        client.acl_log_reset()
    return f"redisdelay://shop:secret@{HOST}:{server.port}/0"


def refused(server: RedisServer) -> list[str]:
    """What the server has refused since then, but for what redis-py tells of itself."""
    with server.client(decode_responses=True) as client:
        entries = client.acl_log()
    # Redis 6.2 does not name subcommands.
    told = [
        f"{entry['reason']} {entry['object'].partition('|')[0]} in {entry['context']}" for entry in entries
    ]
    return [line for line in told if line != "command client in toplevel"]


def rules_on_a_cluster(*queues: str) -> list[str]:
    """The same, with what that page says of a cluster."""
    assert '``~{Q} "~{Q}\\x06\\x16*"`` in place of ``~Q "~Q\\x06\\x16*"``' in _PAGE.read_text()
    in_slots = {f"~{name}": f"~{{{name}}}" for name in queues}
    in_slots |= {f"~{name}\x06\x16*": f"~{{{name}}}\x06\x16*" for name in queues}
    in_slots["~_kombu.binding*"] = "~{_kombu.binding}*"
    in_slots["~celeryev.*"] = "~{celeryev.*"
    return [in_slots.get(rule, rule) for rule in documented_rules(*queues)] + ["+asking", "+cluster|slots"]
