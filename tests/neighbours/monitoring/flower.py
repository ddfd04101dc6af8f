"""Flower, and what one asks it for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.neighbours.extensions.shop import Shop
from tools.harness.process import ChildProcess
from tools.harness.redis_server import HOST, free_port


class Flower(ChildProcess):
    """``celery flower`` of the app ``shop``.

    Arguments:
        broker: the URL on its command line; None for that of the app.
    """

    def __init__(self, shop: Shop, broker: str | None = None) -> None:
        super().__init__()
        self._shop, self._broker, self._port = shop, broker, free_port()

    def command(self) -> Sequence[str]:
        broker = [] if self._broker is None else [f"--broker={self._broker}"]
        address = [f"--address={HOST}", f"--port={self._port}"]
        return [sys.executable, "-m", "celery", "-A", "shop", *broker, "flower", *address]

    def environment(self) -> dict[str, str]:
        return {**self._shop.environment, "FLOWER_UNAUTHENTICATED_API": "true"}

    def working_directory(self) -> Path:
        return self._shop.folder

    def is_ready(self) -> bool:
        try:
            return self.get("/healthcheck")[0] == 200
        except URLError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        """The status of a page, and its text."""
        return self._open(Request(self._url(path)))

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def post(self, path: str, content: str = "") -> Any:
        status, text = self._open(Request(self._url(path), content.encode()))
        assert status == 200, text
        return json.loads(text)

    def _url(self, path: str) -> str:
        return f"http://{HOST}:{self._port}{path}"

    def _open(self, request: Request) -> tuple[int, str]:
        try:
            with urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
