"""Celery workers and producers at a real cluster that changes."""
