"""One measurement, in a process of its own: ``python -m tools.benchmarks.runner``.

Reads JSON that says what to measure, in one line, and then a line for each turn that it may take. Replies to
each of these with a line: ``null``, or at last what was measured, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

from tools.benchmarks.site import Site
from tools.benchmarks.workload import Measured, Sizes, Workload
from tools.benchmarks.workloads import WORKLOADS


def main() -> None:
    # What a library prints must not come between the lines of the reply.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    site = Site(**request["site"])
    site.transport.register()
    turns = take_turns(WORKLOADS[request["workload"]], site, request["sizes"])
    for _ in sys.stdin:
        measured = next(turns)
        replies.write(json.dumps(measured and asdict(measured)) + "\n")
        if measured:
            break


def take_turns(workload: Workload, site: Site, sizes: Sizes) -> Iterator[Measured | None]:
    """One by one; ``None`` for all but the last."""
    outcome = workload.measure(site, sizes)
    yield outcome if isinstance(outcome, Measured) else (yield from outcome)


if __name__ == "__main__":
    main()
