"""How the servers of a run may be arranged."""

from __future__ import annotations

from tests.chaos.cluster import Shards
from tests.chaos.sentinels import Sentinels
from tests.chaos.single import Single
from tests.chaos.site import Site

TOPOLOGIES: dict[str, type[Site]] = {"single": Single, "sentinel": Sentinels, "cluster": Shards}
