from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from tests.transport.batching import celery_app
from tests.transport.kit import Site


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = celery_app(site.url)
    yield app
    app.close()
