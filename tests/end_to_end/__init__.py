"""Real `celery worker` processes on a real Redis server."""
