"""One measurement, in a process of its own: ``python -m benchmarks.runner``, JSON in, JSON out."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from benchmarks.site import Site
from benchmarks.workloads import WORKLOADS


def main() -> None:
    # What a library prints must not come between the lines of the reply.
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    site = Site(**request["site"])
    site.transport.register()
    measured = WORKLOADS[request["workload"]].measure(site, request["sizes"])
    json.dump(asdict(measured), reply)
    reply.close()


if __name__ == "__main__":
    main()
