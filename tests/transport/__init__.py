"""The kombu layer without Celery, on a real server."""
