"""Run them with a database of Redis of their own:

BROKER_URL=redisdelay://localhost:6379/15 python manage.py test
"""

import time

from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.test import TestCase, TransactionTestCase
from shop.celery import app

from kombu_redisdelay import Messages
from orders.services import place_order


class OrderTest(TestCase):
    def test_an_order_is_to_be_closed(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            order = place_order()
        with Messages(settings.CELERY_BROKER_URL) as messages:
            assert messages.cancel(ids=[f"close-order-{order.pk}"])


class ClosingTest(TransactionTestCase):
    """A worker has a connection of its own to the database: it sees only what is committed."""

    def test_an_order_is_closed(self) -> None:
        with Messages(settings.CELERY_BROKER_URL) as messages, start_worker(app, perform_ping_check=False):
            order = place_order()
            messages.deliver_now(ids=[f"close-order-{order.pk}"])
            deadline = time.monotonic() + 10
            while not order.is_closed and time.monotonic() < deadline:
                time.sleep(0.05)
                order.refresh_from_db()
        assert order.is_closed
