"""The databases that the broker layer is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.database import ONE_SERVER, ClusterDatabase, Database
from tests.broker.database import database as open_database
from tests.broker.rig import Rig
from tests.environments import CLUSTER, CLUSTERS, HAS_CLUSTERS

collect_ignore = [] if HAS_CLUSTERS else ["server/test_cluster.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shared_database" in metafunc.fixturenames:
        is_for_one = metafunc.definition.get_closest_marker("one_server")
        names = ONE_SERVER if is_for_one else [*ONE_SERVER, *CLUSTERS]
        metafunc.parametrize("shared_database", names, indirect=True)


@pytest.fixture(scope="session")
def shared_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == CLUSTER:
        yield ClusterDatabase(request.getfixturevalue("shared_cluster"))
    else:
        with open_database(request.param) as database:
            yield database


@pytest.fixture
def database(shared_database: Database) -> Database:
    """An empty database."""
    shared_database.reset()
    return shared_database


@pytest.fixture
def rig(database: Database) -> Rig:
    return Rig(database)
