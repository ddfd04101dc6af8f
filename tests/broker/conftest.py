"""The databases that the broker layer is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.database import FAKE, REAL_SERVERS, ClusterDatabase, Database
from tests.broker.database import database as open_database
from tests.broker.rig import Rig
from tests.environments import CLUSTER, CLUSTERS, HAS_CLUSTERS, THOROUGH, WITHOUT

collect_ignore = [] if HAS_CLUSTERS else ["server/test_cluster.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on a real server. The scripts do the same on fakeredis, whose clock stands still, and in
    a slot of a cluster. ``tox -e thorough`` tries all there, and each run what has them in all orders."""
    if "shared_database" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker
        is_thorough = THOROUGH not in WITHOUT
        names = [*([FAKE] if is_thorough else []), *REAL_SERVERS]
        if not marked("one_server") and (is_thorough or marked("in_all_orders")):
            names += CLUSTERS
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
