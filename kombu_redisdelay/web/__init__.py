"""A page to look at: the queues and messages of a broker in a browser, and what can be done to them."""

from kombu_redisdelay.web.application import create
from kombu_redisdelay.web.guard import Viewer

__all__ = ("Viewer", "create")
