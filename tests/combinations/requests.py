"""What Celery makes of a message: one that notes what becomes of it, and one that cannot be made."""

from __future__ import annotations

from typing import Any, NoReturn

from celery.worker.request import Request

from tests.chaos import requests
from tests.combinations.attempts import attempt
from tests.combinations.plan import CALLBACK_ERROR


class NotingRequest(requests.NotingRequest):
    """Each try of a task is noted for itself."""

    @property
    def noted(self) -> str:
        return attempt(self.id, self._request_dict.get("retries") or 0)


class RaisingRequest(Request):  # type: ignore[misc]  # celery has no types
    """Raises in the worker's callback."""

    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(CALLBACK_ERROR)
