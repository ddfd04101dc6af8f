"""What can be done to an order. Redis is told when the transaction has been committed: a worker could not
find the order before that, and a payment that is rolled back must cancel nothing."""

from functools import cache, partial

from django.conf import settings
from django.db import transaction
from shop.celery import app

from kombu_redisdelay import Messages
from orders.models import Order
from orders.tasks import close_order, send_receipt


@cache
def messages() -> Messages:
    """Opened when it is first needed, and kept for as long as the process lives."""
    return Messages(app)


def place_order() -> Order:
    with transaction.atomic():
        order = Order.objects.create()
        transaction.on_commit(partial(_schedule, order.pk))
    return order


def pay_order(number: int) -> bool:
    """Whether it was paid in time. That is for the database to say; to cancel the task only saves work."""
    with transaction.atomic():
        is_in_time = Order.objects.filter(pk=number, is_closed=False).update(is_paid=True) == 1
        transaction.on_commit(lambda: messages().cancel(ids=[_task_id(number)]))
        if is_in_time:
            transaction.on_commit(lambda: send_receipt.delay(number))
    return is_in_time


def _schedule(number: int) -> None:
    close_order.apply_async([number], task_id=_task_id(number), countdown=settings.TIME_TO_PAY)


def _task_id(number: int) -> str:
    return f"close-order-{number}"
