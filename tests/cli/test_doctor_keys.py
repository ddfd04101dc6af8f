"""`celery delayed doctor`: what it says of keys that keep messages waiting."""

from __future__ import annotations

from kombu_redisdelay.broker.unique import check_unique
from tests.cli.site import QUEUE, Site, sort_by_key

HEADERS = {"x-unique": "account:42", "x-unique-while": "latest"}
CHECK = f"queue {QUEUE}"


def _told(site: Site, level: str = "warning") -> list[tuple[str, str]]:
    rows = site.rows("doctor", "-Q", QUEUE, status=1)
    return [(row["found"], row["advice"]) for row in rows if row["check"] == CHECK and row["level"] == level]


def _block(site: Site) -> None:
    for id in ("holder", "blocked"):
        site.send(headers=HEADERS, task_id=id)


def _retry(site: Site, seconds: int) -> None:
    site.send(headers={**HEADERS, "retries": 1}, task_id="holder", countdown=seconds)
    site.send(headers=HEADERS, task_id="blocked")


def test_blocked_without_a_worker(site: Site) -> None:
    _block(site)
    (ready, _), (found, advice) = _told(site)
    assert ready == "1 message ready, and no worker"
    assert found == (
        "1 message blocked, and no worker. holder, which is ready, holds the unique key 'account:42'"
    )
    # What is missing is a worker: the holder is all right.
    assert advice == "Start a worker for this queue."


def test_several_keys(site: Site) -> None:
    for number in range(3):
        for id in ("holder", "blocked"):
            site.send(headers={**HEADERS, "x-unique": f"account:{number}"}, task_id=f"{id}{number}")
    found = [found for found, _ in _told(site)]
    assert found[1].startswith("3 messages blocked, and no worker. For example, holder")
    site.redis.delete(QUEUE)
    [(gone, _)] = _told(site, "wrong")
    assert gone.endswith("which nobody holds any more (2 others in the same way), and no worker")


def test_what_is_blocked_by_a_worker_that_works_is_no_problem(site: Site) -> None:
    _block(site)
    site.add_consumer("alive", 60_000)
    assert _told(site) == _told(site, "wrong") == []


def test_a_holder_in_a_fair_queue(site: Site) -> None:
    """It is in the list of its key."""
    site.text("fair", "-Q", QUEUE)
    _block(site)
    sort_by_key(site)
    assert site.redis.llen(QUEUE) == 0
    assert _told(site, "wrong") == []


def test_a_holder_that_is_gone(site: Site) -> None:
    _block(site)
    site.redis.delete(QUEUE)
    [(found, advice)] = _told(site, "wrong")
    assert (
        found == "blocked waits for its unique key 'account:42', which nobody holds any more, and no worker"
    )
    assert advice.startswith("Start a worker for this queue")
    site.add_consumer("alive", 60_000)
    [(found, advice)] = _told(site)
    assert found == "blocked waits for its unique key 'account:42', which nobody holds any more"
    check_unique(site.store, [QUEUE], {})
    assert _told(site) == []


def test_a_holder_whose_task_no_worker_knows(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    site.leave_unknown("shop.new", 30, headers={**HEADERS, "retries": 1}, task_id="holder")
    site.send(headers=HEADERS, task_id="blocked")
    found = [found for found, _ in _told(site) if "holder" in found]
    assert found == [
        "others wait for holder, which holds the unique key 'account:42' and waits for a worker that knows "
        "its task shop.new"
    ]


def test_a_holder_that_is_tried_again_much_later(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    _retry(site, 7200)
    [(found, advice)] = _told(site)
    assert found.startswith("others wait for holder, which holds the unique key 'account:42' and is due in ")
    assert "`celery delayed deliver-now holder`" in advice


def test_a_holder_that_is_tried_again_soon_is_no_problem(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    _retry(site, 60)
    assert _told(site) == []


def test_ids_of_a_command_are_quoted(site: Site) -> None:
    site.add_consumer("alive", 60_000)
    headers = {**HEADERS, "x-unique": "'<script>🔑"}
    site.send(headers={**headers, "retries": 1}, task_id="$(reboot)", countdown=7200)
    site.send(headers=headers, task_id="blocked")
    [(found, advice)] = _told(site)
    assert 'the unique key "\'<script>🔑"' in found
    assert "cancel '$(reboot)'`" in advice
