"""celery-singleton and celery-once keep a lock for each task that waits. Who revokes it releases the lock."""

from __future__ import annotations

import pytest

from kombu_redisdelay import Messages
from tests.neighbours.extensions.shop import Shop, printed
from tools.harness.process import wait_until

MODULES = ["singleton_shop", "once_shop"]


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def call(shop: Shop, module: str, times: int = 1) -> list[str]:
    """The ids that so many calls return."""
    return shop.python(
        f"from {module} import close_order\n"
        f"for _ in range({times}): print(close_order.apply_async([42], countdown=600).id)"
    )


def test_calls_that_come_while_one_waits_publish_nothing(shop: Shop, module: str) -> None:
    worker = shop.worker(module)
    with Messages(worker_url(shop)) as delayed:
        call(shop, module, times=3)
        [message] = delayed.select()
        assert delayed.deliver_now(ids=[message.id]).count == 1
        wait_until(lambda: printed(worker, "closed 42"), 20, "the task")
        # The lock is released when it has run.
        wait_until(
            lambda: call(shop, module) and delayed.count() == 1,
            20,
            "another one that waits",
        )
    assert printed(worker, "closed 42") == ["closed 42"]


def test_what_is_only_cancelled_keeps_the_lock(shop: Shop, module: str) -> None:
    with Messages(worker_url(shop)) as delayed:
        call(shop, module)
        [message] = delayed.select()
        assert delayed.cancel(ids=[message.id]).count == 1
        call(shop, module)
        assert delayed.count() == 0


def test_what_is_revoked_gives_it_back(shop: Shop, module: str) -> None:
    worker = shop.worker(module)
    with Messages(worker_url(shop)) as delayed:
        call(shop, module)
        [message] = delayed.select()
        shop.python(f"from {module} import app; app.control.revoke({message.id!r})")
        wait_until(lambda: "Discarding revoked task" in worker.log(), 20, "the worker")
        wait_until(
            lambda: call(shop, module) and delayed.count() == 1,
            20,
            "another one that waits",
        )
        [another] = delayed.select()
    assert another.id != message.id
    assert printed(worker, "closed 42") == []


def test_what_expires_gives_it_back(shop: Shop, module: str) -> None:
    publish = f"from {module} import close_order; close_order.apply_async([42], expires=0.1)"
    shop.python(publish)
    worker = shop.worker(module)
    wait_until(lambda: "Discarding revoked task" in worker.log(), 20, "the worker")
    with Messages(worker_url(shop)) as delayed:
        wait_until(
            lambda: call(shop, module) and delayed.count() == 1,
            20,
            "another one that waits",
        )


def test_who_cancels_releases_the_lock_of_celery_singleton(shop: Shop) -> None:
    with Messages(worker_url(shop)) as delayed:
        [first] = call(shop, "singleton_shop")
        cancel = f"from singleton_cancel import keep_open; print(keep_open(42, {first!r}))"
        assert shop.python(cancel) == ["True"]
        [second] = call(shop, "singleton_shop")
        assert second != first
        assert [message.id for message in delayed.select()] == [second]
        # One that was not waiting keeps its lock.
        assert shop.python(cancel) == ["False"]
        assert call(shop, "singleton_shop") == [second]


def worker_url(shop: Shop) -> str:
    return f"redisdelay://{shop.address}/0"
