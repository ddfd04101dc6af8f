from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Order
from orders.services import pay_order, place_order

# Exempt because this is an API for programs. What a browser's form reaches must not be.


@csrf_exempt
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"number": place_order().pk}, status=201)


@csrf_exempt
@require_POST
def payment(request: HttpRequest, number: int) -> JsonResponse:
    return JsonResponse({"is_paid": pay_order(number)})


@require_GET
def order(request: HttpRequest, number: int) -> JsonResponse:
    found = get_object_or_404(Order, pk=number)
    return JsonResponse({"is_paid": found.is_paid, "is_closed": found.is_closed})
