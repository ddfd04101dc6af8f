"""A program ends without closing its connection: what it held is back when it is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.transport.kit import Site, publish

PROGRAM = """
import sys
from kombu import Connection
from tests.transport.kit import Inbox, drain

connection = Connection(sys.argv[1], transport_options={"visibility_timeout": 1000})
channel = connection.channel()
inbox = Inbox(channel)
drain(connection, lambda: len(inbox) == 3)
inbox.messages[0].ack()
"""

ENDS = {
    "end of the program": "",
    "sys.exit": "sys.exit()",
    "exception": "raise RuntimeError('of the application')",
    "in a callback": """
def fail(message):
    raise RuntimeError("of the application")
inbox._on_message = fail
connection.drain_events(timeout=5)
""",
    "in a thread": """
from threading import Thread
def consume():
    while True:
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            pass
Thread(target=consume, daemon=True).start()
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_gives_back_what_was_held(site: Site, end: str) -> None:
    publish(site.channel(), *(str(number) for number in range(6)))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + ENDS[end], site.url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (site.ready(), site.unacked()) == (5, 0), result.stderr
    if end != "in a thread":
        # There the interpreter's end comes in the middle of the thread's read, which may fail.
        expected = "of the application" in result.stderr
        assert result.stderr.count("Traceback") == expected, result.stderr
    assert result.returncode == ("of the application" in result.stderr)
