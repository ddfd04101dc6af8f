"""The app of the workers, with a queue that expires."""

from kombu.entity import Queue

from tests.end_to_end.app import app

__all__ = ("app",)

app.conf.task_queues = [Queue("short", queue_arguments={"x-expires": 2000})]
