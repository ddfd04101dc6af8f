"""The tests: unit (no server), broker (without kombu), channel (kombu without Celery), end_to_end."""
