"""Celery messages that are wrong in every way that their format knows, on real workers."""
