"""Credentials that change all the time, as those of managed Redis do: for a process that the test starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

from redis.auth.token import SimpleToken
from redis.credentials import StreamingCredentialProvider

#: Environment variable: the path of a file with the name of the user, which is the password, too.
CREDENTIALS = "END_TO_END_CREDENTIALS"


class Rotating(StreamingCredentialProvider):
    """Tells everybody who listens when the file has changed."""

    def __init__(self) -> None:
        self._path = Path(os.environ[CREDENTIALS])
        self._listeners: list[Callable[[Any], None]] = []
        Thread(target=self._watch, daemon=True).start()

    def get_credentials(self) -> tuple[str, str]:
        user = self._path.read_text()
        return user, user

    def on_next(self, callback: Callable[[Any], None]) -> None:
        self._listeners.append(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """There are none."""

    def is_streaming(self) -> bool:
        return True

    def _watch(self) -> None:
        known = self._path.read_text()
        while True:
            sleep(0.05)
            user = self._path.read_text()
            if user != known:
                known = user
                for listener in list(self._listeners):
                    listener(SimpleToken(user, -1, 0, {"oid": user}))


_provider: list[Rotating] = []


def provider() -> Rotating:
    """The one of this process, as cloud libraries have one, too."""
    if not _provider:
        _provider.append(Rotating())
    return _provider[0]
