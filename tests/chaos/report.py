"""What a run has shown, in words and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.failing import FailedVerdict
from tests.chaos.fairness import FairVerdict
from tests.chaos.keys import KeysVerdict
from tests.chaos.restraint import Restraint
from tests.chaos.run import Result
from tests.chaos.schedule import FAILOVERS, Harm
from tests.chaos.verdict import Cause

#: The smallest share of its rate that a limited queue in which messages wait must be taken from with.
LEAST_SHARE = 0.9
#: The longest time, in seconds, in which nobody takes what may be taken: all workers may have to find their
#: way back to Redis.
LONGEST_IDLE = 10.0
#: So much of what is wrong with fair queues is said.
SHOWN = 20


def failures(result: Result) -> list[str]:
    """What must not happen and did."""
    verdict = result.verdict
    counts = {
        "tasks lost": len(verdict.lost),
        "tasks started early": len(verdict.early),
        "duplicates unexplained": verdict.causes[Cause.UNEXPLAINED],
        "workers dead by themselves": len(result.died),
        "workers that do not work any more": len(result.idle),
        "keys left in Redis": len(result.left),
        "messages taken and not counted": result.unseen,
        "failovers that nobody planned": result.surprises,
        **_broken_limits(result.restraints),
        **_broken_keys(result.keys),
        **_broken_fairness(result.fair),
        **_broken_failed(result.failed),
    }
    return [f"{what}: {count}" for what, count in counts.items() if count]


def as_json(result: Result) -> dict[str, Any]:
    verdict = result.verdict
    return {
        "transport": result.transport.name,
        "visibility_timeout": result.transport.visibility_timeout,
        "seconds": round(result.seconds, 1),
        "drained_after": round(result.drained_after, 1),
        "harm": {harm.value: count for harm, count in _harm(result).items()},
        "submitted": verdict.submitted,
        "unconfirmed": verdict.unconfirmed,
        "run_once": verdict.once,
        "lost": list(verdict.lost),
        "early_ack_never_started": list(verdict.never_started),
        "early_ack_interrupted": verdict.interrupted,
        "duplicates": {cause.value: count for cause, count in verdict.causes.items()},
        "ended_again": verdict.ended_again,
        "unexplained": [rerun.task for rerun in verdict.reruns if rerun.cause is Cause.UNEXPLAINED],
        "early": list(verdict.early),
        "died": list(result.died),
        "idle": list(result.idle),
        "left": result.left,
        "recovery_same_machine": times(verdict.recovery_times(isolated=False)),
        "recovery_elsewhere": times(verdict.recovery_times(isolated=True)),
        "limits": [asdict(each) for each in result.restraints],
        "pauses": result.pauses,
        "keys": None if result.keys is None else asdict(result.keys),
        "fair": None if result.fair is None else asdict(result.fair),
        "failed": None if result.failed is None else asdict(result.failed),
        "taken_again_after_damage": times(each.after_damage for each in result.resumptions),
        "taken_again_after_served": times(each.after_served for each in result.resumptions),
    }


def as_text(result: Result) -> str:
    verdict, harm = result.verdict, _harm(result)
    kills = max(1, harm[Harm.KILL])
    failovers = sum(harm[each] for each in FAILOVERS)
    reruns = len(verdict.reruns)
    rows = [
        (
            "transport",
            f"{result.transport.name}, visibility_timeout {result.transport.visibility_timeout:g} s",
        ),
        ("harm", ", ".join(f"{count} {each.value}" for each, count in harm.most_common())),
        ("failovers", str(failovers)),
        ("for", f"{result.seconds:.0f} s, drained {result.drained_after:.0f} s later"),
        ("submitted", f"{verdict.submitted} ({verdict.unconfirmed} more were not confirmed)"),
        ("run once", str(verdict.once)),
        ("lost", f"{len(verdict.lost)}, {len(verdict.lost) / kills:.2f} a SIGKILL"),
        ("early ack, killed before the start", str(len(verdict.never_started))),
        ("early ack, killed before the end", str(verdict.interrupted)),
        ("duplicates", f"{reruns}, {reruns / kills:.2f} a SIGKILL"),
        *((f"- {cause.value}", str(count)) for cause, count in verdict.causes.most_common()),
        ("ended more than once", str(verdict.ended_again)),
        ("started early", str(len(verdict.early))),
        ("workers dead by themselves", str(len(result.died))),
        ("workers that do not work any more", str(len(result.idle))),
        ("left in Redis", ", ".join(f"{k!r}: {n}" for k, n in result.left.items()) or "nothing but bindings"),
        ("recovery, same machine", in_words(verdict.recovery_times(isolated=False))),
        ("recovery, elsewhere", in_words(verdict.recovery_times(isolated=True))),
        (
            "servers away, all queues taken from",
            in_words(r.after_damage for r in result.resumptions),
        ),
        ("- after they were back", in_words(r.after_served for r in result.resumptions)),
        *((f"limited: {each.queue}", _restraint_in_words(each)) for each in result.restraints),
        *([("tasks with keys", _keys_in_words(result.keys))] if result.keys else []),
        *(_fairness_in_words(result.fair) if result.fair else []),
        *([("tasks that failed", _failed_in_words(result.failed))] if result.failed else []),
    ]
    return "\n".join(f"{name:36} {value}" for name, value in rows)


def _broken_keys(keys: KeysVerdict | None) -> dict[str, int]:
    if keys is None:
        return {}
    return {
        "tasks with keys that never ran": len(keys.never_ran),
        "keys whose last task nobody saw": len(keys.unseen),
        "keys of which two ran at a time": len(keys.together),
        "tasks that others were dropped for when they were gone": len(keys.too_late),
    }


def _keys_in_words(keys: KeysVerdict) -> str:
    return (
        f"{keys.publishes} published, {keys.runs} began, {len(keys.never_ran)} never ran, last task of "
        f"{len(keys.unseen)} not seen, two at a time of {len(keys.together)}, "
        f"dropped for {len(keys.too_late)} that were gone"
    )


def _broken_failed(failed: FailedVerdict | None) -> dict[str, int]:
    if failed is None:
        return {}
    return {
        "failed tasks with late acks that are not kept": len(failed.lost),
        "failed tasks with early acks that are not kept, and no worker was killed": len(failed.unexplained),
        "failed tasks that are kept twice": len(failed.twice),
    }


def _failed_in_words(failed: FailedVerdict) -> str:
    return (
        f"{failed.failed}, {failed.kept} kept, late acks: {len(failed.lost)} lost, early acks: "
        f"{len(failed.missing)} missing with their worker, {len(failed.unexplained)} for no reason, "
        f"{len(failed.twice)} twice"
    )


def _broken_fairness(fair: FairVerdict | None) -> dict[str, int]:
    if fair is None:
        return {}
    return {
        "limits of keys exceeded": len(fair.exceeded),
        "limits of keys exceeded by what workers noted": len(fair.noted),
        "keys counted wrongly, or without their turn": len(fair.wrong),
        "keys of fair queues left when all is done": len(fair.left),
    }


def _fairness_in_words(fair: FairVerdict) -> list[tuple[str, str]]:
    found = [*fair.exceeded, *fair.noted, *fair.wrong, *(f"left: {name}" for name in fair.left)]
    return [
        ("fair queues", f"plain {len(fair.plain)} times, a key paused {fair.pauses} times"),
        (
            "limits of keys",
            f"exceeded {len(fair.exceeded) + len(fair.noted)} times in {fair.samples} samples and "
            f"{fair.judged} takes; {len(fair.wrong)} wrong, {len(fair.left)} left",
        ),
        *(
            (
                f"- key {each.key!r}",
                f"{each.submitted} submitted, {each.taken} taken, {each.most_held} held at most, "
                f"waited p95 {each.wait:.2f} s",
            )
            for each in fair.tenants
        ),
        *(("- not as it must be", what) for what in found[:SHOWN]),
    ]


def _broken_limits(restraints: Sequence[Restraint]) -> dict[str, int]:
    return {
        "queues taken from faster than allowed": sum(each.over_rate > 0 for each in restraints),
        "queues of which more was held than allowed": sum(each.over_concurrency > 0 for each in restraints),
        "queues taken from while paused": sum(each.while_paused > 0 for each in restraints),
        "queues without their limit": sum(each.unlimited > 0 for each in restraints),
        "queues that nobody took from": sum(each.idle > LONGEST_IDLE for each in restraints),
        "queues that were not taken from as fast as allowed": sum(
            each.share is not None and each.share < LEAST_SHARE for each in restraints
        ),
    }


def _restraint_in_words(each: Restraint) -> str:
    share = "" if each.share is None else f", {each.share:.1%} of its rate"
    over = f"{each.over_rate:.1f} over the rate, {each.over_concurrency} over the concurrency"
    return (
        f"{each.taken} taken{share}, {each.most_held} held at most, {over}, "
        f"{each.while_paused} while paused, nobody took for {each.idle:.2f} s"
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the sorted *values* that *percent* of them do not exceed; NaN if there are none."""
    return values[math.ceil(len(values) * percent / 100) - 1] if values else math.nan


def times(values: Iterable[float]) -> dict[str, float | int | None]:
    found = sorted(values)
    return {
        "count": len(found),
        "p50": round(percentile(found, 50), 2) if found else None,
        "max": round(found[-1], 2) if found else None,
    }


def in_words(values: Iterable[float]) -> str:
    found = sorted(values)
    if not found:
        return "none"
    return f"p50 {percentile(found, 50):.2f} s, max {found[-1]:.2f} s ({len(found)})"


def _harm(result: Result) -> Counter[Harm]:
    return Counter(each.harm for each in result.damage)
