"""One URL for the broker and for the results."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.end_to_end.environment import Environment
from tests.end_to_end.installation import Installation
from tools.harness import celery_command
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer
from tools.harness.sentinel import MASTER, SentinelSite
from tools.harness.tls import Tls, new_tls, server_with_tls

SENTINELS = {"broker_transport_options": {"master_name": MASTER}}

#: A server, the URL and the settings of the broker, which say everything.
Place = tuple[RedisServer | SentinelSite, str, dict[str, Any]]


def single(stack: ExitStack) -> Place:
    server = stack.enter_context(RedisServer(requirepass="p@ss/;"))
    return server, server.url(db=2), {}


def over_a_socket(stack: ExitStack) -> Place:
    server = stack.enter_context(RedisServer())
    return server, f"redisdelay+socket://{server.socket}?virtual_host=2", {}


def tls(stack: ExitStack) -> Tls:
    try:
        server_with_tls()
        return stack.enter_context(new_tls())
    except LookupError as error:
        pytest.skip(str(error))


def over_tls(stack: ExitStack) -> Place:
    certificate = tls(stack)
    server = stack.enter_context(RedisServer(server_with_tls(), tls=certificate))
    return server, server.url("redisdelays", db=2), {"broker_use_ssl": certificate.client_options}


def of_sentinels(stack: ExitStack) -> Place:
    site = stack.enter_context(SentinelSite(replicas=1, hasty=True))
    return site, site.url(db=2), SENTINELS


def of_sentinels_over_tls(stack: ExitStack) -> Place:
    certificate = tls(stack)
    site = stack.enter_context(SentinelSite(server_with_tls(), replicas=1, hasty=True, tls=certificate))
    options = {"broker_use_ssl": certificate.client_options}
    return site, site.url("redisdelays-sentinel", db=2), {**SENTINELS, **options}


@pytest.fixture(
    params=[
        *(single, over_a_socket, over_tls, of_sentinels_over_tls),
        pytest.param(of_sentinels, marks=pytest.mark.thorough),
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        make: Callable[[ExitStack], Place] = request.param
        yield make(stack)
        # A result that goes away tells the server. Celery 5.5 would look for a server that has ended.
        gc.collect()


def run_celery(site: Installation, url: str, settings: dict[str, Any], *args: str) -> tuple[int, str]:
    """The exit status of a command of Celery, and what it has printed."""
    environment = Environment(url, site.ledger.path, settings)
    words = ("-A", "tests.end_to_end.app", *args)
    done = celery_command.run_celery(words, {**os.environ, **environment.variables()})
    return done.returncode, done.stdout + done.stderr


def test_one_url(place: Place, tmp_path: Path) -> None:
    server, url, of_broker = place
    settings = {**of_broker, "result_backend": url, "result_expires": 1000}
    with Installation(server, tmp_path) as site:
        site.worker(pool="threads", concurrency=4, url=url, settings=settings)
        app = site.producer(**settings)
        app.conf.broker_url = url

        result = app.send_task("add", [1, 2])
        assert result.get(timeout=30) == 3
        # In the database of the URL, where `redis://` keeps it.
        with server.client(db=2) as client:
            assert 0 < client.ttl(f"celery-task-meta-{result.id}") <= 1000
            assert run_celery(site, url, settings, "result", result.id) == (0, "3\n")
            result.forget()
            assert not client.exists(f"celery-task-meta-{result.id}")

        header = [app.signature("add", [n, n]) for n in range(10)]
        assert chord(header, app=app)(app.signature("total")).get(timeout=30) == 90


def test_it_is_the_place_of_redis(server: RedisServer) -> None:
    """Results of before are found afterwards, and those of other programs."""
    stock = Celery(broker="memory://", backend=server.url("redis"), set_as_current=False)
    stock.backend.store_result("id", {"a": 1}, "SUCCESS")
    ours = Celery(broker=server.url(), backend=server.url(), set_as_current=False)
    # A prefix of the broker's keys is none of the results'.
    ours.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    assert ours.AsyncResult("id").get(timeout=30) == {"a": 1}


def test_the_server_is_verified() -> None:
    with ExitStack() as stack:
        server, url, _ = over_tls(stack)
        app = Celery(broker=url, backend=url, set_as_current=False)
        app.conf.redis_retry_on_timeout = False
        assert isinstance(server, RedisServer)
        with pytest.raises(RedisConnectionError, match="certificate verify failed"):
            app.backend.client.ping()
        url += "?ssl_cert_reqs=none"
        Celery(broker=url, backend=url, set_as_current=False).backend.client.ping()


@pytest.mark.parametrize(
    ("refuse", "error", "allow"),
    [
        ("CONFIG SET min-replicas-to-write 1", "NOREPLICAS", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "READONLY", "REPLICAOF NO ONE"),
    ],
    ids=["too few replicas", "a replica"],
)
def test_a_result_waits_for_the_end_of_a_failover(
    server: RedisServer, refuse: str, error: str, allow: str
) -> None:
    app = Celery(broker=server.url(), backend=server.url(), set_as_current=False)
    app.conf.result_backend_always_retry = True
    with server.client() as client, ThreadPoolExecutor(1) as executor:

        def is_refused_again() -> bool:
            # redis-py reads it as {"count": 2}, in older versions as "count=2".
            refused = str(client.info("errorstats").get(f"errorstat_{error}", 0))
            return int("".join(filter(str.isdigit, refused))) > 1

        client.config_resetstat()
        client.execute_command(*refuse.split())
        # The text of the error of a pipeline has the result in it.
        stored = executor.submit(app.backend.store_result, "id", "of pipeline caused error: x", "SUCCESS")
        try:
            wait_until(lambda: stored.done() or is_refused_again(), 30, "that it tries again")
        finally:
            client.execute_command(*allow.split())
        stored.result(30)
        assert app.AsyncResult("id").state == "SUCCESS"


def test_a_database_is_a_number() -> None:
    app = Celery(backend="redisdelay://:secret@localhost:6379/shop", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match=r"^result_backend: the database is a number, not 'shop'$"):
        app.backend  # noqa: B018


@pytest.mark.parametrize("scheme", ["redisdelay-cluster", "redisdelays-cluster"])
def test_a_cluster_says_what_to_set(site: Installation, scheme: str) -> None:
    settings = {"result_backend": f"{scheme}://localhost:6379"}
    app = site.producer(**settings)
    with pytest.raises(ImproperlyConfigured, match="set result_backend to a Redis without cluster") as raised:
        app.send_task("add", [1, 2])
    assert "\n" not in str(raised.value)
    status, said = run_celery(site, site.server.url(), settings, "worker", "-P", "solo")
    assert status != 0
    assert said.splitlines()[-1].endswith(str(raised.value))
