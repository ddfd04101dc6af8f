"""Where each message of the fuzz has gone: what Redis holds, and what the workers have noted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from kombu_redisdelay.broker.message import split_stored
from tests.end_to_end.fuzz.events import ACKED, REJECTED
from tests.end_to_end.fuzz.generator import Case
from tests.end_to_end.fuzz.wellformed import label_of, without_members
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.cluster import Cluster

READY, SCHEDULED, HELD, DEAD = "ready", "scheduled", "held", "dead"

#: Where a message may be in the end. Celery acks or rejects some that it cannot read, which are dead letters
#: by then.
ENDS = ({ACKED}, {SCHEDULED}, {DEAD}, {DEAD, ACKED}, {DEAD, REJECTED})

#: Seconds from now to what is far away. The moments of the cases are past, or many years ahead.
_FAR = 86_400.0


def ready_key(site: Installation) -> str:
    """The ready list of the highest priority."""
    return f"{{{QUEUE}}}" if isinstance(site.server, Cluster) else QUEUE


def is_settled(site: Installation, cases: Sequence[Case]) -> bool:
    """Whether every message is where it may stay."""
    # Most of the time this says no, and costs little.
    return not site.ready(ready_key(site)) and not site.unacked() and not faults(site, cases)


def faults(site: Installation, cases: Sequence[Case]) -> list[str]:
    """What is not as it must be, a line for each message."""
    places, reasons = _places(site), _reasons(site)
    ran = _ran(site)
    said = []
    for case in cases:
        found = places.pop(case.label, {})
        if set(found) not in ENDS:
            said.append(f"{case.label} ({case.what or 'good'}): {[*found] or 'gone'}")
        elif case.is_good and (ACKED not in found or case.label not in ran):
            said.append(f"{case.label} did not run: {[*found]}")
        elif DEAD in found:
            reason = reasons[case.label]
            if without_members(found[DEAD]) != without_members(case.entry):
                said.append(f"{case.label} ({case.what}): changed on its way to the dead letters")
            elif case.parts and not any(part in reason.lower() for part in case.parts):
                said.append(f"{case.label} ({case.what}): the reason names no part of it: {reason}")
    said += [f"{label} is no message of ours: {[*found]}" for label, found in places.items()]
    return said + _due_soon(site)


def ends(site: Installation, cases: Sequence[Case]) -> dict[str, int]:
    """How many of *cases* went where."""
    counts: dict[str, int] = defaultdict(int)
    places = _places(site)
    for case in cases:
        counts[" and ".join(sorted(places.get(case.label, ["gone"])))] += 1
    return dict(counts)


def _places(site: Installation) -> dict[str, dict[str, bytes]]:
    """For each message that is known, where it is, and what stands there."""
    places: dict[str, dict[str, bytes]] = defaultdict(dict)

    def found(place: str, entries: Iterable[bytes]) -> None:
        for entry in entries:
            label = label_of(entry)
            if label is not None:
                places[label][place] = entry

    for event in (ACKED, REJECTED):
        for noted in site.ledger.entries(event):
            places[noted.task][event] = b""
    run = site.redis.execute_command
    found(DEAD, (letter.partition(b"\n")[2] for letter in _dead(site)))
    found(SCHEDULED, _payloads(run("HVALS", f"redisdelay:{{{QUEUE}}}:messages")))
    for key in run("KEYS", f"redisdelay:{{{QUEUE}}}:unacked:*"):
        found(HELD, _payloads(run("HVALS", key)))
    for pattern in (f"{ready_key(site)}*", f"redisdelay:{{{QUEUE}}}:[0-9:]*"):
        for key in run("KEYS", pattern):
            found(READY, run("LRANGE", key, 0, -1))
    return places


def _reasons(site: Installation) -> dict[str, str]:
    """For each dead letter, why it is one."""
    letters = (letter.partition(b"\n") for letter in _dead(site))
    return {label_of(entry) or "": said.decode().split(" ", 3)[3] for said, _, entry in letters}


def _dead(site: Installation) -> list[bytes]:
    return site.dead()


def _ran(site: Installation) -> set[str]:
    # The argument of a task that ran may be anything.
    return {label for label in site.ledger.ended() if isinstance(label, str)}


def _payloads(stored: Iterable[bytes]) -> Iterable[bytes]:
    return (split_stored(value)[1] for value in stored)


def _due_soon(site: Installation) -> list[str]:
    """What is scheduled, and should have been delivered, or will be soon."""
    latest = (time.time() + _FAR) * 1000
    names = site.redis.execute_command("ZRANGEBYSCORE", f"redisdelay:{{{QUEUE}}}:schedule", "-inf", latest)
    return [f"scheduled, and not far away: {name!r}" for name in names]
