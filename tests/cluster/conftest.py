"""Where these tests run."""

from __future__ import annotations

from tests.environments import CLUSTERS

collect_ignore_glob = [] if CLUSTERS else ["test_*.py"]
