"""Which ports the servers of a process may have.

A server that is about to start, or is down for a while, does not hold its port. pytest-xdist runs tests in
several processes, so each of them has ports of its own. It gives out all of them before one comes again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from random import SystemRandom

#: Below the range of ports for outgoing connections. In that range, a client that tries again and again while
#: the server is down would sooner or later connect to itself, and hold the port. Those of nodes of a cluster
#: are apart, because the port of a node's bus is 10,000 above it.
OF_SERVERS = range(26_000, 32_000)
OF_NODES = range(10_000, 16_000)


def own(ports: range) -> Iterator[int]:
    """Those of *ports* that belong to this process, from any one on, again and again."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = ports[place :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    # Tests seed `random`. Two runs beside each other must not begin at the same port.
    first = SystemRandom().randrange(len(mine))
    return cycle((*mine[first:], *mine[:first]))
