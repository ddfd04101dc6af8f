"""Run them with a database of Redis of their own:

BROKER_URL=redisdelay://localhost:6379/15 python manage.py test
"""

from django.conf import settings
from django.test import TestCase

from kombu_redisdelay import Messages
from orders.services import place_order


class OrderTest(TestCase):
    def test_an_order_is_to_be_closed(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            order = place_order()
        with Messages(settings.CELERY_BROKER_URL) as messages:
            assert messages.cancel(ids=[f"close-order-{order.pk}"])
