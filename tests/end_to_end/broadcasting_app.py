"""The app of the workers, with a broadcast."""

from kombu.common import Broadcast

from tests.end_to_end.app import app

__all__ = ("app",)

app.conf.task_queues = [Broadcast("news")]
