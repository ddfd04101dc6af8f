from django.urls import path

from orders import views

urlpatterns = [
    path("orders", views.orders),
    path("orders/<int:number>", views.order),
    path("orders/<int:number>/payment", views.payment),
]
