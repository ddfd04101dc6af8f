"""Where each message of the fuzz has gone: what Redis holds, and what the workers have noted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from kombu_redisdelay.broker.message import split_stored
from tests.end_to_end.fuzz.events import ACKED, RECEIVED, REJECTED
from tests.end_to_end.fuzz.generator import Case
from tests.end_to_end.fuzz.wellformed import label_of
from tests.end_to_end.installation import QUEUE, Installation

READY, SCHEDULED, HELD, DEAD = "ready", "scheduled", "held", "dead"

#: Where a message may be in the end. Of those that Celery has received and passed to its pool, it forgets
#: some, when its own code fails afterwards: these are held until the worker stops, as with any broker.
ENDS = ({ACKED}, {REJECTED}, {SCHEDULED}, {DEAD}, {HELD})

#: Seconds from now to what is far away. The moments of the cases are past, or many years ahead.
_FAR = 86_400.0


def is_settled(site: Installation, cases: Sequence[Case]) -> bool:
    """Whether every message is where it may stay."""
    # Most of the time this says no, and costs little.
    received = {entry.task for entry in site.ledger.entries(RECEIVED)}
    return not site.ready() and site.unacked() <= len(received) and not faults(site, cases)


def faults(site: Installation, cases: Sequence[Case]) -> list[str]:
    """What is not as it must be, a line for each message."""
    places = _places(site)
    ran = _ran(site)
    received = {entry.task for entry in site.ledger.entries(RECEIVED)}
    said = []
    for case in cases:
        found = places.pop(case.label, {})
        if set(found) not in ENDS:
            said.append(f"{case.label} ({case.what or 'good'}): {[*found] or 'gone'}")
        elif HELD in found and case.label not in received:
            said.append(f"{case.label} ({case.what}): held, and Celery does not know it")
        elif case.is_good and (ACKED not in found or case.label not in ran):
            said.append(f"{case.label} did not run: {[*found]}")
        elif DEAD in found and found[DEAD] != case.entry:
            said.append(f"{case.label} ({case.what}): changed on its way to the dead letters")
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
    found(
        DEAD, (letter.partition(b"\n")[2] for letter in run("LRANGE", f"redisdelay:{{{QUEUE}}}:dead", 0, -1))
    )
    found(SCHEDULED, _payloads(run("HVALS", f"redisdelay:{{{QUEUE}}}:messages")))
    for key in run("KEYS", f"redisdelay:{{{QUEUE}}}:unacked:*"):
        found(HELD, _payloads(run("HVALS", key)))
    for key in run("KEYS", f"{QUEUE}*"):
        found(READY, run("LRANGE", key, 0, -1))
    return places


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
