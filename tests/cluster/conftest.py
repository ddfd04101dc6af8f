"""Where these tests run."""

from __future__ import annotations

from tests.environments import HAS_CLUSTERS

collect_ignore_glob = [] if HAS_CLUSTERS else ["test_*.py"]
