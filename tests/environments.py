"""On what kinds of servers the tests run, and in which of the environments of ``tox.ini`` on a cluster."""

from __future__ import annotations

import sys

import pytest

SERVER = "server"
CLUSTER = "cluster"

#: With the oldest redis-py and the newest. They find the servers of a cluster in different ways; all else is
#: the same, and takes time.
CLUSTERS = [CLUSTER] if sys.version_info[:2] in ((3, 10), (3, 13)) else []

#: For a test of the channel that cannot fail on a cluster if it passes on one server.
on_one_server = pytest.mark.parametrize("site", [SERVER], indirect=True)
