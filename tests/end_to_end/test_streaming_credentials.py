"""Credentials that a streaming provider hands out, and that live for a short time: no connection is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kombu.transport import redis

from tests.end_to_end.installation import Installation
from tools.harness.process import wait_until

pytest.importorskip("redis.auth.token", reason="redis-py < 5.3 has no streaming credentials")
pytestmark = pytest.mark.skipif(
    not hasattr(redis.Channel, "maybe_reauth"), reason="kombu < 5.7 does not renew those of PUB/SUB"
)

ROTATIONS = 6

#: What a connection that is used all the time has said last, and how many a worker has of these: for tasks,
#: and for remote control and gossip.
BUSY = {"bzpopmin": 1, "psubscribe": 2}


def busy(site: Installation, user: str) -> dict[str, int]:
    """How many connections of *user* have said each last. Others may have connections of the default user."""
    with site.server.client() as client:
        said = Counter(each["cmd"] for each in client.client_list() if each["user"] == user)
    return {command: said[command] for command in BUSY}


def admit(site: Installation, user: str, path: Path) -> None:
    site.redis.execute_command("ACL", "SETUSER", user, "on", f">{user}", "~*", "&*", "+@all")
    written = path.with_suffix(".new")
    written.write_text(user)
    written.rename(path)


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_a_worker_outlives_its_users(
    site: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    path = tmp_path / "credentials"
    monkeypatch.setenv("END_TO_END_CREDENTIALS", str(path))
    admit(site, "user0", path)
    url = f"{site.server.url()}?credential_provider=tests.end_to_end.rotating.Rotating"
    settings: dict[str, Any] = {"broker_transport_options": {"reauth_check_interval": 0.2}}
    worker = site.worker(pool=pool, url=url, settings=settings, args=("-E",))
    producer = site.producer()
    # A worker that is ready is not done with connecting.
    wait_until(lambda: busy(site, "user0") == BUSY, 30, "the connections of the worker")
    for number in range(1, ROTATIONS):
        before, user = f"user{number - 1}", f"user{number}"
        admit(site, user, path)
        wait_until(lambda user=user: busy(site, user) == BUSY, 30, "new credentials")  # type: ignore[misc]
        # The server closes the connections of a user that is no more.
        site.redis.execute_command("ACL", "DELUSER", before)
        producer.send_task("work_late", [user])
        site.wait_ended([user])
        wait_until(lambda: site.unacked() == 0, 30, "its ack")
    assert "Connection to broker lost" not in worker.log()
    assert site.ledger.run_twice() == {}
