"""What has expired, on the command line and in the doctor."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.cli.site import QUEUE, Site
from tools.harness.redis_server import RedisServer


@pytest.fixture
def server(good_server: RedisServer) -> RedisServer:
    with good_server.client() as client:
        client.flushall()
    return good_server


def send(site: Site, expired: int, others: int) -> None:
    for number in range(expired):
        expires = datetime.now(timezone.utc) - timedelta(hours=1)
        site.send(task_id=f"late {number}", expires=expires)
    for number in range(others):
        site.send(task_id=f"in time {number}", expires=3600)


def test_list_count_and_cancel(site: Site) -> None:
    send(site, 2, 1)
    assert [row["id"] for row in site.rows("list", "--expired")] == ["late 0", "late 1"]
    assert [row["messages"] for row in site.rows("count", "--expired")] == [2]
    assert "Would cancel 2 messages." in site.text("cancel", "--expired", "--dry-run")
    assert "Cancelled 2 messages." in site.text("cancel", "--expired", "--yes")
    assert [row["id"] for row in site.rows("list")] == ["in time 0"]


def test_beside_ids_it_is_an_error(site: Site) -> None:
    result = site.run("cancel", "--expired", "late 0")
    assert result.exit_code == 2
    assert "not both" in result.output


@pytest.mark.parametrize(("expired", "others", "share"), [(9, 3, "75 %"), (2, 30, ""), (3, 1, "")])
def test_the_doctor_tells_the_share(site: Site, expired: int, others: int, share: str) -> None:
    send(site, expired, others)
    found = [row["found"] for row in site.rows("doctor", "-Q", QUEUE) if "expired" in row["found"]]
    text = f"about {share} of {expired + others} messages ready have expired, and no worker takes them"
    assert found == ([text] if share else [])
