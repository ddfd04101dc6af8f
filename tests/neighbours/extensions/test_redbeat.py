"""RedBeat keeps its schedule in a Redis that it is told of in its own words."""

from __future__ import annotations

from pathlib import Path

from tests.neighbours.extensions.shop import Beat, Shop, printed
from tools.harness.cluster import Cluster
from tools.harness.process import ChildProcess, wait_until
from tools.harness.redis_server import HOST, RedisServer
from tools.harness.sentinel import MASTER, PASSWORD, SentinelSite


def wait_reminded(worker: ChildProcess, times: int = 2) -> None:
    wait_until(lambda: len(printed(worker, "reminded")) >= times, 30, "a periodic task")


def test_it_sends_periodic_tasks_with_a_countdown(shop: Shop, server: RedisServer) -> None:
    worker = shop.worker("redbeat_shop")
    beat = shop.beat("redbeat_shop")
    wait_reminded(worker)
    with server.client(db=1) as client:
        assert client.exists("redbeat:remind", "redbeat::lock") == 2
    beat.stop()


def test_without_a_url_of_its_own_it_does_not_start(shop: Shop) -> None:
    (shop.folder / "redbeat_unset.py").write_text(
        "from redbeat_shop import app\n\napp.conf.redbeat_redis_url = app.conf.broker_url\n"
    )
    beat = Beat("redbeat_unset", shop)
    beat.start()
    try:
        wait_until(lambda: not beat.running, 20, "the end of beat")
        assert "ValueError: Redis URL must specify one of the following schemes" in beat.log()
    finally:
        beat.kill()


def test_of_two_only_one_sends(shop: Shop) -> None:
    first, second = (shop.beat("redbeat_shop") for _ in range(2))
    wait_until(lambda: first.sent() >= 3, 20, "the first one")
    assert "Acquired lock" in first.log()
    assert second.sent() == 0
    # In good order it gives the lock back, and the other one has it at once.
    first.stop()
    wait_until(lambda: second.sent() >= 1, 30, "the other one")


def test_sentinel(shop: Shop) -> None:
    with SentinelSite() as site:
        ports = [sentinel.port for sentinel in site.sentinels]
        adapt(
            shop.folder / "redbeat_sentinel.py",
            {
                "redisdelay-sentinel://:secret@sentinel-1:26379;redisdelay-sentinel://sentinel-2:26379": (
                    site.url()
                ),
                '("sentinel-1", 26379)': f'("{HOST}", {ports[0]})',
                '("sentinel-2", 26379)': f'("{HOST}", {ports[1]})',
                '"shop"': f'"{MASTER}"',
                '"secret"': f'"{PASSWORD}"',
            },
        )
        worker = shop.worker("redbeat_sentinel")
        beat = shop.beat("redbeat_sentinel")
        wait_reminded(worker)
        site.fail_over()
        wait_reminded(worker, len(printed(worker, "reminded")) + 2)
        beat.stop()
        worker.stop()


def test_cluster(shop: Shop, cluster: Cluster) -> None:
    adapt(
        shop.folder / "redbeat_cluster.py",
        {
            "redisdelay-cluster://node-1:6379;redisdelay-cluster://node-2:6379": cluster.url(),
            "redis://node-1:6379": f"redis://{cluster.addresses[0]}",
        },
    )
    worker = shop.worker("redbeat_cluster")
    beat = shop.beat("redbeat_cluster")
    wait_reminded(worker)
    beat.stop()


def adapt(file: Path, ours: dict[str, str]) -> None:
    """Put the addresses of our servers into a *file* of the page."""
    text = file.read_text()
    for theirs, here in ours.items():
        assert theirs in text
        text = text.replace(theirs, here)
    file.write_text(text)
