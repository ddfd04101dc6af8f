"""What the tests of Sentinel share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.harness.sentinel import SentinelSite


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[SentinelSite]:
    """For all tests that leave it whole; see `sentinels`."""
    with SentinelSite(hasty=True) as site:
        yield site


@pytest.fixture
def sentinels(shared_sentinels: SentinelSite) -> SentinelSite:
    """A primary with nothing in it, two replicas and three sentinels."""
    shared_sentinels.empty()
    return shared_sentinels
