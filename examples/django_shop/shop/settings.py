"""Settings for a look at it on your machine: a project of yours has its own secret, hosts and database."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "orders.urls"
INSTALLED_APPS = ["orders"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parents[1] / "shop.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# This is all that makes countdowns wait in Redis.
CELERY_BROKER_URL = os.environ.get("BROKER_URL", "redisdelay://localhost:6379/0")

#: Seconds.
TIME_TO_PAY = float(os.environ.get("SHOP_TIME_TO_PAY", "1800"))

RECEIPTS_URL = os.environ.get("SHOP_RECEIPTS_URL", "http://localhost:8001/")
