from celery import shared_task

from orders.models import Order


@shared_task(acks_late=True)
def close_order(number: int) -> None:
    """Safe to run twice: it closes only what is still unpaid."""
    Order.objects.filter(pk=number, is_paid=False).update(is_closed=True)
