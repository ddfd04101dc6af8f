"""In which of the environments of ``tox.ini`` the tests run on a cluster, too."""

from __future__ import annotations

import sys

CLUSTER = "cluster"

#: With the oldest redis-py and the newest. They find the servers of a cluster in different ways; all else is
#: the same, and takes time.
CLUSTERS = [CLUSTER] if sys.version_info[:2] in ((3, 10), (3, 13)) else []
