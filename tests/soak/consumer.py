"""A plain kombu consumer: ``python -m tests.soak.consumer URL QUEUE...``. SIGTERM ends it in good order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kombu.connection import Connection
from kombu.entity import Queue

from tools.harness.process import ChildProcess

_READY = "consuming"


class ConsumerProcess(ChildProcess):
    """That program."""

    def __init__(self, url: str, queues: Sequence[str]) -> None:
        super().__init__()
        self._arguments = [url, *queues]

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", __name__, *self._arguments]

    def is_ready(self) -> bool:
        return _READY in self.log()


def main(url: str, *names: str) -> None:
    def end(*_: Any) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    queues = [Queue(name) for name in names]
    with Connection(url) as connection, connection.Consumer(queues, callbacks=[lambda _, m: m.ack()]):
        while True:
            # It has asked for messages by then, or waits for one.
            with suppress(TimeoutError):
                connection.drain_events(timeout=1)
            print(_READY, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
