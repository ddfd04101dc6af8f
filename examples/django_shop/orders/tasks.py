import urllib.request

from celery import shared_task
from django.conf import settings

from orders.models import Order


@shared_task(acks_late=True)
def close_order(number: int) -> None:
    """Safe to run twice: it closes only what is still unpaid."""
    Order.objects.filter(pk=number, is_paid=False).update(is_closed=True)


@shared_task(acks_late=True)
def send_receipt(number: int) -> None:
    """Fails while the service for receipts is away. The task is kept then, and can be requeued."""
    urllib.request.urlopen(f"{settings.RECEIPTS_URL}?order={number}", timeout=10).close()
