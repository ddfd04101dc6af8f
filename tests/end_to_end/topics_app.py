"""The app of the workers, with a queue that gets messages by topic. What Redis has lost is seen soon."""

from kombu.entity import Exchange, Queue

from kombu_redisdelay.transport import declaring
from tests.end_to_end.app import app

__all__ = ("app",)

app.conf.task_queues = [Queue("films", Exchange("topics", "topic"), "video.#")]
declaring.LOOK_EVERY = 0.2
