"""On what kinds of servers the tests run, and in which of the environments of ``tox.ini`` on a cluster."""

from __future__ import annotations

import sys

from harness.server_binary import servers

SERVER = "server"
CLUSTER = "cluster"

#: With the oldest redis-py and the newest. They find the servers of a cluster in different ways; all else is
#: the same, and takes time.
CLUSTERS = [CLUSTER] if sys.version_info[:2] in ((3, 10), (3, 13)) else []

#: Whether servers can be reached through proxies: Redis 6.2 cannot choose the address that it connects from.
PROXIES = not servers()[0].version.startswith("6.")
