"""A broker with messages in each state, and somebody who looks at its page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.redis_server import RedisServer
from tests.cli.site import Site
from tests.web.viewer import Viewer


@pytest.fixture
def site(server: RedisServer) -> Iterator[Site]:
    site = Site(server)
    yield site
    site.close()


@pytest.fixture
def viewer(site: Site) -> Iterator[Viewer]:
    viewer = Viewer(site.app)
    yield viewer
    viewer.close()
