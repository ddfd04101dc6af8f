"""Runs the programs of an example, each as its user would."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tools.harness.process import ChildProcess
from tools.harness.redis_server import HOST, free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

#: Seconds that an answer may take on a busy machine.
PATIENCE = 30


def environment(directory: Path, **variables: str) -> dict[str, str]:
    """For programs of the example in *directory*, with the package of this repository."""
    path = os.pathsep.join([str(directory), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}


class Program(ChildProcess):
    """``python -m ...`` that answers over HTTP.

    Arguments:
        ready: the path that is asked for until somebody answers.
        words: behind ``python -m``; PORT stands for one that is free.
    """

    def __init__(
        self, *words: str, directory: Path, environment: Mapping[str, str], ready: str = "/"
    ) -> None:
        super().__init__()
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self._words = [word.replace("PORT", str(port)) for word in words]
        self._directory = directory
        self._environment = environment
        self._ready = ready

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", *self._words]

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def working_directory(self) -> Path:
        return self._directory

    def is_ready(self) -> bool:
        try:
            return httpx.get(self.url + self._ready, timeout=PATIENCE).status_code < 500
        except httpx.ConnectError:
            return False

    def get(self, path: str) -> Any:
        return self._answer(httpx.get(self.url + path, timeout=PATIENCE))

    def post(self, path: str, json: object = None) -> Any:
        return self._answer(httpx.post(self.url + path, json=json, timeout=PATIENCE))

    def delete(self, path: str) -> Any:
        return self._answer(httpx.delete(self.url + path, timeout=PATIENCE))

    def _answer(self, response: httpx.Response) -> Any:
        assert response.is_success, f"{response.status_code}\n{self.log()}"
        return response.json()
