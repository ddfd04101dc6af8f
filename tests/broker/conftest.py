"""The databases that the broker layer is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kombu_redisdelay.broker.limits import FairQueues
from tests.broker.database import FAKE, REAL_SERVERS, ClusterDatabase, Database
from tests.broker.database import database as open_database
from tests.broker.rig import Rig
from tests.environments import CLUSTER, CLUSTERS, HAS_CLUSTERS, RUNS_THE_REST, THOROUGH, WITHOUT

collect_ignore = [] if HAS_CLUSTERS else ["server/test_cluster.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on a real server, and once more where the scripts may do something else: tests that try
    them in all orders in a slot of a cluster, the others on fakeredis, whose clock stands still, if they have
    not many messages. ``tox -e thorough`` runs each on all three."""
    if "shared_database" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker
        is_thorough, in_all_orders = THOROUGH not in WITHOUT, marked("in_all_orders")
        names = [*REAL_SERVERS]
        if RUNS_THE_REST and (is_thorough or not (in_all_orders or marked("many_messages"))):
            names.insert(0, FAKE)
        if not marked("one_server") and (is_thorough or in_all_orders):
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


@pytest.fixture
def fair(rig: Rig) -> FairQueues:
    """The queue "q" is fair."""
    fair = FairQueues(rig.store)
    fair.switch_on(["q"])
    return fair
