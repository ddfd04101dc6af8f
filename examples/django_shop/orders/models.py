from django.db import models


class Order(models.Model):
    is_paid = models.BooleanField(default=False)
    is_closed = models.BooleanField(default=False)
