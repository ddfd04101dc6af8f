"""What the rounds have shown, in words and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.report import in_words, times
from tests.chaos.trouble.run import OfPool, Passed
from tests.chaos.verdict import Cause

#: Seconds in which a worker must end that is told to.
ENDS_WITHIN = 10.0


def failures(pools: Sequence[OfPool]) -> list[str]:
    """What must not happen and did."""
    counts = {
        "tasks lost": sum(len(each.verdict.lost) for each in pools),
        "tasks started early": sum(len(each.verdict.early) for each in pools),
        "duplicates without an allowed reason": _causes(pools)[Cause.UNEXPLAINED],
        "workers ended": sum(len(each.ended) for each in _passed(pools)),
        "workers that did not work afterwards": sum(len(each.idle) for each in _passed(pools)),
        "workers that did not end when they were told to": sum(len(each.hung) for each in pools),
        f"workers that took longer than {ENDS_WITHIN:g} s to end": sum(
            seconds > ENDS_WITHIN for each in pools for seconds in each.endings
        ),
        "lines in logs that must not be there": sum(len(each.bad) for each in pools),
        "keys left in Redis": sum(len(each.left) for each in pools),
    }
    return [f"{what}: {count}" for what, count in counts.items() if count]


def as_json(pools: Sequence[OfPool]) -> dict[str, Any]:
    return {
        "rounds": len(_passed(pools)),
        "submitted": sum(each.verdict.submitted for each in pools),
        "unconfirmed": sum(each.verdict.unconfirmed for each in pools),
        "run_once": sum(each.verdict.once for each in pools),
        "lost": [task for each in pools for task in each.verdict.lost],
        "early": [task for each in pools for task in each.verdict.early],
        "duplicates": {cause.value: count for cause, count in _causes(pools).items()},
        "unexplained": [
            f"{each.pool}: {rerun.task}"
            for each in pools
            for rerun in each.verdict.reruns
            if rerun.cause is Cause.UNEXPLAINED
        ],
        "bad_lines": [line for each in pools for line in each.bad],
        "left": [key for each in pools for key in each.left],
        "hung": [label for each in pools for label in each.hung],
        "ended_within": times(seconds for each in pools for seconds in each.endings),
        "passed": [asdict(each) for each in _passed(pools)],
    }


def as_text(pools: Sequence[OfPool]) -> str:
    passed = _passed(pools)
    labels = Counter(each.label for each in passed)
    meanwhile = Counter(each.meanwhile for each in passed)
    verdicts = [each.verdict for each in pools]
    rows = [
        ("rounds", f"{len(passed)}, {', '.join(f'{len(each.passed)} {each.pool}' for each in pools)}"),
        ("meanwhile", ", ".join(f"{count} {what}" for what, count in meanwhile.most_common())),
        *(
            (f"- {label}", f"{count}; went on after {_after(passed, label)}")
            for label, count in sorted(labels.items())
        ),
        (
            "submitted",
            f"{sum(each.submitted for each in verdicts)} "
            f"({sum(each.unconfirmed for each in verdicts)} more were not confirmed)",
        ),
        ("run once", str(sum(each.once for each in verdicts))),
        ("lost", str(sum(len(each.lost) for each in verdicts))),
        ("started early", str(sum(len(each.early) for each in verdicts))),
        ("duplicates", str(sum(len(each.reruns) for each in verdicts))),
        *((f"- {cause.value}", str(count)) for cause, count in _causes(pools).most_common()),
        ("workers ended", str(sum(len(each.ended) for each in passed))),
        ("SIGTERM until the end", in_words([s for each in pools for s in each.endings])),
        ("left in Redis", ", ".join(key for each in pools for key in each.left) or "nothing but bindings"),
        *(("not as it must be", text) for text in _details(pools)),
    ]
    return "\n".join(f"{name:36} {value}" for name, value in rows)


def _details(pools: Sequence[OfPool]) -> list[str]:
    found = [f"{each.pool}, {line}" for each in pools for line in each.bad]
    for each in pools:
        found += [f"{each.pool}, {task} is lost" for task in each.verdict.lost]
        found += [
            f"{each.pool}, {rerun.task} was started again at {rerun.at:.3f}"
            for rerun in each.verdict.reruns
            if rerun.cause is Cause.UNEXPLAINED
        ]
        found += [
            f"{each.pool}, {each_round.label}: {what} {', '.join(labels)}"
            for each_round in each.passed
            for what, labels in (("ended", each_round.ended), ("idle", each_round.idle))
            if labels
        ]
    return found


def _passed(pools: Iterable[OfPool]) -> list[Passed]:
    return [passed for each in pools for passed in each.passed]


def _causes(pools: Iterable[OfPool]) -> Counter[Cause]:
    return sum((each.verdict.causes for each in pools), Counter[Cause]())


def _after(passed: Iterable[Passed], label: str) -> str:
    return in_words([seconds for each in passed if each.label == label for seconds in each.went_on])
