"""A signal ends the event loop's wait, though Python resumes a poll that a signal interrupted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.transport.kit import Site

PROGRAM = """
import os, signal, socket, sys, threading
from kombu import Connection
from kombu.asynchronous import Hub
from tests.transport.kit import Inbox

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))

def consume(connection, hub=None):
    hub = hub or Hub()
    # Nothing but the signal can end the wait: neither the server nor a timer.
    connection.transport.brpop_timeout = 1000
    hub.fire_timers = lambda **kwargs: 1000
    inbox = Inbox(connection.channel())
    connection.register_with_event_loop(hub)
    loop = hub.create_loop()
    # What comes in the first round comes at once.
    next(loop)
    assert not inbox.consumer.channel.intake.expects_more
    return loop

def run(loop):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    while not stopped:
        next(loop)
    stopped.clear()
    print("stopped", flush=True)

connection = Connection(sys.argv[1])
"""

CASES = {
    "once": "run(consume(connection))",
    "after a reconnect": """
run(consume(connection))
connection.collect()
run(consume(connection))
""",
    "after a reconnect on the same event loop": """
hub = Hub()
run(consume(connection, hub))
connection.collect()
hub.reset()
run(consume(connection, hub))
""",
    "on two connections": """
first, second = consume(connection), consume(Connection(sys.argv[1]))
run(first)
run(second)
""",
    "several times": """
loop = consume(connection)
run(loop)
run(loop)
""",
}


def outcome(program: str, site: Site, timeout: float) -> str:
    """What the program wrote. Raises when it does not end in time."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + program, site.url],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("case", CASES)
def test_ends_the_wait(site: Site, case: str) -> None:
    assert outcome(CASES[case], site, timeout=15) == "stopped\n" * CASES[case].count("run(")


def test_leaves_the_wakeup_fd_to_somebody_else(site: Site) -> None:
    program = """
reader, writer = socket.socketpair()
writer.setblocking(False)
signal.set_wakeup_fd(writer.fileno())
consume(connection)
assert signal.set_wakeup_fd(-1) == writer.fileno()
os.kill(os.getpid(), signal.SIGTERM)
print("left alone")
"""
    assert outcome(program, site, timeout=15) == "left alone\n"


def test_does_nothing_outside_of_the_main_thread(site: Site) -> None:
    program = """
errors = []
def work():
    try:
        consume(connection)
    except Exception as error:
        errors.append(error)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert not errors, errors
assert signal.set_wakeup_fd(-1) == -1
# A later one in the main thread is not kept from it.
run(consume(Connection(sys.argv[1])))
"""
    assert outcome(program, site, timeout=15) == "stopped\n"
