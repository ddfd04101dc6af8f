"""Looks at what the servers themselves have counted of what they refuse, and to whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import sleep
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from kombu_redisdelay.broker.server.server import OneServer
from kombu_redisdelay.operations.doctor.finding import Finding, ok, warning, wrong
from kombu_redisdelay.refusals import REFUSALS, Refusal, refusal_of
from kombu_redisdelay.words import first_of, number_of, printable, sentence

_CHECK = "refusals"

#: Seconds between two looks. Who is refused asks again each second.
BETWEEN = 1.1

#: Who was refused so many seconds ago is named, so many of them.
LATELY, MOST_NAMED = 60.0, 5

#: What producers and workers cannot do without, outside of scripts.
_WAITED_FOR = ("EVALSHA", "SCRIPT", "BZPOPMIN", "LPUSH", "RPUSH", "SADD", "PSUBSCRIBE", "PUBLISH")

#: Entries of the log that are read.
_MOST_READ = 100

_BY_REASON: Mapping[str, Refusal] = {each.reason: each for each in REFUSALS}


def check_refusals(servers: Sequence[OneServer]) -> Iterator[Finding]:
    """What the servers refuse now, and have refused before. What this user may not ask is left out. It takes
    :data:`BETWEEN` if there is anything, else nothing."""
    # First: who may not ask for the log is refused, and that counts, too.
    logs = {server: _log(server) for server in servers}
    before = {server: found for server in servers if (found := _counts(server))}
    if before:
        sleep(BETWEEN)
    for server in servers:
        log = logs[server]
        findings = [*_lately(log or {})]
        if server in before:
            # The log knows which of these matter.
            findings += _growing(before[server], _counts(server), () if log is None else ("noperm",))
        for finding in findings:
            yield replace(finding, server=server.address) if len(servers) > 1 else finding


def _growing(before: Counter[str], after: Counter[str], without: Sequence[str]) -> Iterator[Finding]:
    grown = after - before
    for reason in without:
        del grown[reason]
    for reason, count in grown.items():
        refusal = _BY_REASON[reason]
        level = warning if refusal.is_for_one else wrong
        found = f"{reason}, {number_of(count, 'time')} in the last {BETWEEN:g} s"
        yield level(_CHECK, found, sentence(refusal.hint))
    if not grown:
        # No numbers: a doctor's questions for permissions count, too.
        yield ok(_CHECK, f"none now; since the counters began: {', '.join(after)}")


def _counts(server: OneServer) -> Counter[str]:
    """Reason -> how often the server has refused for it, since it was started or its counters were reset."""
    found: Counter[str] = Counter()
    try:
        errors, stats = server.info("errorstats"), server.info("stats")
    except (ResponseError, ConnectionError, TimeoutError):
        return found
    found["maxclients"] = int(stats.get("rejected_connections", 0))
    for name, its in errors.items():
        refusal = refusal_of(ResponseError(f"{name.removeprefix('errorstat_')} "))
        # That a server lacks a script for a moment is usual.
        if refusal is not None and refusal.is_for_a_while and refusal.reason != "noscript":
            # Old releases of redis-py leave a single value as it is.
            count = its["count"] if isinstance(its, Mapping) else its.removeprefix("count=")
            found[refusal.reason] += int(count)
    return +found


def _log(server: OneServer) -> dict[str, int] | None:
    """What was refused to whom of late, in words -> how often. ``None`` if this user may not ask."""
    try:
        entries = server.call("ACL", "LOG", _MOST_READ)
    except (ResponseError, ConnectionError, TimeoutError):
        return None
    found: Counter[str] = Counter()
    for entry in map(_as_mapping, entries):
        if float(entry["age-seconds"]) < LATELY and _matters(entry):
            what = "login" if entry["reason"] == "auth" else f"{entry['object']} ({entry['reason']})"
            found[f"{entry['username']}: {what}"] += int(entry["count"])
    return dict(found)


def _as_mapping(entry: Any) -> dict[str, str]:
    """An entry of the log. Protocol 2 has no mappings."""
    pairs = entry.items() if isinstance(entry, Mapping) else zip(entry[::2], entry[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return printable(value.decode(errors="replace") if isinstance(value, bytes) else str(value))


def _matters(entry: Mapping[str, str]) -> bool:
    """Whether somebody may wait for it. Others ask for what they can do without, and operators whether they
    may look at a queue; a doctor asks for permissions in a transaction."""
    if entry["context"] == "multi":
        return False
    if entry["reason"] == "auth" or entry["context"] != "toplevel":
        return True
    command = re.search(r"(?:^| )cmd=([^| ]*)", entry["client-info"])
    return command is not None and command[1].upper() in _WAITED_FOR


def _lately(log: Mapping[str, int]) -> Iterator[Finding]:
    if log:
        each = [f"{what}, {number_of(count, 'time')}" for what, count in log.items()]
        yield warning(
            "ACL LOG",
            f"refused in the last minute: {first_of(each, MOST_NAMED)}",
            "See the permissions of these users, and their passwords. ACL LOG RESET forgets it.",
        )
